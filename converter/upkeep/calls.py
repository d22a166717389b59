"""Calls, where function and arguments are known as values: which are followed, and what the others give back."""

from __future__ import annotations

from typing import Any

from converter.upkeep.memory import Frame, Memory
from converter.upkeep.operations import PURE, list_method, pure
from converter.upkeep.source import CannotTell, Class
from converter.upkeep.values import UNKNOWN, Bound, Captured, Layer, LayerOutput, Parent, State, Thing, of_unknown
from converter.upkeep.words import mentions

_SAME_TENSOR = frozenset({"clone", "contiguous", "to", "detach", "view", "reshape", "float"})


class Calls(Memory):
    """Makes a call, or says what one that is not followed gives back."""

    def _applied(
        self, function: Any, name: str, arguments: list[Any], named: dict[str, Any], frame: Frame, place: str
    ) -> Any:
        """What a call gives back. name: that of the method, where `function` itself is not followed."""
        self._capture_on_entry(function, arguments, named, place)
        if isinstance(function, bool | int) and not arguments:
            return function  # a fact: is_idle()
        if isinstance(function, Layer):
            return LayerOutput(function.index + 1, function.returned)
        if isinstance(function, Class):
            return self._built(function, arguments)
        if isinstance(function, Thing) and function.cls is not None:
            forward = function.cls.method("forward")
            if forward is not None and mentions(forward[1], self.words.marks):
                return self._call(Bound(function, "forward", *forward), arguments, named)
        if not isinstance(function, Bound):
            return self._unfollowed_call(name, arguments, named, place)
        if function.owner is None and function.name in self.words.facts:
            return self.words.facts[function.name]
        if function.name in self.words.stands_for and function.cls is not getattr(function.owner, "cls", None):
            parts = self.words.stands_for[function.name]
            return next((self.get(function.owner, p) for p in parts if self.has(function.owner, p)), UNKNOWN)
        if function.node is None:
            return self._builtin(function, arguments, named, frame, place)
        given = [*arguments, *named.values()]
        if any(isinstance(a, Captured) for a in given):
            return self._call(function, arguments, named)
        if function.cls is None and function.owner is None and function.around == {}:
            return self._unfollowed_call(function.name, arguments, named, place)
        if function.around or mentions(function.node, self.words.marks):
            return self._call(function, arguments, named)
        return self._quietly(lambda: self._call(function, arguments, named))

    def _capture_on_entry(self, function: Any, arguments: list[Any], named: dict[str, Any], place: str) -> None:
        """`layer(..., capture=LIST)`: the list takes the state that goes into the call."""
        for keyword in self.words.captures & named.keys():
            taker = named[keyword]
            if taker is None:
                continue
            states = [a for a in (*arguments, *named.values()) if isinstance(a, State)]
            entering = State("stream", function.index) if isinstance(function, Layer) else next(iter(states), UNKNOWN)
            if isinstance(taker, Bound) and isinstance(taker.owner, Captured):
                taker.owner.append(entering)
            elif isinstance(taker, Captured):
                taker.append(entering)
            elif isinstance(taker, Bound) and taker.node is not None:
                self._call(taker, [entering], {})
            else:
                raise CannotTell(f"whether {keyword} is given hangs on a condition", place)

    def _built(self, cls: Class, arguments: list[Any]) -> Any:
        if cls.name in self.words.lists or any(c.name in self.words.lists for c in cls.lineage):
            made = Captured()
            counts = [a for a in arguments if isinstance(a, int)]
            made.expected = counts[0] if counts else None
            return self._kept(made)
        return UNKNOWN

    def _unfollowed_call(self, name: str, arguments: list[Any], named: dict[str, Any], place: str) -> Any:
        given = [*arguments, *named.values()]
        if name in self.words.passed_on:
            return next((a for a in given if isinstance(a, State)), UNKNOWN)
        for captured in (a for a in given if isinstance(a, Captured)):
            if any(isinstance(s, State) for s in captured):
                captured.mixed = place
                return captured
        return UNKNOWN

    def _builtin(self, f: Bound, arguments: list[Any], named: dict[str, Any], frame: Frame, place: str) -> Any:
        if isinstance(f.owner, Captured | list):
            return list_method(f.owner, f.name, arguments, place)
        if isinstance(f.owner, State):
            return f.owner if f.name in _SAME_TENSOR else UNKNOWN
        if isinstance(f.owner, Class):
            return self._built(f.owner, arguments) if f.owner.name in self.words.lists else UNKNOWN
        if f.owner is not None:
            if of_unknown(f.owner) and f.name in self.words.hands_on and arguments:
                self.handed_on = arguments[0]
            return self._unfollowed_call(f.name, arguments, named, place)
        if f.name in ("hasattr", "getattr", "setattr") and len(arguments) > 1 and isinstance(arguments[1], str):
            return self._reflect(f.name, arguments)
        if f.name == "super" and isinstance(frame.thing, Thing) and frame.owner is not None:
            return Parent(frame.thing, frame.owner)
        if f.name in ("enumerate", "islice", *PURE) and UNKNOWN not in arguments:
            first = arguments[0] if arguments else None
            if f.name == "len" and isinstance(first, Thing) and first.cls and (own := first.cls.method("__len__")):
                return self._call(Bound(first, "__len__", *own), [], {})
            return self._kept(pure(f.name, arguments, named, place))
        return self._unfollowed_call(f.name, arguments, named, place)

    def _reflect(self, name: str, arguments: list[Any]) -> Any:
        thing, attribute = arguments[0], arguments[1]
        if name == "setattr":
            self._set(thing, attribute, arguments[2])
            return None
        has = self.has(thing, attribute)
        if name == "hasattr":
            return has
        if has is False and len(arguments) > 2:
            return arguments[2]
        return self.get(thing, attribute)

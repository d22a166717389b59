"""The objects and lists of one model while the machine runs: their attributes, and what is left of them after both
branches of a condition that is not known.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from converter.upkeep.source import CannotTell, Class, Module
from converter.upkeep.values import UNKNOWN, Bound, Captured, Config, Layer, Stack, Stops, Thing, of_unknown, same
from converter.upkeep.words import Words


@dataclass
class Frame:
    """One call: the names inside it, the class whose method it is, and the object that the method is of."""

    module: Module
    names: dict[str, Any]
    owner: Class | None = None
    thing: Any = None


class Memory(ABC):
    """What the machine knows of one model with `layers` decoder layers."""

    def __init__(self, words: Words, layers: int, resolve: Callable[[Class, str], Any]) -> None:
        """resolve: the Class, list or literal that an attribute of a class is built as; UNKNOWN where not told."""
        self.words, self.layers, self._resolve = words, layers, resolve
        self._things: list[Thing] = []
        self._captured: list[Captured] = []
        self._steps = 0
        self._depth = 0
        self.config = Config(None, num_hidden_layers=layers)
        self.marked: Thing | None = None  # the thing whose marks were set last
        self.handed_on: Any = UNKNOWN  # points given to a model that is not known
        self.unsure = ""  # the place where what is captured, or given back, hangs on something unknown

    @abstractmethod
    def _call(self, bound: Bound, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Run a function of the package. Raises Stops where it would raise, CannotTell where that is not followed."""

    def thing(self, cls: Class) -> Thing:
        """A new object of a class."""
        made = Thing(cls)
        self._things.append(made)
        return made

    def _stack(self, returned: str = "") -> list[Layer]:
        made = [Layer(i, returned) for i in range(self.layers)]
        self._things += made
        return made

    def _kept(self, value: Any) -> Any:
        """The value; a list is from now on held against itself after a condition that is not known."""
        if isinstance(value, Captured):
            self._captured.append(value)
        return value

    def get(self, thing: Any, name: str) -> Any:
        """An attribute; UNKNOWN where it cannot be told."""
        if isinstance(thing, Thing) and name in thing.attributes:
            return thing.attributes[name]
        if name in self.words.facts:
            fact = self.words.facts[name]
            return {"LAYERS": self.layers, "CONFIG": self.config}.get(fact, fact) if isinstance(fact, str) else fact
        if isinstance(thing, Thing) and thing.cls is not None:
            found = thing.cls.method(name)
            if found is not None:
                if any(isinstance(d, ast.Name) and d.id == "property" for d in found[1].decorator_list):
                    return self._quietly(lambda: self._call(Bound(thing, name, *found), [], {}))
                return Bound(thing, name, *found)
            value = self._resolve(thing.cls, name)
            if isinstance(value, Class):
                value = self.thing(value)
            elif isinstance(value, Stack):
                value = self._stack(value.returned)
            elif isinstance(value, list | set | dict):
                value = type(value)(value)  # its own, not the class's
            thing.attributes[name] = value
            return value
        return self._stack() if name == "layers" and of_unknown(thing) else UNKNOWN

    def has(self, thing: Any, name: str) -> Any:
        """Whether there is such an attribute; UNKNOWN where it cannot be told."""
        if isinstance(thing, Layer):
            return name in thing.attributes
        if isinstance(thing, Thing) and thing.cls is not None:
            if thing.attributes.get(name, UNKNOWN) is not UNKNOWN or thing.cls.method(name) is not None:
                return True
            return any(name in owner.stores or owner.assigned(name) is not None for owner in thing.cls.lineage)
        return UNKNOWN

    def _set(self, thing: Any, name: str, value: Any) -> None:
        if isinstance(thing, Thing):
            thing.attributes[name] = value
            if name in self.words.marks and not isinstance(thing, Layer):
                self.marked = thing

    def _quietly(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (CannotTell, Stops):
            return UNKNOWN

    def _snapshot(self, frame: Frame) -> tuple[Any, ...]:
        return (
            dict(frame.names),
            [(t, dict(t.attributes)) for t in self._things],
            [(c, list(c), c.mixed) for c in self._captured],
        )

    def _restore(self, snapshot: tuple[Any, ...], frame: Frame) -> None:
        frame.names.clear()
        frame.names.update(snapshot[0])
        for thing, attributes in snapshot[1]:
            thing.attributes = dict(attributes)
        for captured, states, mixed in snapshot[2]:
            captured[:] = states
            captured.mixed = mixed

    def _join(self, other: tuple[Any, ...], frame: Frame, place: str) -> None:
        """Keep what is the same after both branches of a condition that is not known."""
        for name in frame.names.keys() | other[0].keys():
            if not same(frame.names.get(name, UNKNOWN), other[0].get(name, UNKNOWN)):
                frame.names[name] = UNKNOWN
        for thing, attributes in other[1]:
            for name in thing.attributes.keys() | attributes.keys():
                here, there = thing.attributes.get(name, UNKNOWN), attributes.get(name, UNKNOWN)
                if not same(here, there):
                    thing.attributes[name] = UNKNOWN
        for captured, states, mixed in other[2]:
            if list(captured) != states or mixed:
                captured.mixed = self.unsure = mixed or place

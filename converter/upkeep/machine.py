"""Runs a few methods of a model class by hand, statement by statement, to see which states it hands out.

Nothing of the package is imported or executed: this is an interpreter of the small part of Python that setters and
forward passes use, over its own values. A tensor is a `State`: the residual stream at a capture point, or one of the
two summands that engines carry it in. What is not followed becomes `Unknown`; where the outcome would hang on one,
CannotTell says so with the line.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from converter.upkeep.source import CannotTell, Class, Function, Module

_STEPS = 60_000  # statements and expressions in one run; real ones need a few thousand
_DEPTH = 12
_MOST = 10_000  # of a number, and of items in a list; models have far fewer layers


@dataclass(frozen=True)
class Words:
    """What the machine is told about an engine's code, since it cannot be followed.

    facts      attribute or argumentless call -> value, for a target on one GPU without optional modes
    passed_on  functions that give back the state they are given
    captures   keywords of a call under which a list, or a method of one, takes the state that enters the call
    lists      classes that collect states; one that is built with a number expects that many
    marks      attributes that say which layers are captured
    stands_for inherited method -> the attributes of which it gives back the first that there is
    hands_on   methods that take points, by which a wrapper tells a model that is chosen by the checkpoint
    """

    facts: Mapping[str, Any]
    passed_on: frozenset[str]
    captures: frozenset[str]
    lists: frozenset[str]
    marks: frozenset[str]
    stands_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hands_on: frozenset[str] = frozenset()


class Unknown:
    """A value that is not followed."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()


@dataclass(frozen=True)
class State:
    """A tensor of the target: `part` is stream (the whole), update or residual (its two summands)."""

    part: str
    point: int


@dataclass(frozen=True)
class Stack:
    """The decoder layers of a model. returned: what their forward gives back, "" where that is not told.

    "whole" for one tensor, "split" for update and residual, "whole, none" and "whole, residual" for a whole tensor
    with something beside it.
    """

    returned: str


@dataclass(frozen=True)
class LayerOutput:
    """What calling decoder layer `point - 1` gave, before it is known into which names it goes."""

    point: int
    returned: str = ""


class Thing:
    """An object of the model. cls is None for what is not of the package."""

    def __init__(self, cls: Class | None, **attributes: Any) -> None:
        self.cls, self.attributes = cls, attributes


class Layer(Thing):
    def __init__(self, index: int, returned: str) -> None:
        super().__init__(None)
        self.index, self.returned = index, returned


class Config(Thing):
    """The target's config, with its nested ones."""


class Captured(list[Any]):
    """States handed out. expected: how many it was built for, where it says so when they are not reached."""

    expected: int | None = None
    mixed: str = ""  # the place where it went through something unknown


@dataclass(frozen=True)
class Bound:
    """A method of a thing, of a list, or a function inside a function."""

    owner: Any
    name: str = ""
    cls: Class | None = None
    node: Function | None = None
    module: Module | None = None
    around: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)


@dataclass(frozen=True)
class Parent:
    """super() inside a method of `owner`, for `thing`."""

    thing: Thing
    owner: Class


class Stops(Exception):
    """The code would raise here."""

    def __init__(self, kind: str, place: str) -> None:
        super().__init__(kind)
        self.kind, self.place = kind, place


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Loop(Exception):
    """break or continue"""

    def __init__(self, ends: bool) -> None:
        self.ends = ends


@dataclass
class _Frame:
    module: Module
    names: dict[str, Any]
    owner: Class | None = None
    thing: Any = None


_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.BitXor: operator.xor, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
}  # fmt: skip
_PLAIN = (int, str, tuple, list, set, range, dict, float, type(None))
_SAME_TENSOR = frozenset({"clone", "contiguous", "to", "detach", "view", "reshape", "float"})


class Machine:
    """One model with `layers` decoder layers."""

    #: Whether a function has to do with marks; a function is one object in all runs.
    _with_marks: ClassVar[dict[ast.AST, bool]] = {}

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

    # --- things ---------------------------------------------------------------------------------------------

    def thing(self, cls: Class) -> Thing:
        made = Thing(cls)
        self._things.append(made)
        return made

    def _stack(self, returned: str = "") -> list[Layer]:
        made = [Layer(i, returned) for i in range(self.layers)]
        self._things += made
        return made

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
        return self._stack() if name == "layers" and _of_unknown(thing) else UNKNOWN

    def has(self, thing: Any, name: str) -> Any:
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

    # --- running ----------------------------------------------------------------------------------------------

    def run(
        self, thing: Thing, name: str, arguments: Sequence[Any] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a method. Raises Stops where it would raise, CannotTell where that hangs on something unknown."""
        assert thing.cls is not None
        found = thing.cls.method(name)
        if found is None:
            raise CannotTell(f"{thing.cls.name} has no {name}", thing.cls.place)
        return self._call(Bound(thing, name, *found), list(arguments), dict(named or {}))

    def _call(self, bound: Bound, arguments: list[Any], named: dict[str, Any]) -> Any:
        assert bound.node is not None
        module = bound.cls.module if bound.cls is not None else bound.module
        assert module is not None
        if self._depth >= _DEPTH:
            raise CannotTell("calls that go too deep", module.place(bound.node))
        names = dict(bound.around)
        spec = bound.node.args
        positional = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        if bound.cls is not None and not _is_static(bound.node):
            arguments = [bound.owner, *arguments]
        frame = _Frame(module, names, bound.cls, bound.owner)
        for name, given in zip(reversed(positional), reversed(spec.defaults), strict=False):
            names[name] = self._quietly(lambda d=given: self._value(d, frame))  # type: ignore[misc]
        for parameter, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            names[parameter.arg] = UNKNOWN
            if default is not None:
                names[parameter.arg] = self._quietly(lambda d=default: self._value(d, frame))  # type: ignore[misc]
        for name in positional:
            names.setdefault(name, UNKNOWN)
        names.update(zip(positional, arguments, strict=False))
        names.update({k: v for k, v in named.items() if k in (*positional, *(a.arg for a in spec.kwonlyargs))})
        for rest in (spec.vararg, spec.kwarg):
            if rest is not None:
                names[rest.arg] = UNKNOWN
        self._depth += 1
        try:
            self._body(bound.node.body, frame)
        except _Return as result:
            return result.value
        finally:
            self._depth -= 1
        return None

    def _quietly(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (CannotTell, Stops):
            return UNKNOWN

    def _tick(self, node: ast.AST, frame: _Frame) -> None:
        self._steps += 1
        if self._steps > _STEPS:
            raise CannotTell("too much code to follow", frame.module.place(node))

    def _body(self, body: Sequence[ast.stmt], frame: _Frame) -> None:
        for node in body:
            self._statement(node, frame)

    def _statement(self, node: ast.stmt, frame: _Frame) -> None:
        self._tick(node, frame)
        place = frame.module.place(node)
        if isinstance(node, ast.Return):
            raise _Return(self._value(node.value, frame) if node.value else None)
        if isinstance(node, ast.If):
            self._if(node, frame)
        elif isinstance(node, ast.Assign):
            value = self._value(node.value, frame)
            for target in node.targets:
                self._assign(target, value, frame)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._assign(node.target, self._value(node.value, frame), frame)
        elif isinstance(node, ast.AugAssign):
            current = self._value(_loaded(node.target), frame)
            more = self._value(node.value, frame)
            if isinstance(current, Captured) and isinstance(more, list) and len(current) + len(more) <= _MOST:
                current.extend(more)
            else:
                self._assign(node.target, self._binary(node.op, current, more, place), frame)
        elif isinstance(node, ast.Expr):
            self._value(node.value, frame)
        elif isinstance(node, ast.For):
            self._for(node, frame)
        elif isinstance(node, ast.While):
            self._unfollowed(node, frame)
        elif isinstance(node, ast.With):
            for item in node.items:
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, UNKNOWN, frame)
            self._body(node.body, frame)
        elif isinstance(node, ast.Try):
            self._body([*node.body, *node.orelse, *node.finalbody], frame)
        elif isinstance(node, ast.Raise):
            raise Stops(_raised(node), place)
        elif isinstance(node, ast.Assert):
            if self._truth(self._value(node.test, frame)) is False:
                raise Stops("AssertionError", place)
        elif isinstance(node, ast.FunctionDef):
            frame.names[node.name] = Bound(None, node.name, None, node, frame.module, frame.names)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            for alias in node.names:
                frame.names.pop(alias.asname or alias.name, None)
        elif isinstance(node, ast.Break | ast.Continue):
            raise _Loop(isinstance(node, ast.Break))
        elif not isinstance(node, ast.Pass | ast.Delete | ast.Global | ast.Nonlocal):
            raise CannotTell(f"a statement that is not followed: {type(node).__name__.lower()}", place)

    def _if(self, node: ast.If, frame: _Frame) -> None:
        truth = self._truth(self._value(node.test, frame))
        if truth is not UNKNOWN:
            self._body(node.body if truth else node.orelse, frame)
            return
        before = self._snapshot(frame)
        results = []
        for body in (node.body, node.orelse):
            self._restore(before, frame)
            try:
                self._body(body, frame)
                results.append(self._snapshot(frame))
            except Stops:  # what is refused is not served
                continue
            except (_Return, _Loop) as end:
                raise CannotTell("what is captured hangs on a condition", frame.module.place(node)) from end
        if not results:
            raise Stops("RuntimeError", frame.module.place(node))
        self._restore(results[0], frame)
        for other in results[1:]:
            self._join(other, frame, frame.module.place(node))

    def _snapshot(self, frame: _Frame) -> tuple[Any, ...]:
        return (
            dict(frame.names),
            [(t, dict(t.attributes)) for t in self._things],
            [(c, list(c), c.mixed) for c in self._captured],
        )

    def _restore(self, snapshot: tuple[Any, ...], frame: _Frame) -> None:
        frame.names.clear()
        frame.names.update(snapshot[0])
        for thing, attributes in snapshot[1]:
            thing.attributes = dict(attributes)
        for captured, states, mixed in snapshot[2]:
            captured[:] = states
            captured.mixed = mixed

    def _join(self, other: tuple[Any, ...], frame: _Frame, place: str) -> None:
        """Keep what is the same after both branches of a condition that is not known."""
        for name in frame.names.keys() | other[0].keys():
            if not _same(frame.names.get(name, UNKNOWN), other[0].get(name, UNKNOWN)):
                frame.names[name] = UNKNOWN
        for thing, attributes in other[1]:
            for name in thing.attributes.keys() | attributes.keys():
                here, there = thing.attributes.get(name, UNKNOWN), attributes.get(name, UNKNOWN)
                if not _same(here, there):
                    thing.attributes[name] = UNKNOWN
        for captured, states, mixed in other[2]:
            if list(captured) != states or mixed:
                captured.mixed = self.unsure = mixed or place

    def _for(self, node: ast.For, frame: _Frame) -> None:
        items = self._value(node.iter, frame)
        if not isinstance(items, list | tuple | range | set):
            self._unfollowed(node, frame)
            return
        for item in list(items):
            self._assign(node.target, item, frame)
            try:
                self._body(node.body, frame)
            except _Loop as end:
                if end.ends:
                    return
        self._body(node.orelse, frame)

    def _unfollowed(self, node: ast.For | ast.While, frame: _Frame) -> None:
        """A loop over something unknown: no matter, unless it could capture."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(frame.names.get(inner.id), Captured):
                raise CannotTell("a loop over something unknown captures", frame.module.place(node))
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                frame.names[inner.id] = UNKNOWN

    def _assign(self, target: ast.expr, value: Any, frame: _Frame) -> None:
        if isinstance(target, ast.Name):
            frame.names[target.id] = State("stream", value.point) if isinstance(value, LayerOutput) else value
        elif isinstance(target, ast.Attribute):
            self._set(self._value(target.value, frame), target.attr, value)
        elif isinstance(target, ast.Tuple | ast.List):
            for part, item in zip(target.elts, self._unpacked(value, target.elts), strict=True):
                self._assign(part, item, frame)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, UNKNOWN, frame)
        elif isinstance(target, ast.Subscript):
            place = self._value(target.value, frame)
            key = self._value(target.slice, frame)
            if isinstance(place, dict) or (isinstance(place, list) and isinstance(key, int)):
                try:
                    place[key] = value
                except IndexError as problem:
                    raise Stops("IndexError", frame.module.place(target)) from problem

    def _unpacked(self, value: Any, targets: Sequence[ast.expr]) -> list[Any]:
        if isinstance(value, list | tuple) and len(value) == len(targets):
            return list(value)
        if isinstance(value, LayerOutput):
            # A layer hands on its state whole, or as two summands: its own return tells, else its caller's names.
            residual = ["residual" in ast.unparse(t) for t in targets[1:]]
            split = any(residual) and not value.returned.startswith("whole")
            second = None if value.returned == "whole, none" else State("residual", value.point)
            rest = [second if named else UNKNOWN for named in residual]
            return [State("update" if split else "stream", value.point), *rest]
        return [UNKNOWN] * len(targets)

    # --- values -----------------------------------------------------------------------------------------------

    def _truth(self, value: Any) -> Any:
        if isinstance(value, Unknown | State | LayerOutput):
            return UNKNOWN
        if isinstance(value, Captured) and value.mixed:
            return UNKNOWN
        return bool(value) if isinstance(value, _PLAIN) else True

    def _value(self, node: ast.expr, frame: _Frame) -> Any:
        self._tick(node, frame)
        place = frame.module.place(node)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._name(node.id, frame)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, frame)
        if isinstance(node, ast.Call):
            return self._called(node, frame)
        if isinstance(node, ast.BinOp):
            return self._binary(node.op, self._value(node.left, frame), self._value(node.right, frame), place)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, frame)
        if isinstance(node, ast.BoolOp):
            return self._boolean(node, frame)
        if isinstance(node, ast.Compare):
            return self._compared(node, frame)
        if isinstance(node, ast.IfExp):
            truth = self._truth(self._value(node.test, frame))
            if truth is not UNKNOWN:
                return self._value(node.body if truth else node.orelse, frame)
            one, other = self._value(node.body, frame), self._value(node.orelse, frame)
            if not _same(one, other) and isinstance(one, tuple | list) | isinstance(other, tuple | list):
                self.unsure = place
            return one if _same(one, other) else UNKNOWN
        if isinstance(node, ast.List):
            made = Captured(self._items(node.elts, frame))
            self._captured.append(made)
            return made
        if isinstance(node, ast.Tuple):
            return tuple(self._items(node.elts, frame))
        if isinstance(node, ast.Set):
            items = self._items(node.elts, frame)
            return set(items) if all(isinstance(i, int | str) for i in items) else UNKNOWN
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
            return self._comprehension(node, frame)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, frame)
        if isinstance(node, ast.Dict):
            for part in node.values:
                self._value(part, frame)
            return UNKNOWN
        if isinstance(node, ast.NamedExpr):
            value = self._value(node.value, frame)
            self._assign(node.target, value, frame)
            return value
        return UNKNOWN

    def _items(self, nodes: Sequence[ast.expr], frame: _Frame) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                more = self._value(node.value, frame)
                items += more if isinstance(more, list | tuple) else [UNKNOWN]
            else:
                items.append(self._value(node, frame))
        return items

    def _name(self, name: str, frame: _Frame) -> Any:
        if name in frame.names:
            return frame.names[name]
        if name in _BUILTINS:
            return Bound(None, name)
        cls = frame.module.class_named(name)
        if cls is not None:
            return cls
        function = frame.module.function(name)
        if function is not None:
            return Bound(None, name, None, function, frame.module)
        return Bound(None, name)

    def _attribute(self, node: ast.Attribute, frame: _Frame) -> Any:
        owner = self._value(node.value, frame)
        if isinstance(owner, State):
            return Bound(owner, node.attr)
        if isinstance(owner, list | set | dict):
            return Bound(owner, node.attr)
        if isinstance(owner, Parent):
            later = owner.thing.cls.lineage if owner.thing.cls else ()
            for cls in later[later.index(owner.owner) + 1 :] if owner.owner in later else ():
                found = cls.methods.get(node.attr)
                if found is not None:
                    return Bound(owner.thing, node.attr, cls, found)
            return UNKNOWN
        if isinstance(owner, Class):
            return Bound(owner, node.attr)
        value = self.get(owner, node.attr)
        return Bound(owner, node.attr) if value is UNKNOWN and not isinstance(owner, Thing) else value

    def _called(self, node: ast.Call, frame: _Frame) -> Any:
        function = self._value(node.func, frame)
        place = frame.module.place(node)
        arguments = self._items(node.args, frame)
        named = {k.arg: self._value(k.value, frame) for k in node.keywords if k.arg}
        self._capture_on_entry(function, arguments, named, place)
        if isinstance(function, bool | int) and not arguments:
            return function  # a fact: is_idle()
        if isinstance(function, Layer):
            return LayerOutput(function.index + 1, function.returned)
        if isinstance(function, Class):
            return self._built(function, arguments)
        if isinstance(function, Thing) and function.cls is not None:
            forward = function.cls.method("forward")
            if forward is not None and self._marks_in(forward[1]):
                return self._call(Bound(function, "forward", *forward), arguments, named)
        if not isinstance(function, Bound):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
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
        if function.around or self._marks_in(function.node):
            return self._call(function, arguments, named)
        return self._quietly(lambda: self._call(function, arguments, named))

    def _marks_in(self, node: ast.AST) -> bool:
        if node not in self._with_marks:
            self._with_marks[node] = self._find_marks(node)
        return self._with_marks[node]

    def _find_marks(self, node: ast.AST) -> bool:
        return any(
            (isinstance(n, ast.Attribute) and n.attr in self.words.marks)
            or (isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value in self.words.marks)
            for n in ast.walk(node)
        )

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
            self._captured.append(made)
            return made
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

    def _builtin(self, f: Bound, arguments: list[Any], named: dict[str, Any], frame: _Frame, place: str) -> Any:
        if isinstance(f.owner, Captured | list):
            return self._list_method(f.owner, f.name, arguments, place)
        if isinstance(f.owner, State):
            return f.owner if f.name in _SAME_TENSOR else UNKNOWN
        if isinstance(f.owner, Class):
            return self._built(f.owner, arguments) if f.owner.name in self.words.lists else UNKNOWN
        if f.owner is not None:
            if _of_unknown(f.owner) and f.name in self.words.hands_on and arguments:
                self.handed_on = arguments[0]
            return self._unfollowed_call(f.name, arguments, named, place)
        if f.name in ("hasattr", "getattr", "setattr") and len(arguments) > 1 and isinstance(arguments[1], str):
            return self._reflect(f.name, arguments)
        if f.name == "super" and isinstance(frame.thing, Thing) and frame.owner is not None:
            return Parent(frame.thing, frame.owner)
        if f.name in ("islice", "enumerate", *_PURE) and UNKNOWN not in arguments:
            return self._pure(f.name, arguments, named, place)
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

    def _list_method(self, owner: list[Any], name: str, arguments: list[Any], place: str) -> Any:
        if name in ("append", "capture") and arguments:
            owner.append(arguments[0])
        elif name == "extend" and arguments and isinstance(arguments[0], list | tuple):
            if len(owner) + len(arguments[0]) > _MOST:
                raise CannotTell("a list that grows without end", place)
            owner.extend(arguments[0])
        elif name == "finalize" and isinstance(owner, Captured):
            if owner.expected is not None and len(owner) != owner.expected:
                raise Stops("RuntimeError", place)
            return owner
        elif name == "copy":
            return list(owner)
        elif name == "sort" and all(isinstance(i, int) for i in owner):
            owner.sort()
        elif isinstance(owner, Captured):
            owner.mixed = place
        return None

    def _pure(self, name: str, arguments: list[Any], named: dict[str, Any], place: str) -> Any:
        first = arguments[0] if arguments else None
        try:
            if name == "len" and isinstance(first, Thing) and first.cls is not None and first.cls.method("__len__"):
                return self.run(first, "__len__")
            if name == "len":
                sized = isinstance(first, list | tuple | set | range | dict | str)
                return len(first) if sized and not getattr(first, "mixed", "") else UNKNOWN  # type: ignore[arg-type]
            if name == "range":
                small = all(isinstance(a, int) and abs(a) <= _MOST for a in arguments)
                return range(*arguments) if small else UNKNOWN
            if name == "isinstance":
                return _is_instance(*arguments)
            if not isinstance(first, list | tuple | range | set | int | None):
                return UNKNOWN
            if name == "enumerate":
                start = named.get("start", arguments[1] if len(arguments) > 1 else 0)
                return list(enumerate(first, start)) if isinstance(start, int) else UNKNOWN  # type: ignore[arg-type]
            if name == "islice":
                return list(first)[slice(*arguments[1:])]  # type: ignore[arg-type]
            if name == "sorted":
                items = sorted(first, reverse=bool(named.get("reverse")))  # type: ignore[arg-type]
                return items if not named.get("key") else UNKNOWN
            if name == "list":
                made = Captured(first or ())  # type: ignore[arg-type]
                self._captured.append(made)
                return made
            if name in ("max", "min") and not isinstance(first, int) and not first and "default" in named:
                return named["default"]
            return _PURE[name](*arguments)
        except ValueError as problem:
            raise Stops("ValueError", place) from problem
        except TypeError:
            return UNKNOWN

    def _binary(self, op: ast.operator, left: Any, right: Any, place: str) -> Any:
        states = [v for v in (left, right) if isinstance(v, State)]
        if states:
            if left is None or right is None:
                raise Stops("TypeError", place)
            if len(states) == 2 and isinstance(op, ast.Add) and left.point == right.point:
                if {left.part, right.part} == {"update", "residual"}:
                    return State("stream", left.point)
                return State("sum", left.point)
            if isinstance(op, ast.Mult | ast.Div) and len(states) == 1:
                return states[0]  # scaled as a whole, as its trainer's is
            return UNKNOWN
        if (
            isinstance(left, list | tuple)
            and isinstance(op, ast.Add)
            and right is UNKNOWN
            and isinstance(left, Captured)
        ):
            return left
        if isinstance(right, Captured) and isinstance(op, ast.Add) and left is UNKNOWN:
            return right  # states from elsewhere before those of here
        function = _OPERATORS.get(type(op))
        if function is None or not _is_small(op, left, right):
            return UNKNOWN
        try:
            result = function(left, right)
        except TypeError as problem:
            raise Stops("TypeError", place) from problem
        except ZeroDivisionError:
            return UNKNOWN
        if isinstance(result, list):
            result = Captured(result)
            self._captured.append(result)
        return result

    def _unary(self, node: ast.UnaryOp, frame: _Frame) -> Any:
        value = self._value(node.operand, frame)
        if isinstance(node.op, ast.Not):
            truth = self._truth(value)
            return UNKNOWN if truth is UNKNOWN else not truth
        return -value if isinstance(node.op, ast.USub) and isinstance(value, int) else UNKNOWN

    def _boolean(self, node: ast.BoolOp, frame: _Frame) -> Any:
        decides = isinstance(node.op, ast.Or)
        unknown = False
        value: Any = None
        for part in node.values:
            value = self._value(part, frame)
            truth = self._truth(value)
            if truth is UNKNOWN:
                unknown = True
            elif truth is decides:
                return decides if unknown else value
        return UNKNOWN if unknown else value

    def _compared(self, node: ast.Compare, frame: _Frame) -> Any:
        if _is_token_count(node.left) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.Gt):
            # A batch has tokens, and all of them are on this GPU.
            other = node.comparators[0]
            if _is_token_count(other):
                return isinstance(node.ops[0], ast.Eq)
            if isinstance(other, ast.Constant) and other.value == 0:
                return not isinstance(node.ops[0], ast.Eq)
        left = self._value(node.left, frame)
        result: Any = True
        for op, part in zip(node.ops, node.comparators, strict=True):
            right = self._value(part, frame)
            one = self._one_comparison(op, left, right)
            if one is False:
                return False
            result = UNKNOWN if one is UNKNOWN else result
            left = right
        return result

    def _one_comparison(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        if isinstance(op, ast.Is | ast.IsNot):
            same = _is(left, right)
            return same if same is UNKNOWN or isinstance(op, ast.Is) else not same
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(left, int | str | None) or not isinstance(right, list | tuple | range | set):
                return UNKNOWN
            found = left in right
            return found if isinstance(op, ast.In) else not found
        if not isinstance(left, _PLAIN) or not isinstance(right, _PLAIN):
            return UNKNOWN
        if isinstance(op, ast.Eq | ast.NotEq):
            return (left == right) is isinstance(op, ast.Eq)
        try:
            return bool(_OPERATORS[type(op)](left, right))
        except TypeError:
            return UNKNOWN

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, frame: _Frame) -> Any:
        if len(node.generators) != 1:
            return UNKNOWN
        [generator] = node.generators
        items = self._value(generator.iter, frame)
        if not isinstance(items, list | tuple | range | set):
            return UNKNOWN
        inner = _Frame(frame.module, dict(frame.names), frame.owner, frame.thing)
        made = Captured()
        for item in list(items):
            self._assign(generator.target, item, inner)
            truths = [self._truth(self._value(test, inner)) for test in generator.ifs]
            if any(t is UNKNOWN for t in truths):
                return UNKNOWN
            if all(truths):
                made.append(self._value(node.elt, inner))
        self._captured.append(made)
        return set(made) if isinstance(node, ast.SetComp) else made

    def _subscript(self, node: ast.Subscript, frame: _Frame) -> Any:
        owner = self._value(node.value, frame)
        if isinstance(node.slice, ast.Slice):
            bounds = [
                self._value(b, frame) if b else None for b in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            if isinstance(owner, list | tuple) and all(isinstance(b, int | None) for b in bounds):
                return owner[slice(*bounds)]
            return owner if isinstance(owner, State) else UNKNOWN
        key = self._value(node.slice, frame)
        if isinstance(owner, LayerOutput):
            return State("stream", owner.point) if key == 0 else UNKNOWN
        if isinstance(owner, list | tuple) and isinstance(key, int):
            try:
                return owner[key]
            except IndexError as problem:
                raise Stops("IndexError", frame.module.place(node)) from problem
        if isinstance(owner, Bound) and owner.name in _PURE:
            return owner  # tuple[int, ...]()
        return owner if isinstance(owner, State) else UNKNOWN


_PURE: dict[str, Callable[..., Any]] = {
    "len": len, "range": range, "sorted": sorted, "list": list, "tuple": tuple, "set": set, "max": max, "min": min,
    "int": int, "bool": bool, "abs": abs, "sum": sum, "reversed": lambda items: list(reversed(list(items))),
    "isinstance": isinstance,
}  # fmt: skip
_BUILTINS = frozenset({*_PURE, "hasattr", "getattr", "setattr", "super", "enumerate", "islice"})


def _is_small(op: ast.operator, left: Any, right: Any) -> bool:
    """Whether an operation on two values stays small: numbers, or lists put together."""
    if isinstance(left, int) and isinstance(right, int):
        return abs(left) <= _MOST and abs(right) <= _MOST
    if left is None or right is None:
        return isinstance(left, int | None) and isinstance(right, int | None)  # a TypeError
    lists = isinstance(left, list | tuple) and isinstance(right, list | tuple)
    return lists and isinstance(op, ast.Add) and len(left) + len(right) <= _MOST


def _is(left: Any, right: Any) -> Any:
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return UNKNOWN
    if left is None or right is None:
        other = right if left is None else left
        return UNKNOWN if isinstance(other, Bound) and other.node is None else other is None
    return left is right if isinstance(left, bool | Class) and isinstance(right, bool | Class) else UNKNOWN


def _of_unknown(thing: Any) -> bool:
    """Something unknown, or an attribute of it."""
    while isinstance(thing, Bound) and thing.node is None:
        thing = thing.owner
    return thing is UNKNOWN


def _is_instance(value: Any, kind: Any) -> Any:
    if isinstance(kind, Class):
        if isinstance(value, Thing) and value.cls is not None:
            return kind in value.cls.lineage
        return False if isinstance(value, State) else UNKNOWN
    return True if isinstance(value, State) and isinstance(kind, Bound) and kind.name == "Tensor" else UNKNOWN


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Thing) or isinstance(other, Thing):
        return one is other
    return type(one) is type(other) and bool(one == other)


def _is_token_count(node: ast.expr) -> bool:
    """x.shape[0]"""
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "shape"
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == 0
    )


def _is_static(node: Function) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)


def _raised(node: ast.Raise) -> str:
    call = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return call.id if isinstance(call, ast.Name) else "an error"


def _loaded(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target), mode="eval").body

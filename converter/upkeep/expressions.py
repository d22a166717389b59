"""The values of expressions, and what is assigned."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from converter.upkeep.calls import Calls
from converter.upkeep.memory import Frame
from converter.upkeep.operations import PURE, binary, compared, pure
from converter.upkeep.source import CannotTell, Class
from converter.upkeep.values import (
    UNKNOWN,
    Bound,
    Captured,
    LayerOutput,
    Parent,
    State,
    Stops,
    Thing,
    same,
    truth,
    unpacked,
)

_STEPS = 60_000  # statements and expressions in one run; real ones need a few thousand
_BUILTINS = frozenset({*PURE, "hasattr", "getattr", "setattr", "super", "enumerate", "islice"})


class Expressions(Calls):
    """Evaluates an expression inside a call, and puts values where an assignment says."""

    def _tick(self, node: ast.AST, frame: Frame) -> None:
        self._steps += 1
        if self._steps > _STEPS:
            raise CannotTell("too much code to follow", frame.module.place(node))

    def _value(self, node: ast.expr, frame: Frame) -> Any:
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
            return self._kept(binary(node.op, self._value(node.left, frame), self._value(node.right, frame), place))
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, frame)
        if isinstance(node, ast.BoolOp):
            return self._boolean(node, frame)
        if isinstance(node, ast.Compare):
            return self._compared(node, frame)
        if isinstance(node, ast.IfExp):
            holds = truth(self._value(node.test, frame))
            if holds is not UNKNOWN:
                return self._value(node.body if holds else node.orelse, frame)
            one, other = self._value(node.body, frame), self._value(node.orelse, frame)
            if not same(one, other) and (isinstance(one, tuple | list) or isinstance(other, tuple | list)):
                self.unsure = place
            return one if same(one, other) else UNKNOWN
        if isinstance(node, ast.List):
            return self._kept(Captured(self._items(node.elts, frame)))
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

    def _items(self, nodes: Sequence[ast.expr], frame: Frame) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                more = self._value(node.value, frame)
                items += more if isinstance(more, list | tuple) else [UNKNOWN]
            else:
                items.append(self._value(node, frame))
        return items

    def _name(self, name: str, frame: Frame) -> Any:
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

    def _attribute(self, node: ast.Attribute, frame: Frame) -> Any:
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

    def _called(self, node: ast.Call, frame: Frame) -> Any:
        function = self._value(node.func, frame)
        place = frame.module.place(node)
        arguments = self._items(node.args, frame)
        named = {k.arg: self._value(k.value, frame) for k in node.keywords if k.arg}
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return self._applied(function, name, arguments, named, frame, place)

    def _unary(self, node: ast.UnaryOp, frame: Frame) -> Any:
        value = self._value(node.operand, frame)
        if isinstance(node.op, ast.Not):
            holds = truth(value)
            return UNKNOWN if holds is UNKNOWN else not holds
        return -value if isinstance(node.op, ast.USub) and isinstance(value, int) else UNKNOWN

    def _boolean(self, node: ast.BoolOp, frame: Frame) -> Any:
        decides = isinstance(node.op, ast.Or)
        unknown = False
        value: Any = None
        for part in node.values:
            value = self._value(part, frame)
            holds = truth(value)
            if holds is UNKNOWN:
                unknown = True
            elif holds is decides:
                return decides if unknown else value
        return UNKNOWN if unknown else value

    def _compared(self, node: ast.Compare, frame: Frame) -> Any:
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
            one = compared(op, left, right)
            if one is False:
                return False
            result = UNKNOWN if one is UNKNOWN else result
            left = right
        return result

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, frame: Frame) -> Any:
        if len(node.generators) != 1:
            return UNKNOWN
        [generator] = node.generators
        items = self._value(generator.iter, frame)
        if not isinstance(items, list | tuple | range | set):
            return UNKNOWN
        inner = Frame(frame.module, dict(frame.names), frame.owner, frame.thing)
        made = Captured()
        for item in list(items):
            self._assign(generator.target, item, inner)
            truths = [truth(self._value(test, inner)) for test in generator.ifs]
            if any(t is UNKNOWN for t in truths):
                return UNKNOWN
            if all(truths):
                made.append(self._value(node.elt, inner))
        return pure("set", [made], {}, "") if isinstance(node, ast.SetComp) else self._kept(made)

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Any:
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
        if isinstance(owner, Bound) and owner.name in PURE:
            return owner  # tuple[int, ...]()
        return owner if isinstance(owner, State) else UNKNOWN

    def _assign(self, target: ast.expr, value: Any, frame: Frame) -> None:
        if isinstance(target, ast.Name):
            frame.names[target.id] = State("stream", value.point) if isinstance(value, LayerOutput) else value
        elif isinstance(target, ast.Attribute):
            self._set(self._value(target.value, frame), target.attr, value)
        elif isinstance(target, ast.Tuple | ast.List):
            for part, item in zip(target.elts, unpacked(value, target.elts), strict=True):
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


def _is_token_count(node: ast.expr) -> bool:
    """x.shape[0]"""
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "shape"
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == 0
    )

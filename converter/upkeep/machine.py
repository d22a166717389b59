"""Runs a few methods of a model class by hand, statement by statement, to see which states it hands out.

Nothing of the package is imported or executed: this is an interpreter of the small part of Python that setters and
forward passes use, over its own values (values.py). What is not followed becomes `Unknown`; where the outcome would
hang on one, CannotTell says so with the line. Each module here knows only those before it: memory.py what the model is,
calls.py what a call gives back, expressions.py the expressions, and this one the statements.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from converter.upkeep.expressions import Expressions
from converter.upkeep.memory import Frame
from converter.upkeep.operations import MOST, binary
from converter.upkeep.source import CannotTell, Function
from converter.upkeep.values import UNKNOWN, Bound, Captured, Stops, Thing, truth

_DEPTH = 12


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Loop(Exception):
    """break or continue"""

    def __init__(self, ends: bool) -> None:
        self.ends = ends


class Machine(Expressions):
    """Runs methods of one model's classes; afterwards `marked`, `handed_on` and `unsure` tell what they did."""

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
        frame = Frame(module, names, bound.cls, bound.owner)
        for name, given in zip(reversed(positional), reversed(spec.defaults), strict=False):
            names[name] = self._quietly(partial(self._value, given, frame))
        for parameter, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            names[parameter.arg] = UNKNOWN
            if default is not None:
                names[parameter.arg] = self._quietly(partial(self._value, default, frame))
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

    def _body(self, body: Sequence[ast.stmt], frame: Frame) -> None:
        for node in body:
            self._statement(node, frame)

    def _statement(self, node: ast.stmt, frame: Frame) -> None:
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
            if isinstance(current, Captured) and isinstance(more, list) and len(current) + len(more) <= MOST:
                current.extend(more)
            else:
                self._assign(node.target, self._kept(binary(node.op, current, more, place)), frame)
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
            if truth(self._value(node.test, frame)) is False:
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

    def _if(self, node: ast.If, frame: Frame) -> None:
        holds = truth(self._value(node.test, frame))
        if holds is not UNKNOWN:
            self._body(node.body if holds else node.orelse, frame)
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

    def _for(self, node: ast.For, frame: Frame) -> None:
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

    def _unfollowed(self, node: ast.For | ast.While, frame: Frame) -> None:
        """A loop over something unknown: no matter, unless it could capture."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(frame.names.get(inner.id), Captured):
                raise CannotTell("a loop over something unknown captures", frame.module.place(node))
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                frame.names[inner.id] = UNKNOWN


def _is_static(node: Function) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)


def _raised(node: ast.Raise) -> str:
    call = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return call.id if isinstance(call, ast.Name) else "an error"


def _loaded(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target), mode="eval").body

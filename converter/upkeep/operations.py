"""Operators, built-in functions and methods of lists, on the machine's values."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from converter.upkeep.source import CannotTell, Class
from converter.upkeep.values import PLAIN, UNKNOWN, Bound, Captured, State, Stops, Thing, Unknown

MOST = 10_000  # of a number, and of items in a list; models have far fewer layers

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.BitXor: operator.xor, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
}  # fmt: skip
#: Built-in functions that need nothing of the machine; `pure` knows `enumerate` and `islice` beside them.
PURE: dict[str, Callable[..., Any]] = {
    "len": len, "range": range, "sorted": sorted, "list": list, "tuple": tuple, "set": set, "max": max, "min": min,
    "int": int, "bool": bool, "abs": abs, "sum": sum, "reversed": lambda items: list(reversed(list(items))),
    "isinstance": isinstance,
}  # fmt: skip


def binary(op: ast.operator, left: Any, right: Any, place: str) -> Any:
    """left op right; UNKNOWN where that is not followed. Raises Stops where the types do not fit."""
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
    if isinstance(left, Captured) and isinstance(op, ast.Add) and right is UNKNOWN:
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
    return Captured(result) if isinstance(result, list) else result


def _is_small(op: ast.operator, left: Any, right: Any) -> bool:
    """Whether an operation on two values stays small: numbers, or lists put together."""
    if isinstance(left, int) and isinstance(right, int):
        return abs(left) <= MOST and abs(right) <= MOST
    if left is None or right is None:
        return isinstance(left, int | None) and isinstance(right, int | None)  # a TypeError
    lists = isinstance(left, list | tuple) and isinstance(right, list | tuple)
    return lists and isinstance(op, ast.Add) and len(left) + len(right) <= MOST


def compared(op: ast.cmpop, left: Any, right: Any) -> Any:
    """left op right; UNKNOWN where that cannot be told."""
    if isinstance(op, ast.Is | ast.IsNot):
        same = _is(left, right)
        return same if same is UNKNOWN or isinstance(op, ast.Is) else not same
    if isinstance(op, ast.In | ast.NotIn):
        if not isinstance(left, int | str | None) or not isinstance(right, list | tuple | range | set):
            return UNKNOWN
        found = left in right
        return found if isinstance(op, ast.In) else not found
    if not isinstance(left, PLAIN) or not isinstance(right, PLAIN):
        return UNKNOWN
    if isinstance(op, ast.Eq | ast.NotEq):
        return (left == right) is isinstance(op, ast.Eq)
    try:
        return bool(_OPERATORS[type(op)](left, right))
    except TypeError:
        return UNKNOWN


def _is(left: Any, right: Any) -> Any:
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return UNKNOWN
    if left is None or right is None:
        other = right if left is None else left
        return UNKNOWN if isinstance(other, Bound) and other.node is None else other is None
    return left is right if isinstance(left, bool | Class) and isinstance(right, bool | Class) else UNKNOWN


def pure(name: str, arguments: list[Any], named: dict[str, Any], place: str) -> Any:
    """A built-in function of values that are all known. Raises Stops where it would raise ValueError."""
    first = arguments[0] if arguments else None
    try:
        if name == "len":
            if isinstance(first, list | tuple | set | range | dict | str) and not getattr(first, "mixed", ""):
                return len(first)
            return UNKNOWN
        if name == "range":
            small = all(isinstance(a, int) and abs(a) <= MOST for a in arguments)
            return range(*arguments) if small else UNKNOWN
        if name == "isinstance":
            return _is_instance(*arguments)
        if not isinstance(first, list | tuple | range | set | int | None):
            return UNKNOWN
        items: Any = first  # of a number or None Python raises what is caught below
        if name == "enumerate":
            start = named.get("start", arguments[1] if len(arguments) > 1 else 0)
            return list(enumerate(items, start)) if isinstance(start, int) else UNKNOWN
        if name == "islice":
            return list(items)[slice(*arguments[1:])]
        if name == "sorted":
            return sorted(items, reverse=bool(named.get("reverse"))) if not named.get("key") else UNKNOWN
        if name == "list":
            return Captured(items or ())
        if name in ("max", "min") and not isinstance(first, int) and not first and "default" in named:
            return named["default"]
        return PURE[name](*arguments)
    except ValueError as problem:
        raise Stops("ValueError", place) from problem
    except TypeError:
        return UNKNOWN


def _is_instance(value: Any, kind: Any) -> Any:
    if isinstance(kind, Class):
        if isinstance(value, Thing) and value.cls is not None:
            return kind in value.cls.lineage
        return False if isinstance(value, State) else UNKNOWN
    return True if isinstance(value, State) and isinstance(kind, Bound) and kind.name == "Tensor" else UNKNOWN


def list_method(owner: list[Any], name: str, arguments: list[Any], place: str) -> Any:
    """A method of a list. Raises Stops where a list that is full is asked for and it is not."""
    if name in ("append", "capture") and arguments:
        owner.append(arguments[0])
    elif name == "extend" and arguments and isinstance(arguments[0], list | tuple):
        if len(owner) + len(arguments[0]) > MOST:
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

"""What the machine computes with: states, the layers and objects of a model, and what is not followed.

A tensor is a `State`: the residual stream at a capture point, or one of the two summands that engines carry it in.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from converter.upkeep.source import Class, Function, Module


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
    """Decoder layer `index` of a model. returned: see Stack."""

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
    """The code would raise `kind` here; `place` is the file:line."""

    def __init__(self, kind: str, place: str) -> None:
        super().__init__(kind)
        self.kind, self.place = kind, place


PLAIN = (int, str, tuple, list, set, range, dict, float, type(None))


def truth(value: Any) -> Any:
    """True, False, or UNKNOWN."""
    if isinstance(value, Unknown | State | LayerOutput):
        return UNKNOWN
    if isinstance(value, Captured) and value.mixed:
        return UNKNOWN
    return bool(value) if isinstance(value, PLAIN) else True


def same(one: Any, other: Any) -> bool:
    """Whether two values are interchangeable: things only with themselves."""
    if isinstance(one, Thing) or isinstance(other, Thing):
        return one is other
    return type(one) is type(other) and bool(one == other)


def of_unknown(thing: Any) -> bool:
    """Something unknown, or an attribute of it."""
    while isinstance(thing, Bound) and thing.node is None:
        thing = thing.owner
    return thing is UNKNOWN


def unpacked(value: Any, targets: Sequence[ast.expr]) -> list[Any]:
    """The values that go into each of several names: UNKNOWN where that cannot be told."""
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

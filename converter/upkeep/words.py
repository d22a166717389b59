"""What the machine is told about an engine's code, since it cannot be followed."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Words:
    """The words of one engine.

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


@cache
def mentions(code: ast.AST, names: frozenset[str]) -> bool:
    """Whether code has an attribute, or a string, of one of these names."""
    return any(
        (isinstance(n, ast.Attribute) and n.attr in names)
        or (isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value in names)
        for n in ast.walk(code)
    )

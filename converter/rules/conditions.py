"""Conditions of rule files on a checkpoint: its config's keys and its tensors' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from converter.rules.fields import lookup
from converter.rules.names import match


def marked(mark: Mapping[str, Any], config: Mapping[str, Any], names: Sequence[str]) -> bool:
    """One way to tell a dialect: a condition, or groups of them that must all hold."""
    return all_hold(mark["all"], config, names) if "all" in mark else shows(mark, config, names)


def all_hold(groups: Sequence[Mapping[str, Any]], config: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether every group does: `any` of its conditions is met, or `none`."""
    return all(_holds(group, config, names) for group in groups)


def _holds(group: Mapping[str, Any], config: Mapping[str, Any], names: Sequence[str]) -> bool:
    [(quantifier, conditions)] = group.items()
    met = any(shows(condition, config, names) for condition in conditions)
    return met if quantifier == "any" else not met


def shows(condition: Mapping[str, Any], config: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether one condition is met: a tensor of such a name, a module in a tensor's name, or a config key (of a list
    its first value) that is there, absent, or has one of some values.
    """
    if "tensor" in condition:
        return any(match(condition["tensor"], name) is not None for name in names)
    if "module" in condition:
        return any(f".{condition['module']}." in f".{name}" for name in names)
    value = lookup(config, condition["key"])
    if isinstance(value, list) and value:
        value = value[0]
    if condition.get("absent"):
        return value is None
    if "equals" in condition:
        return type(value) is type(condition["equals"]) and bool(value == condition["equals"])
    if "one_of" in condition:
        return value in condition["one_of"]
    return value is not None and ("none_of" not in condition or value not in condition["none_of"])

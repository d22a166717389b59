"""Names of tensors: patterns, tables of them, and what training wrappers put before all.

A pattern is `layers.{i}.mlp.up_proj.weight`, where `{i}` is any index and `{i+}` one of at least 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from converter.drafter.quantised import companion_of, weight_of

_HOLE = re.compile(r"\{([a-z]+)(\+?)\}")


@lru_cache(maxsize=4096)
def _regex(pattern: str) -> re.Pattern[str]:
    parts, last = [], 0
    for hole in _HOLE.finditer(pattern):
        index = "[1-9][0-9]{0,5}" if hole[2] else "0|[1-9][0-9]{0,5}"
        parts += [re.escape(pattern[last : hole.start()]), f"(?P<{hole[1]}>{index})"]
        last = hole.end()
    return re.compile("".join([*parts, re.escape(pattern[last:])]))


def match(pattern: str, name: str) -> dict[str, str] | None:
    """The indexes in `name` by placeholder, or None where it does not fit."""
    if "{" not in pattern:
        return {} if pattern == name else None
    found = _regex(pattern).fullmatch(name)
    return found.groupdict() if found else None


def fill(pattern: str, indexes: Mapping[str, str]) -> str:
    """The pattern with its placeholders filled in, as `match` found them."""
    return _HOLE.sub(lambda hole: indexes[hole[1]], pattern)


def translate(table: Mapping[str, str], name: str) -> str | None:
    """The right-hand side of the first row `theirs: canonical` whose left-hand side fits `name`."""
    for left, right in table.items():
        indexes = match(left, name)
        if indexes is not None:
            return fill(right, indexes)
    return None


def translate_back(table: Mapping[str, str], name: str) -> list[str]:
    """Every left-hand side whose right-hand side fits `name`, in the table's order."""
    names = []
    for left, right in table.items():
        indexes = match(right, name)
        if indexes is not None:
            names.append(fill(left, indexes))
    return names


def first_match(patterns: Sequence[str] | Mapping[str, str], name: str) -> str | None:
    """The first pattern that fits the name."""
    return next((p for p in patterns if match(p, name) is not None), None)


def canonical_name(table: Mapping[str, str], name: str) -> str | None:
    """What a tensor is; the scales of a quantised weight follow their weight."""
    weight = weight_of(name)
    if weight is None:
        return translate(table, name)
    canonical = translate(table, weight)
    return None if canonical is None else companion_of(name, canonical)


# What training wrappers put before every name: DistributedDataParallel, torch.compile, trainers' own modules.
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "draft_model.", "model.")


def wrapper_of(names: Sequence[str]) -> str:
    """The prefix that every tensor bears, "" where there is none: cutting one off some names would corrupt them."""
    end = 0
    while found := next((w for w in _WRAPPERS if names and all(n.startswith(w, end) for n in names)), ""):
        end += len(found)
    return names[0][:end] if names else ""


def unwrapped(names: Iterable[str]) -> list[str]:
    """The names without what a wrapper put before all of them."""
    wrapped = list(names)
    prefix = wrapper_of(wrapped)
    return [name.removeprefix(prefix) for name in wrapped]

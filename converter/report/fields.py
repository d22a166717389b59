"""Values of spec fields, and how a vocabulary map is stored, in words."""

from __future__ import annotations

from typing import Any

from converter.drafter.spec import Rope, shown_value

# VocabularyMap.source, "" for none over a full vocabulary.
STORED = {
    "offsets": "stored as offsets", "ids": "stored as ids", "t2d": "made from t2d",
    "head": "recovered from the head's rows", "": "no map, as the target has it",
}  # fmt: skip


def field_words(value: Any) -> str:
    """A value of a spec field for people, of whatever type."""
    if not isinstance(value, Rope):
        return shown_value(value)
    more = "".join(f", {name} {shown_value(part)}" for name, part in value.parameters)
    return f"{value.kind}, theta {value.theta:,.10g}{more}"

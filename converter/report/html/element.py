"""HTML and SVG elements out of Python. What is not markup already is escaped, so a stranger's text stays text."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from converter.report.words import clean

_VOID = {"meta"}


class Markup(str):
    """Text that is markup already: only `el` and `raw` make it."""


def raw(text: str) -> Markup:
    """Markup of this package's own, e.g. its style sheet; never text out of a report."""
    return Markup(text)


def text(value: object) -> Markup:
    """Any value as text: HTML escaped, control and direction characters visible."""
    return value if isinstance(value, Markup) else Markup(html.escape(clean(str(value))))


def el(tag: str, *children: Any, **attributes: Any) -> Markup:
    """An element. Children: markup, values, lists of both; None is left out.

    Attributes: `class_` is class, `view_box` is view-box; None and False are left out.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{text(value)}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    inside = "".join(_flat(children))
    return Markup(f"<{tag}{written}>" if tag in _VOID else f"<{tag}{written}>{inside}</{tag}>")


def _flat(children: Iterable[Any]) -> Iterable[Markup]:
    for child in children:
        if isinstance(child, (list, tuple)):
            yield from _flat(child)
        elif child is not None:
            yield text(child)

"""Pieces that several sections of the page are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from converter.report.html.element import Markup, el
from converter.report.reading import Document, percent


def made_by(document: Document) -> Markup:
    """The last line: which release of this tool wrote the document, and in what form."""
    tool = document["tool"]
    return el("p", f"Made by {tool['name']} {tool['version']} from a report of the form ", document["schema"], ".")


def outcome_sign(bad: bool) -> Markup:
    """The sign before a headline or the name of a drafter."""
    return sign("error", "✕") if bad else sign("good", "✓")


def fact_list(rows: Sequence[tuple[str, Any]]) -> Markup:
    """Names and what is said of them."""
    return el("dl", [[el("dt", name), el("dd", value)] for name, value in rows])


def table_of(heads: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Sequence[int] = ()) -> Markup:
    """A table that scrolls by itself where the page is narrow; `numbers` are the columns set to the right."""
    kind = ["n" if i in numbers else None for i in range(len(heads))]
    top = el("tr", [el("th", head, scope="col", class_=kind[i]) for i, head in enumerate(heads)])
    body = [el("tr", [el("td", cell, class_=kind[i]) for i, cell in enumerate(row)]) for row in rows]
    return el("div", el("table", el("thead", top), el("tbody", body)), class_="scroll", tabindex="0")


def sign(kind: str, symbol: str) -> Markup:
    """A symbol that only repeats what stands beside it, so that it is not read aloud."""
    return el("span", symbol, class_=f"sign {kind}".strip(), aria_hidden="true")


def share_of(value: float) -> Markup:
    """A share in percent, with all its digits for programs."""
    return el("data", percent(value), value=value)


def right_of(right: int, rows: int) -> list[Any]:
    """`337 of 672`."""
    return [el("data", f"{right:,}", value=right), f" of {rows:,}"]


def unbroken(words: str) -> list[Any]:
    """Text in which short words with hyphens or dashes, e.g. options and intervals, stay whole."""
    parts = re.split(r"( )", words)
    return [el("span", w, class_="whole") if re.search("[-–]", w) and len(w) < 30 else w for w in parts]

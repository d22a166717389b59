"""A document of several drafters as a page: a table of all, then each, those in order folded."""

from __future__ import annotations

import shlex
from dataclasses import replace

from converter.report.html.element import Markup, el
from converter.report.html.page import KINDS, html, sections_of, verdict_part
from converter.report.html.parts import made_by, outcome_sign, table_of, unbroken
from converter.report.reading import (
    VERDICT_SYMBOLS,
    Document,
    engine_columns,
    engine_name,
    findings,
    headline,
    percent,
)

_SHORT = 24  # characters of a name that is not broken
_LEFT = ("changes", "seal")  # validate writes nothing


def page_of_several(document: Document) -> str:
    """The whole file. `document` is valid by reports.schema.json."""
    bad = document["exit_code"] != 0
    body = el(
        "body",
        el(
            "header",
            el("p", "eagle3-convert validate", class_="kicker"),
            el("h1", outcome_sign(bad), document["headline"]),
            _summary(document),
        ),
        el("main", _drafters(document)),
        _footer(document),
    )
    return html(document["headline"], body)


def _summary(document: Document) -> Markup:
    engines = engine_columns(document)
    heads = ["drafter", "made by", *map(engine_name, engines), "errors", "warnings", "accuracy"]
    rows = []
    for number, row in enumerate(document["summary"], 1):
        said = {e["engine"]: e["word"] for e in row["engines"]}
        link = el("a", row["given"], href=f"#drafter-{number}", class_="mono")
        short = len(row["given"]) <= _SHORT
        accuracy = "–" if row["accuracy"] is None else percent(row["accuracy"])
        rows.append([
            el("span", outcome_sign(row["exit_code"] != 0), link, class_="whole" if short else None),
            row["dialect"] or "–",
            *(_word(said[e]) if e in said else "–" for e in engines),
            row["errors"],
            row["warnings"],
            accuracy,
        ])  # fmt: skip
    return table_of(heads, rows, numbers=range(len(heads) - 3, len(heads)))


def _word(word: str) -> Markup:
    return el("span", f"{VERDICT_SYMBOLS[word]} {word}", class_=KINDS.get(word, "note"))


def _drafters(document: Document) -> list[Markup]:
    parts, before = [], 0
    for number, (row, one) in enumerate(zip(document["summary"], document["drafters"], strict=True), 1):
        # Findings are numbered through, so that each has a place of its own in the page.
        found = [replace(f, number=f.number + before) for f in findings(one)]
        before += len(found)
        sections = [
            el("section", el("h3", heading), content)
            for name, heading, content in sections_of(one, found)
            if content and name not in _LEFT
        ]
        whole = el(
            "details",
            el("summary", unbroken(headline(one))),
            verdict_part(one, found),
            sections,
            open="" if row["exit_code"] else None,
        )
        parts.append(el("section", el("h2", row["given"]), whole, id=f"drafter-{number}"))
    return parts


def _footer(document: Document) -> Markup:
    command = el("pre", shlex.join(document["command"])) if document["command"] else None
    return el("footer", command, made_by(document))

"""Markdown that is safe with what strangers' files say: text, code spans, tables, launch commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from converter.report.reading import engine_name
from converter.report.words import at_margin, by_command, clean, one_line


def launches(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines of the commands that serve a drafter (`launch` of a report); engines with the same one stand together."""
    for command, engines in by_command(lines).items():
        body = clean(at_margin(command))
        fence = "`" * max(3, _longest_run(body) + 1)
        named = plain(", ".join(map(engine_name, engines)))
        yield from (f"Serve it with {named}:", "", f"{fence}sh", body, fence, "")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table whose cells are Markdown already, and an empty one behind it."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + " --- |" * len(heads)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def plain(words: str) -> str:
    """Text in which nothing is Markdown, HTML, a mention or a link, in a table too."""
    line = one_line(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*_\[\]|~$!])", r"\\\1", line)
    # Where a host makes links and mentions of bare text, an empty comment parts it.
    return re.sub(r"(@|#|://|www\.)", r"\1<!-- -->", line)


def code(words: str) -> str:
    """A code span, in a table too."""
    # A bar behind a backslash cannot be escaped within a code span: it would end the cell, and the span with it.
    line = one_line(words).replace("\\|", "\\\\u007c").replace("|", "\\|")
    fence = "`" * (_longest_run(line) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") or not line else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def _longest_run(words: str) -> int:
    return max((len(run) for run in re.findall(r"`+", words)), default=0)

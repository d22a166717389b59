"""Sections of a Markdown file that this tool renews, between markers; everything else is the user's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from converter.errors import InputError
from converter.findings import error
from converter.hub.snapshot import CARD

NAME = "eagle3-convert"
_MARK = re.compile(rf"<!-- (?P<closing>/?){NAME}:(?P<name>[a-z]+) -->")


def renewed(body: str, sections: Mapping[str, str], line_break: str, before: int = 0) -> str:
    """`body` with every section renewed where it stands; those that are not there are appended, in order.

    sections     name -> Markdown, its lines parted by \\n
    line_break   of the file
    before       lines of the file above `body`

    Raises InputError H437 where the markers of these sections are not one pair each, one behind the other.
    """
    places = _places(body, sections, before)
    new, end = "", 0
    for (start, stop), name in sorted((place, name) for name, place in places.items()):
        new += body[end:start] + _between(sections[name], line_break)
        end = stop
    new += body[end:]
    for name in (n for n in sections if n not in places):
        if new and not new.endswith(("\n", "\r")):
            new += line_break
        if new and not new.endswith((line_break * 2, "\n\n")):
            new += line_break
        new += f"<!-- {NAME}:{name} -->{_between(sections[name], line_break)}<!-- /{NAME}:{name} -->{line_break}"
    return new


def harmless(words: str) -> str:
    """Markdown in which nothing is one of these markers."""
    return _MARK.sub(lambda mark: f"&lt;{mark[0][1:]}", words)


def _between(section: str, line_break: str) -> str:
    return line_break.join(["", "", *harmless(section).strip().split("\n"), "", ""])


def _places(body: str, sections: Mapping[str, str], before: int) -> dict[str, tuple[int, int]]:
    """Where the text between each pair of markers is."""
    found: dict[str, tuple[int, int]] = {}
    opened: re.Match[str] | None = None
    for mark in (m for m in _MARK.finditer(body) if m["name"] in sections):
        line = before + line_of(body, mark.start())
        if mark["closing"] and (opened is None or opened["name"] != mark["name"]):
            raise damaged(line, f"{mark[0]} closes nothing that is open")
        if not mark["closing"]:
            if opened is not None:
                raise damaged(before + line_of(body, opened.start()), f"{opened[0]} is not closed before the next one")
            if mark["name"] in found:
                raise damaged(line, f"{mark[0]} is there a second time")
            opened = mark
            continue
        assert opened is not None
        found[mark["name"]] = (opened.end(), mark.start())
        opened = None
    if opened is not None:
        raise damaged(before + line_of(body, opened.start()), f"{opened[0]} is not closed")
    return found


def line_of(text: str, index: int) -> int:
    """The number of the line that holds a character, from 1."""
    return len(re.findall(r"\r\n|\n|\r", text[:index])) + 1


def damaged(line: int, what: str) -> InputError:
    """H437 for markers that cannot be followed."""
    return InputError(
        error(
            "H437",
            f"the sections of {CARD} that eagle3-convert renews cannot be told from yours: {what}",
            where=f"{CARD}, line {line}",
            expected="for each section one opening and one closing marker behind it, as they were written",
            fix=(
                "put the marker back, the closing one behind the last line of the section",
                "or delete the section with all its markers: it is written anew, at the end",
            ),
        )
    )

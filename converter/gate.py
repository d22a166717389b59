"""Whether a sealed drafter may leave this machine: its files against its seal, its proof against what is required."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from converter import seal
from converter.findings import LEVELS, Finding, Level, error


def may_leave(
    document: Mapping[str, Any] | None,
    files: Mapping[str, seal.Listed],
    where: str,
    require: Level = "sample",
) -> list[Finding]:
    """What keeps the folder `where` back; none of it where it may go.

    document  its seal, None where it has none (H413)
    files     what lies in it now (C233)
    require   the proof level that the seal must state at least (H414)
    """
    if document is None:
        return [
            error(
                "H413",
                f"{where} is not sealed",
                where=where,
                expected=f"{seal.NAME}, which eagle3-convert writes",
                why="nothing says what it was made from, or that an engine computes what was trained",
                fix=("eagle3-convert CHECKPOINT OUT --sample SAMPLE    writes a sealed folder",),
            )
        ]
    return changed_since(document, files, where) + too_little_proof(document, where, require)


def changed_since(document: Mapping[str, Any], files: Mapping[str, seal.Listed], where: str) -> list[Finding]:
    """C233 where an output is not what was sealed."""
    found = [str(file) for file in seal.compared(document, files) if file.differs]
    if not found:
        return []
    made_from = seal.text_at(document, "source.given")
    return [
        error(
            "C233",
            f"this output was changed since it was sealed: {'; '.join(found[:4])}{'; ...' if len(found) > 4 else ''}",
            where=f"{where}/{seal.NAME}",
            why="what was checked and proved when it was written need not hold of it any more",
            fix=(
                "copy the folder again, whole",
                f"or convert again: {shlex.join(['eagle3-convert', made_from or 'CHECKPOINT'])} OUT --sample SAMPLE",
                f"to see what differs: {shlex.join(['eagle3', 'diff', made_from or 'CHECKPOINT', where])}",
            ),
        )
    ]


def level_of(document: Mapping[str, Any]) -> Level:
    """The proof level that a seal states; "none" where it states none that is known."""
    stated = seal.text_at(document, "proof.level")
    return next((level for level in LEVELS if level == stated), "none")


def too_little_proof(document: Mapping[str, Any], where: str, require: Level) -> list[Finding]:
    """H414 where the seal states a lower proof level than `require`."""
    level = level_of(document)
    if LEVELS.index(level) >= LEVELS.index(require):
        return []
    made_from = seal.text_at(document, "source.given") or "CHECKPOINT"
    return [
        error(
            "H414",
            f"{where} is proved to the level {level!r}, and {require!r} is required",
            where=f"{where}/{seal.NAME}",
            found=f"proof level {level}",
            expected=f"{require}, or above: {', '.join(LEVELS[LEVELS.index(require) + 1 :]) or 'there is none'}",
            fix=(
                f"convert again, with a sample: {shlex.join(['eagle3-convert', made_from])} OUT --sample SAMPLE",
                f"or ask for less: --require {level}",
            ),
        )
    ]

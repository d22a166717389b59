"""`.eagle3.toml` at the top of a repository: what its drafters must have to be pushed (schemas/policy.schema.json)."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from converter.errors import InputError
from converter.findings import Level, error

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = ".eagle3.toml"
Unsealed = Literal["refuse", "validate", "allow"]


@dataclass(frozen=True)
class Policy:
    """require    the proof level that a seal must state at least
    unsealed   what becomes of a drafter without a seal: stopped, checked statically, or let through
    commits    "all": every pushed commit counts; "tips": only what the pushed refs show
    ignore     folders that are not looked at: patterns in which * stands for any characters, slashes too
    """

    require: Level = "sample"
    unsealed: Unsealed = "refuse"
    commits: Literal["all", "tips"] = "all"
    ignore: tuple[str, ...] = ()

    def ignores(self, path: str) -> bool:
        """Whether `path` (the top folder is ".") or a folder that it lies in is left out."""
        parts = path.split("/")
        above = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        return any(fnmatchcase(folder, pattern.rstrip("/")) for folder in above for pattern in self.ignore)


def parse_policy(text: bytes, where: str) -> Policy:
    """Raises InputError H427 with key and line; `where` names the file and its commit."""
    try:
        words = text.decode()
        document = tomllib.loads(words)
    except UnicodeDecodeError as problem:
        raise _refused(where, [f"no UTF-8 text at byte {problem.start}"]) from problem
    except tomllib.TOMLDecodeError as problem:
        raise _refused(where, [str(problem)]) from problem
    from converter.rules.schema import check

    faults = check(document, "policy")
    if faults:
        raise _refused(where, [_with_line(fault, words, document) for fault in faults])
    return replace(Policy(), **(document | {"ignore": tuple(document.get("ignore", ()))}))


def _with_line(fault: str, text: str, document: Mapping[str, Any]) -> str:
    """The fault behind the line where its key stands: in this file keys are not nested."""
    key = next((key for key in document if re.match(rf"{re.escape(key)}\b|.*'{re.escape(key)}'", fault)), "")
    lines = text.splitlines()
    line = next((i for i, row in enumerate(lines, 1) if key and re.match(rf"\s*[\[\"']*{re.escape(key)}\b", row)), 0)
    return f"line {line}: {fault}" if line else fault


def _refused(where: str, faults: list[str]) -> InputError:
    return InputError(
        error(
            "H427",
            f"{where} cannot be followed: {'; '.join(faults)}",
            where=where,
            why="what may leave is not known, so nothing does",
            fix=("correct it and commit it: docs/hooks.md has all keys",),
        )
    )

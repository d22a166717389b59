"""IN: a folder, or one file of weights with its config.json beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converter.checkpoint.jsonfile import read_object
from converter.checkpoint.pickled import find_pickles, open_pickles
from converter.checkpoint.reader import Checkpoint, open_checkpoint
from converter.errors import InputError
from converter.findings import error

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


@dataclass(frozen=True)
class Source:
    """given: as the user named it; folder: where the config and the files beside the weights are; weights: the files
    that hold the tensors."""

    given: str
    folder: Path
    weights: tuple[Path, ...]
    checkpoint: Checkpoint
    config: Mapping[str, Any]


def open_source(given: str) -> Source:
    """Open IN. Raises InputError: F100 missing, F107 no weights, F111 no config, and what the files raise."""
    path = Path(given)
    if not path.exists():
        raise _not_there(given)
    if path.name == "config.json":
        path = path.parent
    checkpoint, weights = _open(path)
    folder = path if path.is_dir() else path.parent
    file = folder / "config.json"
    if not file.is_file():
        raise _no_config(folder)
    return Source(given, folder, weights, checkpoint, read_object(file))


def _no_config(folder: Path) -> InputError:
    inner = sorted(p.parent for p in folder.glob("*/config.json"))
    return InputError(
        error(
            "F111",
            f"no config.json in {folder}",
            where=str(folder),
            why="it says what kind of drafter this is and how it was trained",
            fix=(f"did you mean {inner[0]}?",)
            if inner
            else ("copy the config.json that the trainer wrote beside the weights",),
        )
    )


def _open(path: Path) -> tuple[Checkpoint, tuple[Path, ...]]:
    """Safetensors first; pickles only where there are none."""
    pickles = find_pickles(path) if path.is_file() else []
    if not pickles:
        try:
            checkpoint = open_checkpoint(path)
            return checkpoint, tuple(checkpoint.files)
        except InputError as problem:
            pickles = find_pickles(path) if problem.finding.code == "F107" else []
            if not pickles:
                raise
    return open_pickles(pickles), tuple(pickles)


def _not_there(given: str) -> InputError:
    given = re.sub(r"^https?://[^/]+/", "", given)  # a page of the Hub
    hub = _HUB_ID.fullmatch(given)
    fix = f"hf download {given.split('@')[0]} --local-dir drafter    then convert drafter/" if hub else ""
    return InputError(error("F100", f"{given} does not exist", where=given, fix=(fix,) if fix else ("check the path",)))

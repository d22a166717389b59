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
    """given: as the user named it; folder: where the config and the files beside the weights are."""

    given: str
    folder: Path
    checkpoint: Checkpoint
    config: Mapping[str, Any]


def open_source(given: str) -> Source:
    """Open IN. Raises InputError: F100 missing, F107 no weights, F111 no config, and what the files raise."""
    path = Path(given)
    if not path.exists():
        raise _not_there(given)
    checkpoint = _open(path)
    folder = path if path.is_dir() else path.parent
    file = folder / "config.json"
    if not file.is_file():
        raise InputError(
            error(
                "F111",
                f"no config.json in {folder}",
                where=str(folder),
                why="it says what kind of drafter this is and how it was trained",
                fix=("copy the config.json that the trainer wrote beside the weights",),
            )
        )
    return Source(given, folder, checkpoint, read_object(file))


def _open(path: Path) -> Checkpoint:
    """Safetensors first; pickles only where there are none."""
    if path.is_file() and path.suffix != ".safetensors":
        pickles = find_pickles(path)
        if pickles:
            return open_pickles(pickles)
    try:
        return open_checkpoint(path)
    except InputError as problem:
        if problem.finding.code != "F107":
            raise
        pickles = find_pickles(path)
        if not pickles:
            raise
    return open_pickles(pickles)


def _not_there(given: str) -> InputError:
    hub = _HUB_ID.fullmatch(given)
    fix = f"hf download {given.split('@')[0]} --local-dir drafter    then convert drafter/" if hub else ""
    return InputError(error("F100", f"{given} does not exist", where=given, fix=(fix,) if fix else ("check the path",)))

"""JSON files of a checkpoint folder, read strictly: no duplicate keys, no NaN, bounded in size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from converter.errors import InputError
from converter.findings import error

MAX_BYTES = 64_000_000  # an index of a million tensors is about this long


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises InputError: F100 unreadable, F110 not a JSON object."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as problem:
        raise InputError(
            error("F100", f"cannot read {path}: {problem.strerror or problem}", where=str(path))
        ) from problem
    try:
        if len(text) > MAX_BYTES:
            raise ValueError(f"larger than {MAX_BYTES:,} bytes")
        document = json.loads(text, object_pairs_hook=no_duplicates, parse_constant=_no_constant)
        if not isinstance(document, dict):
            raise ValueError("it holds no JSON object")
    except RecursionError as problem:
        raise _not_json(path, "it is nested too deeply") from problem
    except ValueError as problem:
        raise _not_json(path, str(problem)) from problem
    return document


def _not_json(path: Path, what: str) -> InputError:
    return InputError(error("F110", f"cannot make sense of {path.name}: {what}", where=str(path)))


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json.loads: a key given twice is an error, not the last one silently."""
    document: dict[str, Any] = {}
    for key, value in pairs:
        if key in document:
            raise ValueError(f"the key {key!r} appears twice")
        document[key] = value
    return document


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")

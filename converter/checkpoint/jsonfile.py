"""JSON of a checkpoint, read strictly: UTF-8, no duplicate keys, no NaN or infinity, bounded in size."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from converter.errors import InputError
from converter.findings import error

MAX_BYTES = 64_000_000  # an index of a million tensors is about this long
_DEEPEST = 100  # objects and lists within each other; configs have about 5, and serde_json, of engines, takes 127
_LONGEST_KEY = 4096  # characters; the longest names of tensors and of tokens have some hundred
_LONGEST_TEXT = 20_000  # characters of a value in a config or a seal: it is told to people
_TEMPLATE = "chat_template"  # some configs hold it; those of models with tools have more, and nobody is told them
_MAX_MESSAGE = 300  # characters: what a stranger's file says must not flood the terminal
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_object(path: Path, pipe: bool = False) -> dict[str, Any]:
    """The JSON object in `path`. Raises InputError: F100 unreadable, F110 not a JSON object.

    pipe  as `read_bounded` has it
    """
    text = read_bounded(path, pipe)
    try:
        document = parse(text)
        if not isinstance(document, dict):
            raise ValueError("it holds no JSON object")
    except ValueError as problem:
        raise _not_json(path, str(problem)) from problem
    return document


def read_bounded(path: Path, pipe: bool = False) -> bytes:
    """What is in a file of text. Raises InputError: F100 unreadable, F110 larger than MAX_BYTES.

    pipe  it may be one, or a device: in a folder, nobody writes to it, and reading it would never end
    """
    try:
        mode = path.stat().st_mode
        if not (pipe or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a folder says what it is
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as problem:
        raise unreadable(path, problem) from problem
    if len(text) > MAX_BYTES:
        raise _not_json(path, f"larger than {MAX_BYTES:,} bytes")
    return text


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in a config.json or a seal, whose values and keys are told to people. Raises InputError as
    `read_object` does.
    """
    document = read_object(path)
    # With the characters of the keys that lead there, a dot behind each.
    waiting: list[tuple[Any, int]] = [(document, 0)]
    while waiting:
        node, above = waiting.pop()
        if above > _LONGEST_KEY + 1:
            raise _not_json(path, f"keys within each other have {above - 1:,} characters, more than {_LONGEST_KEY:,}")
        if isinstance(node, str) and len(node) > _LONGEST_TEXT:
            raise _not_json(path, f"a value has {len(node):,} characters, more than {_LONGEST_TEXT:,}")
        if isinstance(node, dict):
            waiting += [(part, above + len(key) + 1) for key, part in node.items() if key != _TEMPLATE]
        elif isinstance(node, list):
            waiting += [(part, above) for part in node]
    return document


def unreadable(path: Path, problem: OSError) -> InputError:
    """F100: what to raise where a file cannot be read."""
    return InputError(error("F100", f"cannot read {path}: {problem.strerror or problem}", where=str(path)))


@contextmanager
def reading(place: Path) -> Iterator[None]:
    """OSErrors inside are those of files that are read: InputError F100 of the file that failed, else of `place`."""
    try:
        yield
    except OSError as problem:
        named = problem.filename
        raise unreadable(Path(os.fsdecode(named)) if isinstance(named, (str, bytes)) else place, problem) from problem


def _not_json(path: Path, what: str) -> InputError:
    return InputError(
        error(
            "F110",
            f"cannot make sense of {path.name}: {shortened(what)}",
            where=str(path),
            fix=("correct it there, or put back the file that was saved with the checkpoint",),
        )
    )


def parse(text: bytes) -> Any:
    """The JSON value in `text`; ValueError for whatever strict parsers refuse, though Python's own would not."""
    try:
        document = json.loads(
            text.decode(),
            object_pairs_hook=_no_duplicates,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_integer,
        )
        if _deeper(document, _DEEPEST):  # whoever walks it may call itself
            raise ValueError("it is nested too deeply")
        if _SURROGATE.search(text):  # half a pair is no character and could not be written out again
            json.dumps(document, ensure_ascii=False).encode()
    except RecursionError as problem:
        raise ValueError("it is nested too deeply") from problem
    return document


def dumped(document: Any) -> str:
    """JSON that any strict parser reads: bytes of names that are no text (PEP 383) become the characters \\udcff."""
    text = json.dumps(document, indent=2)
    if _SURROGATE.search(text.encode()):
        text = json.dumps(in_text(document), indent=2)
    return text + "\n"


def in_text(value: Any) -> Any:
    """A JSON value with such bytes as `dumped` writes them."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {in_text(key): in_text(part) for key, part in value.items()}
    return [in_text(part) for part in value] if isinstance(value, (list, tuple)) else value


def _deeper(document: Any, depth: int) -> bool:
    """Whether more than `depth` objects and lists lie within each other."""
    level = [document]
    for _ in range(depth):
        level = [
            part
            for node in level
            if isinstance(node, dict | list)
            for part in (node.values() if isinstance(node, dict) else node)
            if isinstance(part, dict | list)
        ]
        if not level:
            return False
    return True


def shortened(text: str) -> str:
    """The first 300 characters of what a stranger wrote."""
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "..."


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in pairs:
        if len(key) > _LONGEST_KEY:
            raise ValueError(f"a key has {len(key):,} characters: {key[:40]!r}...")
        if key in document:
            raise ValueError(f"the key {key!r} appears twice")
        document[key] = value
    return document


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number} is out of range")
    return value


def _integer(number: str) -> int | float:
    return -0.0 if number == "-0" else int(number)  # no integer to safetensors' parser either

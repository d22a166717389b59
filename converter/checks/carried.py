"""Files beside the weights that go over as they are: none that says what code is to be run, none from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from converter.checkpoint.jsonfile import read_object
from converter.checkpoint.paths import is_here, real
from converter.errors import InputError
from converter.findings import Finding, warning
from converter.tokenizer import SETTINGS

_CODE = "auto_map"  # class names that transformers loads from files of the folder, or of a repository, where it may


def stays_behind(file: Path) -> bool:
    """Whether a file that would be carried over is left out."""
    return leads_out(file) or (file.name == SETTINGS and bool(_classes(_settings(file))))


def leads_out(file: Path) -> bool:
    """True of a link to a file outside its folder, but for those of huggingface_hub's cache, which keeps contents in
    `blobs` beside `snapshots`."""
    if not file.is_symlink():
        return False
    there, folder = real(file), real(file.parent)
    kept = [p.parent / "blobs" for p in folder.parents if p.name == "snapshots"]
    return not any(there.is_relative_to(place) for place in (folder, *kept))


def check_carried(folder: Path, config: Mapping[str, Any], carried: list[Path]) -> Iterator[Finding]:
    """F140 where code of a stranger is named, F141 where a link leads out of the folder; `carried` are the files that
    would go over."""
    # What trainers write names files of their packages, which are not in the folder.
    there = [n for n in _classes(config) if "--" in n or is_here(folder / f"{n.split('.')[0]}.py")]
    if there:
        yield _code("config.json", there)
    for file in carried:
        if leads_out(file):
            yield warning(
                "F141",
                f"{file.name} is a link that leads out of the folder; it is not carried over",
                where=str(file),
                found=str(real(file)),
                why="whoever made the folder would choose which file of this machine goes on with the drafter",
                fix=("if it is meant: put a copy of the file in its place",),
            )
        elif file.name == SETTINGS and (named := _classes(_settings(file))):
            yield _code(file.name, named)


def _code(file: str, classes: list[str]) -> Finding:
    return warning(
        "F140",
        f"{file} names code to be run: {classes[0]}",
        where=f"{_CODE} in {file}",
        found=", ".join(classes[:4]),
        why="a program that is told to trust it runs what its author wrote; nothing of it is run or carried over here",
        fix=("nothing, if the drafter is served by an engine: it runs its own classes, with the target's tokenizer",),
    )


def _classes(document: Mapping[str, Any]) -> list[str]:
    """`module.Class` or `repository--module.Class`, one for each auto class or a list of them."""
    table = document.get(_CODE)
    values = table.values() if isinstance(table, Mapping) else ()
    named = [name for value in values for name in (value if isinstance(value, list) else [value])]
    return [name for name in named if isinstance(name, str) and name]


def _settings(file: Path) -> Mapping[str, Any]:
    try:
        return read_object(file)
    except InputError:
        return {}

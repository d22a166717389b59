"""IN: a folder, one file of weights with its config.json beside it, or a drafter on the Hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from converter.checkpoint.jsonfile import read_config
from converter.checkpoint.pickled import find_pickles, open_pickles
from converter.checkpoint.reader import Checkpoint, Stamp, open_checkpoint
from converter.errors import InputError
from converter.findings import Finding, error
from converter.hub.ids import HubId, also_an_id, hub_id
from converter.hub.pull import pull
from converter.hub.refusals import not_cached
from converter.hub.secrets import masked
from converter.hub.snapshot import two_meanings

_PARTLY = ("F100", "F107", "F108", "F111")  # what a folder raises of which some files are missing
# Files beside the weights that belong to the drafter and not to its training run.
CARRIED = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", "LICENSE*", "LICENCE*", "NOTICE*",
)  # fmt: skip
SEAL = "eagle3-seal.json"  # of a drafter that this tool wrote
SIGNATURE = "eagle3-seal.sig"  # of the seal and all files that it lists


@dataclass(frozen=True)
class Source:
    """given: as the user named it; folder: where the config and the files beside the weights are; weights: the files
    that hold the tensors.

    stamp    of the config, as it was before it was read
    commit   of the repository that it was fetched from, 40 hex digits; "" for files that are here
    notes    what is to be said of where it came from
    """

    given: str
    folder: Path
    weights: tuple[Path, ...]
    checkpoint: Checkpoint
    config: Mapping[str, Any]
    stamp: Stamp
    commit: str = ""
    notes: tuple[Finding, ...] = ()

    def assert_unchanged(self) -> None:
        """Raise InputError F109 where the config or a file of weights was written to since it was opened."""
        file = self.folder / "config.json"
        if Stamp.of(file) != self.stamp:
            raise Checkpoint.changed(file)
        self.checkpoint.assert_unchanged()


def open_source(given: str) -> Source:
    """Open IN. Raises InputError: F100 missing, F107 no weights, F111 no config, what the files raise, and of a drafter
    on the Hub H401 to H409; OutputError where it cannot be kept.
    """
    named = hub_id(given)
    if named is not None:
        return _pulled(given, named)
    try:
        return replace(_on_disk(given), notes=two_meanings(given))
    except InputError as problem:
        other, finding = also_an_id(given), problem.finding
        if other is None or finding.code not in ("F107", "F111"):
            raise
        fix = (*finding.fix, f"if the repository on the Hub was meant: {other.uri}")
        raise InputError(replace(finding, fix=fix)) from problem


def carried_files(folder: Path) -> list[Path]:
    """The files of a folder that belong to the drafter beside its weights and its config, by name."""
    files = sorted(p for p in folder.iterdir() if p.is_file()) if folder.is_dir() else []
    return [p for p in files if any(p.match(pattern) for pattern in CARRIED)]


def _pulled(given: str, named: HubId) -> Source:
    pulled = pull(named, (*CARRIED, SEAL))
    try:
        source = _on_disk(str(pulled.place))
    except InputError as problem:
        if not pulled.complete and problem.finding.code in _PARTLY:
            raise not_cached(named, "a part") from problem
        raise
    return replace(source, given=given, commit=pulled.commit, notes=pulled.notes)


def _on_disk(given: str) -> Source:
    path = Path(given)
    if not path.exists():
        raise not_there(given)
    if path.name == "config.json":
        path = path.parent
    checkpoint, weights = _open(path)
    folder = path if path.is_dir() else path.parent
    file = folder / "config.json"
    if not file.is_file():
        raise _no_config(folder)
    stamp = Stamp.of(file)
    return Source(given, folder, weights, checkpoint, read_config(file), stamp)


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


def not_there(given: str) -> InputError:
    """F100 for IN, which is no path here; of a page of the Hub it says how that is named."""
    page = re.fullmatch(r"https?://[^/]+/([^/]+/[^/]+)(/(?:tree|blob)/([^/]+)(/.+)?)?/?", given)  # of the Hub
    fix = "check the path, or name a drafter on the Hub: org/name"
    if page is not None:
        revision = f"@{page[3]}" if page[3] else ""
        fix = f"did you mean hf://{page[1]}{revision}{page[4] or ''}?"
    shown = masked(given)  # a URL, perhaps, as git has them
    return InputError(error("F100", f"{shown} does not exist", where=shown, fix=(fix,)))

"""A drafter out of a repository: its config, its weights and what belongs beside them, and nothing else."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from converter.checkpoint.jsonfile import read_object
from converter.checkpoint.pickled import ENDINGS, WEIGHTS
from converter.checkpoint.pickled import INDEX as PICKLE_INDEX
from converter.checkpoint.reader import INDEX, SINGLE, natural, several_files, two_forms
from converter.errors import InputError
from converter.findings import Finding, error
from converter.hub.ids import HubId
from converter.hub.refusals import endpoint, no_file
from converter.hub.snapshot import CONFIG, Snapshot, look_up


@dataclass(frozen=True)
class Pulled:
    """place: the folder or file that was named, in the cache; complete: False where only that could be asked."""

    place: Path
    commit: str
    complete: bool
    notes: tuple[Finding, ...]


def pull(named: HubId, beside: Sequence[str]) -> Pulled:
    """Fetch what is missing of the drafter. `beside`: patterns of small files that are read or carried over.

    Training states, optimizers, GGUF files and pickles beside safetensors stay where they are. Raises InputError H401
    to H409, F108 or F115, and OutputError.
    """
    path = PurePosixPath(named.path)
    one = path.name if path.suffix in (".safetensors", *ENDINGS) else ""
    above = str(path.parent) if path.parent.name else ""
    folder = HubId(named.repo, named.revision, above if one else named.path)
    at = look_up(named, folder.file(CONFIG))
    if at.files is None:
        place = at.root(folder.file(CONFIG)) / named.path
        return Pulled(place, at.commit, False, at.notes)
    names = {name for name in map(folder.within, at.files) if name}
    if one and one not in names:
        raise no_file(named, named.path)
    weights = [one] if one else _weights(at, folder, names)
    if CONFIG not in names or not weights:
        raise _no_drafter(folder, at.files, names)
    small = sorted(n for n in names if any(fnmatchcase(n, pattern) for pattern in beside))
    for name in (CONFIG, *small, *weights):
        at.fetch(folder.file(name))
    return Pulled(at.root(folder.file(CONFIG)) / named.path, at.commit, True, at.notes)


def _weights(at: Snapshot, folder: HubId, names: Collection[str]) -> list[str]:
    """Names of the weight files in the folder, an index first, as `open_checkpoint` would choose them; none where there
    are only files of other kinds.
    """
    found = sorted(n for n in names if n.endswith(".safetensors"))
    if INDEX in names:
        shards = _shards(at, folder, INDEX, names)
        if SINGLE in found and SINGLE not in shards:
            raise two_forms(str(folder), folder.inside(SINGLE).uri)
        return [INDEX, *shards]
    if SINGLE in found:
        return [SINGLE]
    if len(found) > 1:
        raise several_files(str(folder), found, folder.inside(found[0]).uri)
    if found:
        return found
    if PICKLE_INDEX in names:
        return [PICKLE_INDEX, *_shards(at, folder, PICKLE_INDEX, names)]
    return [n for n in WEIGHTS if n in names][:1]


def _shards(at: Snapshot, folder: HubId, index: str, names: Collection[str]) -> list[str]:
    weight_map = read_object(at.fetch(folder.file(index))).get("weight_map")
    shards = sorted({str(v) for v in weight_map.values()}) if isinstance(weight_map, Mapping) else []
    missing = [n for n in shards if n not in names]
    if missing or not shards:
        raise InputError(
            error(
                "F108",
                f"{index} names files that the repository does not have" if missing else f"{index} names no files",
                where=str(folder),
                found=f"no {', '.join(missing[:5])}"[:200] if missing else "",
                fix=(f"see {endpoint()}/{folder.repo}/tree/{folder.revision or 'main'}",),
            )
        )
    return shards


def _no_drafter(folder: HubId, files: Collection[str], names: Collection[str]) -> InputError:
    """What the folder holds instead, and where in the repository there is a drafter."""
    folders = sorted(_drafters(folder, files), key=natural)
    if folders:
        newest = folder.inside(max(folders, key=_number)).uri
        which = "one of them; the newest is" if len(folders) > 1 else "it:"
        listed = ", ".join(folders[:20]) + (f" and {len(folders) - 20} more" if len(folders) > 20 else "")
        return InputError(
            error(
                "H409",
                f"{folder} holds {len(folders)} checkpoints in folders, and none at its top"
                if len(folders) > 1
                else f"the drafter of {folder} is in a folder of it",
                where=str(folder),
                found=listed,
                fix=(f"name {which} {newest}",),
            )
        )
    weights = [n for n in names if n.endswith(".safetensors") or n in WEIGHTS]
    states = sorted(n for n in names if n.endswith(ENDINGS) and n not in WEIGHTS)
    fix = f"check the name: {endpoint()}/{folder.repo}"
    if weights:
        fix = "push the config.json that the trainer wrote beside the weights"
    elif states and CONFIG in names:
        words = ["hf", "download", folder.repo, "--local-dir", "drafter", "--include", folder.file("*")]
        get = shlex.join(words)
        fix = f"if one of them holds the drafter: {get}    and name the file"
    kinds = (".safetensors", ".gguf", *ENDINGS)
    shown = sorted(n for n in names if n == CONFIG or n.endswith(kinds)) or sorted(names)
    return InputError(
        error(
            "H408",
            f"there is no drafter in {folder}",
            where=str(folder),
            found=", ".join(shown[:8])[:300] + (", ..." if len(shown) > 8 else "") if shown else "no files there",
            expected=CONFIG if weights else f"{CONFIG} and {SINGLE}, or shards with {INDEX}",
            fix=(fix,),
        )
    )


def _drafters(folder: HubId, files: Collection[str]) -> list[str]:
    """Folders below that have a config and weights, relative to `folder`."""
    below = [PurePosixPath(f).relative_to(folder.path) for f in files if folder.holds(f)]
    configs = {p.parent for p in below if p.name == CONFIG}
    weights = {p.parent for p in below if p.suffix == ".safetensors" or p.name in WEIGHTS}
    return [str(p) for p in configs & weights if str(p) != "."]


def _number(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Checkpoints are numbered by epoch or step; what bears no number (best, last) is older than all that do."""
    digits = re.findall(r"[0-9]{1,18}", name)
    return (int(digits[-1]) if digits else -1, natural(name))

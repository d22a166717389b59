"""Whether the drafters in a push may leave: seals against the ids of LFS pointers, and static checks where there is no
seal to go by. Contents of LFS files are read for the latter alone.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from converter import gate, seal
from converter.checkpoint.header import read_header
from converter.checkpoint.jsonfile import read_object
from converter.errors import InputError, UsageError
from converter.findings import Finding, Level, counts, error, stops
from converter.hook.git import Git, Objects
from converter.hook.lfs import LONGEST, Pointer, Store, parse_pointer
from converter.hook.policy import NAME as POLICY
from converter.hook.pushed import CONFIG, TOP, Folder, Ref, folders, weights_in

State = Literal["sealed", "unsealed", "validated", "allowed", "ignored"]


@dataclass(frozen=True)
class Looked:
    """A drafter in a push.

    state         sealed; unsealed (and stopped); by the policy: validated, allowed (both unsealed) or ignored
    level         the proof level that its seal states
    let_through   codes that were allowed when it was sealed
    findings      what keeps it back
    """

    folder: Folder
    state: State
    level: Level = "none"
    let_through: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def stopped(self) -> bool:
        return stops(self.findings)


def look_at(git: Git, refs: Iterable[Ref], remote: str | None) -> list[Looked]:
    """Every drafter in what the refs will show, and in the commits that are new to `remote` (None: in no other).

    Raises InputError: H427 for a policy, H429 for what git cannot read.
    """
    with Objects(git) as objects:
        checker = _Checker(git, objects)
        looked = (checker.look(folder) for folder in folders(git, objects, refs, remote))
        return [found for found in looked if found is not None]


class _NotHere(Exception):
    """A pointer's contents are not on this machine; the message names the files."""


class _Checker:
    def __init__(self, git: Git, objects: Objects) -> None:
        self._objects = objects
        self._store = Store(git)

    def look(self, folder: Folder) -> Looked | None:
        """None where the folder holds no drafter."""
        if folder.policy.ignores(folder.path):
            return Looked(folder, "ignored")
        return self._sealed(folder) if folder.sealed else self._unsealed(folder)

    def _sealed(self, folder: Folder) -> Looked:
        with tempfile.TemporaryDirectory(prefix="eagle3-") as place:
            try:
                self._put(folder, seal.NAME, Path(place))
            except _NotHere as problem:
                return Looked(folder, "sealed", findings=(_not_here(folder, str(problem)),))
            try:
                # What can be read is held against the files as it is: to load a checker of schemas takes as long as all
                # the rest. What cannot be is told why.
                document = seal.read_seal(Path(place)) or seal.sound_seal(Path(place, seal.NAME))
            except InputError as problem:
                return Looked(folder, "sealed", findings=(_moved(problem.finding, place, folder.path),))
        found = gate.may_leave(document, self._listing(folder), folder.path, folder.policy.require)
        if any(f.code == "C233" for f in found):
            found += self._faults(folder)
        allowed = tuple(seal.texts_at(document, "allowed"))
        return Looked(folder, "sealed", gate.level_of(document), allowed, tuple(map(_for_git, found)))

    def _unsealed(self, folder: Folder) -> Looked | None:
        policy = folder.policy
        with self._laid_out(folder) as (place, missing):
            if not _is_drafter(place):
                return None
            if policy.unsealed == "allow":
                return Looked(folder, "allowed")
            decides = policy.unsealed == "validate"
            findings = [] if decides else gate.may_leave(None, {}, folder.path)
            if not missing:
                findings += _static(place, folder, scan=decides)
            elif decides:
                findings.append(_not_here(folder, ", ".join(missing)))
        state: State = "validated" if decides else "unsealed"
        return Looked(folder, state, findings=tuple(_for_git(f) for f in findings))

    def _faults(self, folder: Folder) -> list[Finding]:
        """What the static checks say of a folder whose contents are at hand; nothing of others."""
        with self._laid_out(folder) as (place, missing):
            found = [] if missing else _static(place, folder, scan=False)
        return [f for f in found if f.code != "C233"]

    def _listing(self, folder: Folder) -> Mapping[str, seal.Listed]:
        listed = {}
        for name, entry in folder.files.items():
            if name == seal.NAME:
                continue
            pointer = self._pointer(entry.oid) if entry.is_file else None
            if pointer is not None:
                listed[name] = seal.Listed(pointer.size, partial(str, pointer.sha256))
            elif entry.mode != "160000":  # of a link: the text that git keeps of it
                listed[name] = seal.Listed(self._size(entry.oid), partial(self._objects.sha256, entry.oid))
        return listed

    def _size(self, oid: str) -> int:
        found = self._objects.look(oid)
        return found.size if found is not None else len(self._objects.read(oid))  # which says that it is missing

    def _pointer(self, oid: str) -> Pointer | None:
        return parse_pointer(self._objects.read(oid)) if self._size(oid) <= LONGEST else None

    @contextmanager
    def _laid_out(self, folder: Folder) -> Iterator[tuple[Path, list[str]]]:
        """The folder as a checkout would have it, large files as links, and what of config, seal and weights is not at
        hand.
        """
        with tempfile.TemporaryDirectory(prefix="eagle3-") as place:
            missing = []
            needed = {CONFIG, seal.NAME, *weights_in(folder.files)}
            for name, entry in folder.files.items():
                if not entry.is_file:
                    continue
                try:
                    self._put(folder, name, Path(place))
                except _NotHere:
                    if name in needed:
                        missing.append(name)
            yield Path(place), missing

    def _put(self, folder: Folder, name: str, place: Path) -> None:
        """Lay out a file of the folder. Raises _NotHere."""
        entry = folder.files[name]
        pointer = self._pointer(entry.oid) if entry.is_file else None
        if pointer is None:
            self._objects.write(entry.oid, place / name)
            return
        path = name if folder.path == TOP else f"{folder.path}/{name}"
        found = self._store.find(pointer, path)
        if found is None:
            raise _NotHere(name)
        _link(found, place / name)


def _link(file: Path, link: Path) -> None:
    """Without a copy: a symbolic link, or where the system gives none a second name of the same file."""
    try:
        link.symlink_to(file)
    except OSError:
        link.hardlink_to(file)


def _is_drafter(place: Path) -> bool:
    """By the files that are at hand; one that cannot be read tells nothing."""
    config: dict[str, Any] = {}
    with suppress(InputError):
        config = read_object(place / CONFIG)
    names: list[str] = []
    for file in sorted(place.glob("*.safetensors")):
        with suppress(InputError):
            names += read_header(file).tensors
    from converter.rules.recognition import may_be_drafter

    return may_be_drafter(config, names)


def _static(place: Path, folder: Folder, scan: bool) -> list[Finding]:
    """The errors that `eagle3-validate` has for the folder, with its place in the repository in place of this one."""
    from converter.pipeline import validate
    from converter.run import Request

    try:
        report = validate(Request(str(place), scan=scan))
    except InputError as problem:
        found = [problem.finding]
    except UsageError as problem:  # pickles without torch
        found = [_not_here(folder, str(problem))]
    else:
        found = [f for f in report.findings if counts(f)]
        if not found and report.outcome == "refused":  # no engine serves it
            found = [f for verdict in report.verdicts.values() for f in verdict if counts(f)]
    once = dict.fromkeys(_moved(f, str(place), folder.path) for f in found)
    return list(once)


def _moved(finding: Finding, old: str, new: str) -> Finding:
    """What is said of the place `old`, said of `new`; commands name it as a shell reads it."""

    def moved(text: str) -> str:
        return text.replace(old, new)

    return replace(
        finding,
        message=moved(finding.message),
        where=moved(finding.where),
        found=moved(finding.found),
        expected=moved(finding.expected),
        why=moved(finding.why),
        fix=tuple(fix.replace(shlex.quote(old), shlex.quote(new)).replace(old, new) for fix in finding.fix),
    )


def _for_git(finding: Finding) -> Finding:
    """With what mends it here: the policy takes the place of options."""
    if finding.code == "H413":
        other = f'or, in {POLICY}, committed: unsealed = "validate", or ignore = ["FOLDER"]'
        finding = replace(finding, fix=(*finding.fix, other))
    if finding.code == "H414":
        other = f'or ask for less: require = "LEVEL" in {POLICY}, committed'
        finding = replace(finding, fix=(finding.fix[0], other))
    if finding.message.startswith(f"{TOP} is "):
        finding = replace(finding, message=f"the top folder {finding.message[len(TOP) + 1 :]}")
    return finding


def _not_here(folder: Folder, what: str) -> Finding:
    """H428."""
    return error(
        "H428",
        f"{folder.path} cannot be checked here: {what}",
        where=folder.path,
        why="it is not sealed, or its seal is not at hand, so only its contents could tell whether it is in order",
        fix=("git lfs pull    brings the contents here", "or seal it: eagle3-convert CHECKPOINT OUT --sample SAMPLE"),
    )

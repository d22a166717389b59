"""The seal: the record beside a converted drafter of what it was made from, how, and what was proved."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from converter.checkpoint.jsonfile import dumped, read_config
from converter.checkpoint.pickled import WEIGHTS
from converter.checkpoint.reader import INDEX
from converter.drafter.target import Target
from converter.errors import InputError
from converter.findings import Finding, error
from converter.hub.secrets import masked
from converter.rules import loading
from converter.rules.fields import lookup
from converter.source import SEAL, SIGNATURE
from converter.version import __version__

if TYPE_CHECKING:  # a hook waits for what this imports
    from converter.checkpoint.writer import WrittenFile
    from converter.plan import Plan

NAME = SEAL
_FORM = "eagle3-convert/seal/"
SCHEMA = f"{_FORM}1"
_WORDS = "findings.yaml"  # among the rule files; it decides nothing


def make_seal(
    *,
    command: Sequence[str],
    given: str,
    commit: str,
    config_sha256: str,
    plan: Plan,
    written: Sequence[WrittenFile],
    input_digests: Mapping[str, str],
    proof: Mapping[str, Any],
    findings: Sequence[Finding],
    target: Mapping[str, Any],
    serving: Mapping[str, Any],
) -> dict[str, Any]:
    """The published form (schemas/seal.schema.json), without secrets.

    commit          of the repository that the input was fetched from, "" for a folder
    serving         what launch commands are made of, beside the config
    input_digests   XXH3-128 of the input tensors whose values changed; of the others it is the output's
    """
    digests = {name: digest for file in written for name, digest in file.xxh3.items()}
    document = {
        "schema": SCHEMA,
        "tool": {"name": "eagle3-convert", "version": __version__},
        "command": list(command),
        "sealed_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "source": {"given": given, "commit": commit, "config_sha256": config_sha256},
        "engines": [
            {
                "engine": e.requirement,
                "proved_rules": e.proved,
                "standing": e.standing,
                "newer_than_known": e.newer_than_known,
                "plugin": e.plugin,
            }
            for e in plan.engines
            if e is not plan.form
        ],
        "to": plan.form.requirement if plan.form else "",
        "rules": rule_digests(),
        "target": dict(target),
        "launch": dict(plan.launch),
        "serving": dict(serving),
        "files": [{"name": f.name, "size": f.size, "sha256": f.sha256} for f in written],
        "tensors": [
            {
                "name": t.name,
                "source": t.source,
                "operations": [o.as_json() for o in t.operations],
                "xxh3_128": digests.get(t.name, ""),
                "source_xxh3_128": input_digests.get(t.stored, "") if t.changed else digests.get(t.name, ""),
            }
            for t in plan.tensors
        ],
        "dropped": dict(plan.dropped),
        "proof": dict(proof),
        "findings": [f.as_json() for f in findings],
        "allowed": sorted({f.code for f in findings if f.allowed}),
    }
    sealed: dict[str, Any] = masked(document)
    return sealed


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file of an output, in a staging folder. Raises OSError."""
    path.write_text(dumped(document), encoding="utf-8")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file in hex, read a megabyte at a time. Raises OSError."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def rule_digests() -> dict[str, str]:
    """SHA-256 of every rule file in use, by name; the user's own as canonical JSON."""
    digests = {
        f"{name} (--mapping)": hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
        for name, document in loading.added_files().items()
    }
    files = {}
    for kind in ("", "dialects", "engines"):
        for file in sorted(loading.rules_folder(kind).iterdir(), key=lambda f: f.name):
            if file.name.endswith((".yaml", ".json")) and file.name != _WORDS:
                files[f"{kind}/{file.name}" if kind else file.name] = file
    digests |= {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
    return digests


def read_seal(folder: Path) -> dict[str, Any] | None:
    """The seal in `folder`, whatever it says; None where there is no readable one. For whoever relies on what it says
    there is `sound_seal_of`.
    """
    try:
        document = read_config(folder / NAME)
    except InputError:
        return None
    return document if document.get("schema") == SCHEMA else None


def sound_seal_of(folder: Path) -> dict[str, Any] | None:
    """The seal in `folder` as one that can be relied on; None where there is none. Raises as `sound_seal` does."""
    return sound_seal(folder / NAME) if os.path.lexists(folder / NAME) else None


def sound_seal(path: Path) -> dict[str, Any]:
    """A seal that is valid under its schema. Raises InputError: F100 unreadable, H415 damaged, or of a form that this
    release does not know.
    """
    from converter.rules.schema import check

    try:
        document = read_config(path)
    except InputError as problem:
        if problem.finding.code == "F100":
            raise
        raise _damaged(path, [problem.finding.message]) from problem
    form = document.get("schema")
    if isinstance(form, str) and form.startswith(_FORM) and form != SCHEMA:
        raise InputError(
            error(
                "H415",
                f"the seal is of a form that this release does not know: {form}",
                where=f"schema in {path}",
                expected=SCHEMA,
                fix=("pip install --upgrade eagle3-convert",),
            )
        )
    faults = check(document, "seal")
    if not faults:  # then there is a list of files
        names = enumerate(texts_at(document, "files", "name"))
        faults = [f"files[{i}].name: found {n!r}, expected the name of a file in the folder"
                  for i, n in names if not plain_name(n)]  # fmt: skip
    if faults:
        raise _damaged(path, faults)
    return document


def _damaged(path: Path, faults: Sequence[str]) -> InputError:
    return InputError(
        error(
            "H415",
            f"the seal is damaged: {'; '.join(faults[:3])}"[:400],
            where=str(path),
            why="what it says of the files beside it cannot be relied on",
            fix=("copy the folder again, whole, or convert again what it was made from",),
        )
    )


def text_at(document: Mapping[str, Any], path: str) -> str:
    """The text at a dotted path of a seal that nobody has checked; "" where there is none."""
    value = lookup(document, path)
    return value if isinstance(value, str) else ""


def count_at(document: Mapping[str, Any], path: str) -> int | None:
    """The positive whole number at a dotted path of a seal that nobody has checked; None where there is none."""
    value = lookup(document, path)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def texts_at(document: Mapping[str, Any], key: str, part: str = "") -> list[str]:
    """The texts in a list of a seal that nobody has checked, or the `part` of each of its objects."""
    value = document.get(key)
    items = value if isinstance(value, list) else []
    texts = [item.get(part) if part and isinstance(item, dict) else item for item in items]
    return [text for text in texts if isinstance(text, str)]


def target_of(document: Mapping[str, Any]) -> Target:
    """The target that a seal, which nobody has checked, names."""
    return Target(
        name=text_at(document, "target.name"),
        architecture=text_at(document, "target.architecture"),
        layers=count_at(document, "target.layers"),
        where=NAME,
    )


def launch_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The launch options that carry a part of the wiring, by a seal that nobody has checked."""
    launch = document.get("launch")
    return launch if isinstance(launch, dict) else {}


@dataclass(frozen=True)
class Listed:
    """A file as it is now: size in bytes, and what tells its SHA-256 in hex when asked (an LFS pointer states it)."""

    size: int
    sha256: Callable[[], str]


def listing(folder: Path) -> dict[str, Listed]:
    """The files of a folder on disk by name, the seal itself left out; one is read when its digest is asked for."""
    files = (p for p in sorted(folder.iterdir()) if p.name != NAME and p.is_file())
    return {p.name: Listed(p.stat().st_size, cache(partial(sha256_of, p))) for p in files}


State = Literal["unchanged", "same size", "other size", "other contents", "gone", "added", "no name"]


@dataclass(frozen=True)
class Compared:
    """A file as it was sealed against what it is now. "same size": it was sealed without a digest (--no-digest).

    size, sealed   in bytes, now and then; None where there is, or was, none
    """

    name: str
    state: State
    size: int | None
    sealed: int | None

    @property
    def differs(self) -> bool:
        """Whether it is known not to be what was sealed."""
        return self.state not in ("unchanged", "same size")

    def __str__(self) -> str:
        if self.state == "other size":
            sealed = f"{self.sealed:,}" if self.sealed is not None else "?"
            return f"{self.name} has {self.size or 0:,} bytes, not {sealed}"
        words = {
            "other contents": f"{self.name} has other contents",
            "gone": f"{self.name} is gone",
            "added": f"{self.name} was not there",
            "no name": f"{json.dumps(self.name)} in the seal's list is no name of a file in the folder",
        }
        return words.get(self.state, f"{self.name} is as it was sealed")


def compared(document: Mapping[str, Any], files: Mapping[str, Listed]) -> list[Compared]:
    """Every file that the seal lists, by its digest, or its size alone where it has none; then those of `files` that it
    does not list, though an engine would read them (`must_be_sealed`).
    """
    listed = document.get("files")
    rows = [f for f in listed if isinstance(f, dict)] if isinstance(listed, list) else []
    found = []
    for row in rows:
        name, size, digest = row.get("name"), row.get("size"), row.get("sha256")
        sealed = size if isinstance(size, int) else None
        if not plain_name(name):
            found.append(Compared(str(name), "no name", None, sealed))
            continue
        file = files.get(name)
        state: State = "gone"
        if file is not None and file.size != size:
            state = "other size"
        elif file is not None:
            state = "same size" if not digest else "unchanged" if file.sha256() == digest else "other contents"
        found.append(Compared(name, state, None if file is None else file.size, sealed))
    names = {file.name for file in found}
    added = sorted(must_be_sealed(files) - names)
    return found + [Compared(name, "added", files[name].size, None) for name in added]


def plain_name(name: Any) -> TypeGuard[str]:
    """Whether it can name a file that lies in the folder itself."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}


def must_be_sealed(names: Iterable[str]) -> set[str]:
    """Those of them that decide what an engine computes: its config, and what it would take for weights."""
    return {n for n in names if n.endswith(".safetensors") or n in ("config.json", INDEX, *WEIGHTS)}


def still_is(document: Mapping[str, Any], folder: Path, name: str) -> bool:
    """Whether a file is, byte for byte, the one that was sealed."""
    files, digest = document.get("files"), sha256_of(folder / name)
    listed = files if isinstance(files, list) else []
    return any(isinstance(f, dict) and f.get("name") == name and f.get("sha256") == digest for f in listed)


def listed_files(document: Mapping[str, Any]) -> set[str] | None:
    """Names of the files that a seal lists, itself and its signature included; None where it is none."""
    files = document.get("files")
    if document.get("schema") != SCHEMA or not isinstance(files, list):
        return None
    return {NAME, SIGNATURE, *(f["name"] for f in files if isinstance(f, dict) and isinstance(f.get("name"), str))}


def must_be_signed(document: Mapping[str, Any]) -> list[str]:
    """Names of the seal and of all files that it lists, which a signature has to cover."""
    return [NAME, *filter(plain_name, texts_at(document, "files", "name"))]

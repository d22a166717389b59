"""The seal: the record beside a converted drafter of what it was made from, how, and what was proved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter.checkpoint.jsonfile import read_config
from converter.drafter.target import Target
from converter.errors import InputError
from converter.findings import Finding
from converter.rules import loading
from converter.rules.fields import lookup
from converter.source import SEAL
from converter.version import __version__

if TYPE_CHECKING:  # a hook waits for what this imports
    from converter.checkpoint.writer import WrittenFile
    from converter.plan import Plan

NAME = SEAL
SCHEMA = "eagle3-convert/seal/1"


def make_seal(
    *,
    command: Sequence[str],
    given: str,
    commit: str,
    config_file: Path,
    plan: Plan,
    written: Sequence[WrittenFile],
    input_digests: Mapping[str, str],
    proof: Mapping[str, Any],
    findings: Sequence[Finding],
    target: Mapping[str, Any],
) -> dict[str, Any]:
    """The published form (schemas/seal.schema.json).

    commit          of the repository that the input was fetched from, "" for a folder
    input_digests   XXH3-128 of the input tensors whose values changed; of the others it is the output's
    """
    digests = {name: digest for file in written for name, digest in file.xxh3.items()}
    return {
        "schema": SCHEMA,
        "tool": {"name": "eagle3-convert", "version": __version__},
        "command": list(command),
        "sealed_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "source": {"given": given, "commit": commit, "config_sha256": sha256_of(config_file)},
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


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def sha256_of(path: Path) -> str:
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
    files = {"fused.yaml": loading.rules_folder() / "fused.yaml"}
    for kind in ("dialects", "engines"):
        for file in sorted(loading.rules_folder(kind).iterdir(), key=lambda f: f.name):
            if file.name.endswith((".yaml", ".json")):
                files[f"{kind}/{file.name}"] = file
    digests |= {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
    return digests


def read_seal(folder: Path) -> dict[str, Any] | None:
    """The seal in `folder`; None where there is no readable one."""
    try:
        document = read_config(folder / NAME)
    except InputError:
        return None
    return document if document.get("schema") == SCHEMA else None


def text_at(document: Mapping[str, Any], path: str) -> str:
    """The text at a dotted path of a seal that nobody has checked; "" where there is none."""
    value = lookup(document, path)
    return value if isinstance(value, str) else ""


def texts_at(document: Mapping[str, Any], key: str, part: str = "") -> list[str]:
    """The texts in a list of a seal that nobody has checked, or the `part` of each of its objects."""
    value = document.get(key)
    items = value if isinstance(value, list) else []
    texts = [item.get(part) if part and isinstance(item, dict) else item for item in items]
    return [text for text in texts if isinstance(text, str)]


def target_of(document: Mapping[str, Any]) -> Target:
    """The target that a seal, which nobody has checked, names."""
    layers = lookup(document, "target.layers")
    known = isinstance(layers, int) and not isinstance(layers, bool) and layers > 0
    return Target(
        name=text_at(document, "target.name"),
        architecture=text_at(document, "target.architecture"),
        layers=layers if known else None,
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
    return {p.name: Listed(p.stat().st_size, partial(sha256_of, p)) for p in files}


def differences(document: Mapping[str, Any], files: Mapping[str, Listed], weights: Container[str]) -> list[str]:
    """What is no longer as it was sealed, in words: files that are gone or changed, and `weights` that the seal does
    not list. A file is told by its digest, by its size alone where it was sealed without one (--no-digest).
    """
    listed = document.get("files")
    rows = [f for f in listed if isinstance(f, dict)] if isinstance(listed, list) else []
    said = []
    for row in rows:
        name, size, digest = row.get("name"), row.get("size"), row.get("sha256")
        if not isinstance(name, str) or Path(name).name != name:
            continue
        file = files.get(name)
        if file is None:
            said.append(f"{name} is gone")
        elif file.size != size:
            said.append(f"{name} has {file.size:,} bytes, not {size if isinstance(size, int) else '?'}")
        elif digest and file.sha256() != digest:
            said.append(f"{name} has other contents")
    names = [row.get("name") for row in rows]  # of any type: nobody has checked them
    return said + [f"{name} was not there" for name in files if name in weights and name not in names]


def still_is(document: Mapping[str, Any], folder: Path, name: str) -> bool:
    """Whether a file is, byte for byte, the one that was sealed."""
    files, digest = document.get("files"), sha256_of(folder / name)
    listed = files if isinstance(files, list) else []
    return any(isinstance(f, dict) and f.get("name") == name and f.get("sha256") == digest for f in listed)


def sealed_files(folder: Path) -> set[str] | None:
    """Names of the files that the seal in `folder` lists, itself included; None where there is no readable seal."""
    document = read_seal(folder)
    files = document.get("files") if document is not None else None
    if not isinstance(files, list):
        return None
    return {NAME, *(f["name"] for f in files if isinstance(f, dict) and isinstance(f.get("name"), str))}

"""Git LFS as it lies on this disk: pointers, and the objects that they name. git-lfs itself is not needed.

Forms: github.com/git-lfs/git-lfs, docs/spec.md (pointers: under 1,024 bytes, `version` first, then keys in order) and
docs/man/git-lfs-config.adoc (`lfs.storage`, from the git folder).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from converter import seal
from converter.checkpoint.paths import real
from converter.hook.git import Git

LONGEST = 1023  # bytes of a pointer
_VERSIONS = (b"https://git-lfs.github.com/spec/v1", b"https://hawser.github.com/spec/v1", b"http://git-media.io/v/2")
_OID = re.compile(rb"sha256:([0-9a-f]{64})")
_SIZE = re.compile(rb"0|[1-9][0-9]{0,18}")
_KEY = re.compile(rb"[a-z0-9.-]+")


@dataclass(frozen=True)
class Pointer:
    """sha256 in hex and size in bytes of the file that it stands for."""

    sha256: str
    size: int


def parse_pointer(text: bytes) -> Pointer | None:
    """None for whatever is no pointer: the server would take it for the file itself."""
    if len(text) > LONGEST or not text.startswith(b"version "):
        return None
    rows = [line.partition(b" ") for line in text.rstrip(b"\n").split(b"\n")]
    values = {key: value for key, _, value in rows}
    if len(values) != len(rows) or not all(_KEY.fullmatch(key) for key in values):
        return None
    oid, size = _OID.fullmatch(values.get(b"oid", b"")), _SIZE.fullmatch(values.get(b"size", b""))
    if values[b"version"] not in _VERSIONS or oid is None or size is None:
        return None
    return Pointer(oid[1].decode(), int(size[0]))


class Store:
    """Where the contents are that pointers stand for."""

    def __init__(self, git: Git) -> None:
        self._objects = (
            git.folder("--git-common-dir") / (git.answer("config", "--type=path", "lfs.storage") or "lfs") / "objects"
        )
        self._top = git.top()

    def find(self, pointer: Pointer, path: str) -> Path | None:
        """The object in the store, or the working tree's file `path` where it has these very contents."""
        kept = self._objects / pointer.sha256[:2] / pointer.sha256[2:4] / pointer.sha256
        if _has_size(kept, pointer.size):
            return real(kept)
        if self._top is None:
            return None
        here = self._top / path
        same = _has_size(here, pointer.size) and seal.sha256_of(here) == pointer.sha256
        return real(here) if same else None


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size == size
    except OSError:
        return False

"""Pointers of Git LFS, as the hook reads them from blobs that a push brings."""

from __future__ import annotations

from pathlib import Path
from random import Random

from converter.hook.lfs import LONGEST, parse_pointer
from converter.seal import Listed, compared
from tests.hub_repository import pointer

_OID = b"4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
_LINES = (
    b"version https://git-lfs.github.com/spec/v1", b"version https://hawser.github.com/spec/v1", b"version x",
    b"oid sha256:" + _OID, b"oid sha256:" + _OID.upper(), b"oid sha256:" + _OID[:-1], b"oid md5:0", b"oid", b"size 1",
    b"size 0", b"size 00", b"size -1", b"size 1e3", b"size " + b"9" * 30, b"size \xc2\xb2", b"size 1 ", b"size 1\r",
    b"ext-0-foo sha256:" + _OID, b"\0", b"Size 1", b"x-y.z a b c", b"x" * LONGEST, b"\xff", b"",
)  # fmt: skip


def seeds() -> list[bytes]:
    whole = b"\n".join((_LINES[0], b"oid sha256:" + _OID, b"size 12345", b""))
    return [whole, whole.replace(b"oid", b"ext-0-foo sha256:" + _OID + b"\noid"), whole[:-1], whole + b"\n"]


def one(data: bytes) -> None:
    found = parse_pointer(data)
    if found is None:
        return
    assert data.startswith(b"version ") and len(data) <= LONGEST
    assert len(found.sha256) == 64 and 0 <= found.size < 10**19
    row = {"name": "model.safetensors", "size": found.size, "sha256": found.sha256}
    now = {"model.safetensors": Listed(found.size, lambda: found.sha256)}
    assert [file.state for file in compared({"files": [row]}, now)] == ["unchanged"]
    assert parse_pointer(pointer(found.sha256, found.size).encode()) == found


def mutate(data: bytes, random: Random) -> bytes | None:
    if not data.startswith(b"version"):
        return None
    lines = data.split(b"\n")
    for _ in range(random.choice((1, 1, 2, 3))):
        at, kind = random.randrange(len(lines)), random.randrange(4)
        if kind == 0:
            lines[at] = random.choice(_LINES)
        elif kind == 1:
            lines.insert(at, random.choice((*_LINES, *lines)))
        elif kind == 2 and len(lines) > 1:
            del lines[at]
        else:
            random.shuffle(lines)
    return b"\n".join(lines)


def folders() -> tuple[Path, ...]:
    return ()

"""Pointers of Git LFS, as the hook reads them from blobs that a push brings."""

from __future__ import annotations

from pathlib import Path
from random import Random

from converter.hook.lfs import LONGEST, parse_pointer
from converter.seal import Listed, compared

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
    pointer = parse_pointer(data)
    if pointer is None:
        return
    assert data.startswith(b"version ") and len(data) <= LONGEST
    assert len(pointer.sha256) == 64 and 0 <= pointer.size < 10**19
    row = {"name": "model.safetensors", "size": pointer.size, "sha256": pointer.sha256}
    now = {"model.safetensors": Listed(pointer.size, lambda: pointer.sha256)}
    assert [file.state for file in compared({"files": [row]}, now)] == ["unchanged"]
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{pointer.sha256}\nsize {pointer.size}\n"
    assert parse_pointer(text.encode()) == pointer


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

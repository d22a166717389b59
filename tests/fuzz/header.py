"""The header of a safetensors file: eight bytes of length, JSON, and the bytes of the tensors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from random import Random
from typing import Any

import safetensors

from converter.checkpoint.header import DTYPE_BITS, build_header, parse_file, parse_header
from converter.errors import InputError
from tests.fuzz.mutation import mutated, text_of

_FILE = Path("model.safetensors")
# Of a header that is accepted the library must make the same; these dtypes are newer than some releases of it.
_KNOWN = frozenset(DTYPE_BITS) - {"F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64", "F4", "F6_E2M3", "F6_E3M2", "F8_E8M0"}


def seeds() -> list[bytes]:
    def tensor(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}

    documents: list[tuple[Any, int]] = [
        ({}, 0), ({"a": tensor("F32", [1], 0, 4)}, 4),
        ({"__metadata__": {"format": "pt"}, "f": tensor("BF16", [2, 3], 0, 12), "d2t": tensor("I64", [2], 12, 28)}, 28),
        ({"e": tensor("F16", [0, 4], 0, 0), "s": tensor("BOOL", [], 0, 1), "q": tensor("F4", [2], 1, 2)}, 2),
    ]  # fmt: skip
    return [_packed(json.dumps(document).encode(), bytes(size)) for document, size in documents]


def one(data: bytes) -> None:
    try:
        header = parse_file(_FILE, io.BytesIO(data), len(data))
    except InputError as problem:
        assert problem.finding.code in ("F101", "F102", "F103", "F104")
        return
    cursor = 0
    for info in sorted(header.tensors.values(), key=lambda t: (t.start, t.end)):
        assert info.start == cursor <= info.end
        cursor = info.end
    assert header.data_start + cursor == len(data)
    again = build_header(header.tensors, header.metadata)
    assert parse_header(again[8:], cursor, len(again), "again").tensors == header.tensors
    if all(t.dtype in _KNOWN for t in header.tensors.values()):
        theirs = {name: (v["dtype"], v["shape"]) for name, v in safetensors.deserialize(data)}
        assert theirs == {n: (t.dtype, list(t.shape)) for n, t in header.tensors.items()}


def mutate(data: bytes, random: Random) -> bytes | None:
    length = int.from_bytes(data[:8], "little")
    try:
        document = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        return None
    document = mutated(document, random, tuple(DTYPE_BITS))
    rest = data[8 + length :]
    if random.random() < 0.5 and isinstance(document, dict):
        rest = bytes(_settled(document))
    text = text_of(document, random)
    if random.random() < 0.05:
        length = random.choice((0, 1, len(text) + 1, 2**31, 2**63, 2**64 - 1, len(text) - 1))
        return (length % 2**64).to_bytes(8, "little") + text + rest
    return _packed(text, rest)


def _settled(document: dict[str, Any]) -> int:
    """Offsets that fit the shapes, where those are in order, so that what lies behind that check is reached; how many
    bytes there are then."""
    cursor = 0
    for entry in document.values():
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if not isinstance(shape, list) or not all(isinstance(n, int) and 0 <= n < 50 for n in shape) or len(shape) > 3:
            continue
        bits = DTYPE_BITS.get(str(entry.get("dtype")), 8)
        for n in shape:
            bits *= n
        entry["data_offsets"] = [cursor, cursor + bits // 8]
        cursor += bits // 8
    return cursor


def _packed(text: bytes, rest: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text + rest


def folders() -> tuple[Path, ...]:
    return ()

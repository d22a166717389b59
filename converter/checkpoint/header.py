"""The header of a safetensors file, parsed and checked before anything is trusted.

Format (safetensors 0.8.0, README "Format"): 8 bytes little-endian length N, N bytes of JSON, then the
tensors' bytes without holes. Its own reader refuses headers over 100 MB, overlapping or missing byte
ranges and trailing bytes; so does this one, and it says which tensor is at fault.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from converter.checkpoint.jsonfile import parse, shortened, unreadable
from converter.errors import InputError
from converter.findings import error

MAX_HEADER = 100_000_000  # safetensors' own limit, bytes
# Of one file. transformers 5 cuts at 50 GB, within which a 4-bit model of 48 layers with 512 experts has 300,000.
_MAX_TENSORS = 400_000
_MAX_ELEMENTS = 1 << 64  # safetensors counts them in 64 bits

# Bits per element, by the names that safetensors 0.8.0 writes.
DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
# As configs name them.
DTYPE_NAMES: Mapping[str, str] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
DTYPE_BYTES: Mapping[str, int] = {name: DTYPE_BITS[short] // 8 for short, name in DTYPE_NAMES.items()}
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
INTEGERS = frozenset({"I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64"})


def nbytes_of(dtype: str, shape: Sequence[int]) -> int:
    """Bytes that the values of a tensor take in a file."""
    bits = DTYPE_BITS[dtype]
    for n in shape:
        bits *= n
    return bits // 8


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's place in its file: `start` and `end` count bytes from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Header:
    """The tensors by name, in the order of the JSON; `__metadata__`; the byte of the file at which tensors begin."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    data_start: int


def read_header(path: Path) -> Header:
    """Parse and check the header of `path`.

    Raises InputError with F101 (no safetensors file), F102 (LFS pointer), F103 (shorter than its header
    says) or F104 (the header contradicts itself).
    """
    try:
        with path.open("rb") as file:
            return parse_file(path, file, os.fstat(file.fileno()).st_size)
    except OSError as problem:
        raise unreadable(path, problem) from problem


def parse_file(path: Path, file: BinaryIO, size: int) -> Header:
    """The header of a file of `size` bytes, of which `file` need hold no more than that; `path` is what it is called.

    Raises InputError as `read_header` does.
    """
    first = file.read(9)
    _refuse_other_formats(path, first, size)
    file.seek(8)
    length = int.from_bytes(first[:8], "little")
    if length > min(size - 8, MAX_HEADER):
        cut = "" if length > MAX_HEADER else "; the download may have been cut short"
        raise InputError(
            error(
                "F101",
                f"{path.name} is not a safetensors file{cut}",
                where=str(path),
                found=f"a header length of {length:,} bytes in a file of {size:,}",
                expected=f"at most {min(size - 8, MAX_HEADER):,}",
                fix=("download the file again and compare its size with the source",),
            )
        )
    return parse_header(file.read(length), size - 8 - length, 8 + length, str(path))


def parse_header(text: bytes, data_size: int, data_start: int, where: str) -> Header:
    """Check the JSON of a header against `data_size`, the bytes that follow it."""

    def bad(what: str, code: str = "F104", *, expected: str = "", **rest: Any) -> InputError:
        message = f"damaged safetensors header: {shortened(what)}"
        told = {"fix": ("save the checkpoint again with safetensors, or download the file again",)} | rest
        return InputError(error(code, message, where=where, expected=shortened(expected), **told))

    objects = text.count(b"{")  # before the parser, which takes seconds and a gigabyte for a million
    if objects > _MAX_TENSORS:
        raise bad(f"it lists {objects:,} tensors", expected=f"at most {_MAX_TENSORS:,}")
    try:
        document = parse(text)
    except ValueError as problem:
        raise bad(str(problem)) from problem
    if not isinstance(document, dict):
        raise bad("not a JSON object")
    metadata = document.pop("__metadata__", {})
    if not (isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())):
        raise bad("__metadata__ is not a map of strings")

    tensors = {name: _tensor(name, entry, bad) for name, entry in document.items()}
    cursor = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != cursor:
            kind = "overlaps the one before it" if info.start < cursor else "leaves a hole before it"
            raise bad(f"{name} {kind}", found=f"starts at byte {info.start:,}", expected=f"byte {cursor:,}")
        cursor = info.end
    if cursor > data_size:
        raise bad(
            "the file ends before its tensors do",
            code="F103",
            found=f"{data_size:,} bytes of tensors",
            expected=f"{cursor:,}",
            fix=("download the file again: it was cut short",),
        )
    if cursor < data_size:
        raise bad(f"{data_size - cursor:,} bytes after the last tensor belong to no tensor")
    return Header(tensors, metadata, data_start)


def _tensor(name: str, entry: Any, bad: Any) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise bad(f"{name} does not have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (isinstance(dtype, str) and dtype in DTYPE_BITS):
        raise bad(f"{name} has the unknown dtype {dtype!r}")
    if not (isinstance(shape, list) and all(_count(n) for n in shape)):
        raise bad(f"{name} has the shape {shape!r}")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(_count(n) for n in offsets)):
        raise bad(f"{name} has the offsets {offsets!r}")
    elements = 1
    for n in shape:
        elements *= n
        if elements >= _MAX_ELEMENTS:
            raise bad(f"{name} has the impossible shape {shape!r}")
    bits = elements * DTYPE_BITS[dtype]
    if bits % 8 or bits // 8 != offsets[1] - offsets[0]:
        raise bad(
            f"{name} does not fill its bytes",
            found=f"{offsets[1] - offsets[0]:,} bytes",
            expected=f"{bits // 8:,} for {dtype} {shape}",
        )
    return TensorInfo(dtype, tuple(shape), offsets[0], offsets[1])


def _count(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63


def _refuse_other_formats(path: Path, first: bytes, size: int) -> None:
    if first.startswith(b"version "):
        raise InputError(
            error(
                "F102",
                f"{path.name} is a Git LFS pointer, not the weights",
                where=str(path),
                fix=("git lfs pull    (in the clone), or download the repository with: hf download",),
            )
        )
    # The length of a header may begin with the same bytes, but then a JSON object follows it.
    pickle = (first[:2] == b"PK" or first[:1] == b"\x80") and first[8:] != b"{"
    if len(first) < 8 or pickle:
        kind = "a PyTorch pickle" if pickle else f"only {size} bytes long"
        raise InputError(
            error(
                "F101",
                f"{path.name} is not a safetensors file: it is {kind}",
                where=str(path),
                fix=("save the weights with safetensors, or download the file again",),
            )
        )


def build_header(tensors: Mapping[str, TensorInfo], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a header, its length included, padded so that the tensors start on 8 bytes."""
    document: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, info in tensors.items():
        document[name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [info.start, info.end]}
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text

"""PyTorch files (.bin, .pt): archives and streams of pickle's own instructions, with the gadgets that run code."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from functools import cache
from pathlib import Path
from random import Random

import torch
from hypothesis import strategies as st

from converter.checkpoint.pickled import open_pickles
from converter.errors import Eagle3Error
from tests.fuzz.folders import Hostile, made

_GLOBALS = (
    "os system", "posix system", "subprocess Popen", "builtins eval", "builtins exec", "builtins getattr",
    "builtins __import__", "builtins bytearray", "builtins set", "builtins complex", "_codecs encode",
    "collections OrderedDict", "collections Counter", "torch.hub load", "torch load", "torch.serialization load",
    "torch Tensor", "torch Size", "torch FloatStorage", "torch device", "torch.nn Parameter",
    "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter", "torch._utils _rebuild_sparse_tensor",
    "torch._utils _rebuild_wrapper_subclass", "torch._utils _rebuild_meta_tensor_no_storage",
    "torch._tensor _rebuild_from_type_v2", "numpy.core.multiarray _reconstruct", "numpy ndarray",
    "numpy.f2py.crackfortran myeval", "importlib import_module", "pathlib Path",
)  # fmt: skip
_WEIGHTS = {"fc.weight": torch.ones(2, 3), "norm.weight": torch.ones(2, dtype=torch.bfloat16), "d2t": torch.arange(3)}
_ONE = torch.ones(1)
_DOCUMENTS = (
    _WEIGHTS, {"model": _WEIGHTS, "epoch": 1}, {"state_dict": {"module": _WEIGHTS}}, {"a": _ONE.expand(10**12)},
    {f"t{i}": t for i, t in enumerate([torch.ones(1000)] * 400)}, {"a": _ONE.expand(2)}, {1: _ONE}, [_ONE], _ONE,
    {"a": _ONE, "b": {"c": _ONE}}, {"\ud800": _ONE}, {"a": torch.eye(3).to_sparse()},
    {"a": torch.empty(2, device="meta")}, {"a": torch.ones(2, dtype=torch.complex64)}, {"a": torch.nn.Parameter(_ONE)},
    {"a": torch.ones(()), "b": torch.empty(0, 3)}, {"a": torch.ones(4, 4).t()[1:]},
    {"a": torch.ones(2, dtype=torch.complex64).conj().imag}, {"x\x1b[2J\u202e": _ONE.to(torch.uint16)},
)  # fmt: skip


@cache
def _saved(index: int, zipped: bool) -> bytes:
    out = io.BytesIO()
    torch.save(_DOCUMENTS[index], out, _use_new_zipfile_serialization=zipped)
    return out.getvalue()


def _stream(random: Random) -> bytes:
    """A pickle of random instructions; half of them build what the loader would hand to a gadget."""
    parts = [b"\x80\x02"]
    for _ in range(random.randrange(1, 14)):
        parts.append(
            random.choice(
                (
                    lambda: b"c" + random.choice(_GLOBALS).replace(" ", "\n").encode() + b"\n",
                    lambda: b"X" + struct.pack("<I", 2) + random.choice((b"id", b"ls", b"cp")),
                    lambda: b"J" + struct.pack("<i", random.choice((0, 1, -1, 2**31 - 1, 10**9))),
                    lambda: b"\x8a\x08" + struct.pack("<q", random.choice((10**18, -1, 2**62, 10**12))),
                    lambda: random.choice((b"(", b")", b"]", b"}", b"t", b"\x85", b"\x86", b"\x87", b"N", b"\x88",
                    b"G" + bytes(8))),
                    lambda: random.choice((b"R", b"R", b"b", b"s", b"u", b"a", b"e", b"\x81", b"Q", b"0", b"2",
                    b"q\0", b"h\0", b"i", b"o")),
                )
            )()
        )  # fmt: skip
    return b"".join(parts) + b"."


def _bytes_changed(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        at = random.randrange(len(changed))
        kind = random.randrange(4)
        if kind == 0:
            changed[at] = random.randrange(256)
        elif kind == 1:
            changed[at] ^= 1 << random.randrange(8)
        elif kind == 2:
            del changed[at : at + random.choice((1, 2, 8))]
        else:
            changed[at:at] = random.randbytes(random.choice((1, 4)))
        if not changed:
            return b""
    return bytes(changed)


def _archived(pickled: bytes, random: Random, data: bytes = b"") -> bytes:
    """An archive as torch writes it around another pickle."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if random.random() < 0.02 else zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", random.choice((b"little", b"little", b"big", b"")))
        archive.writestr("archive/data/0", data or bytes(24))
        archive.writestr("archive/version", b"3\n")
    return out.getvalue()


def _drawn(seed: int) -> bytes:
    random = Random(seed)
    kind = random.randrange(6)
    index = random.randrange(len(_DOCUMENTS))
    if kind == 0:
        return _saved(index, random.random() < 0.7)
    if kind == 1:
        return _bytes_changed(_saved(index, random.random() < 0.5), random)
    if kind == 2:
        return _stream(random)
    if kind == 3:
        return _archived(_stream(random), random)
    if kind == 4:
        return _archived(_bytes_changed(_inner(0), random), random)
    return _archived(
        pickle.dumps({"a": 1, "b": [1] * random.randrange(5), "c": random.choice((b"", "x", 1.5, None))}, 2), random
    )


@cache
def _inner(index: int) -> bytes:
    with zipfile.ZipFile(io.BytesIO(_saved(index, True))) as archive:
        return archive.read("archive/data.pkl")


EXAMPLES = st.one_of(st.builds(_drawn, st.integers(0, 2**32)), st.binary(max_size=40))


@cache
def _file() -> Hostile:
    return Hostile(made("pickles") / "pytorch_model.bin")


def one(data: bytes) -> None:
    file = _file()
    file.write(data)
    try:
        checkpoint = open_pickles([file.path])
        for name in checkpoint.tensors:
            checkpoint.read(name)
    except Eagle3Error:
        return


def folders() -> tuple[Path, ...]:
    return (_file().path.parent,)

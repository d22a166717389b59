"""Samples: a stranger's tokens and hidden states, in the two forms of safetensors and the two of pickles."""

from __future__ import annotations

import io
import zlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from hypothesis import strategies as st

from converter.checkpoint.header import DTYPE_BITS, TensorInfo, build_header
from converter.drafter.spec import DrafterSpec
from converter.errors import Eagle3Error
from converter.forward.sample import read_sample
from converter.pipeline import look
from converter.run import Request
from tests.fuzz.folders import Hostile, made
from tests.fuzz.mutation import NASTY
from tests.support import DRAFTERS

_WIDTH, _LENGTH, _POINTS = 64, 6, (1, 3, 5, 6)
Shape = tuple[str, list[int]]
_OWN: dict[str, Shape] = {
    "s0.hidden_states": ("BF16", [4, _LENGTH, _WIDTH]), "s0.input_ids": ("I64", [_LENGTH]),
    "s0.loss_mask": ("BOOL", [_LENGTH]), "s0.target_greedy_next": ("I32", [_LENGTH]),
    "s1.hidden_states": ("F32", [4, 3, _WIDTH]), "s1.input_ids": ("I64", [3]), "s1.loss_mask": ("U8", [3]),
    "s1.target_next": ("I64", [3]),
}  # fmt: skip
_DUMPED: dict[str, Shape] = {
    "hidden_states": ("F8_E4M3", [_LENGTH, 4, _WIDTH]), "token_ids": ("I64", [_LENGTH]),
    "hidden_states_scales": ("F32", [_LENGTH, 1, 1]),
}  # fmt: skip
_METADATA = {"format": "eagle3-sample", "capture_points": "1 3 5 6", "decoding": "greedy", "captured": "target"}
_LISTED: dict[str, Any] = {
    "input_ids": torch.arange(_LENGTH), "loss_mask": torch.ones(_LENGTH),
    "hidden_states": [torch.ones(_LENGTH, _WIDTH)] * 4,
}  # fmt: skip
_OFFLINE: dict[str, Any] = {
    "input_ids": torch.arange(_LENGTH), "loss_mask": torch.ones(_LENGTH).long(),
    "hidden_state": torch.ones(1, _LENGTH, _WIDTH), "aux_hidden_state": torch.ones(1, _LENGTH, 3 * _WIDTH),
}  # fmt: skip
_ONE = torch.ones(1)
_VALUES: tuple[Any, ...] = (
    None, 1, "x", [], {}, [1], torch.tensor(1.0), torch.empty(0), torch.ones(_LENGTH, _WIDTH),
    torch.full((_LENGTH,), -1), _ONE.bool(), torch.full((_LENGTH,), 2**62), torch.full((_LENGTH, _WIDTH), float("nan")),
    torch.ones(_LENGTH, dtype=torch.complex64), _ONE.expand(10**6), _ONE.expand(10**12),
    torch.ones(_LENGTH, _WIDTH).to(torch.float8_e4m3fn), torch.eye(3).to_sparse(), torch.empty(3, device="meta"),
    torch.ones(2, 2, 2, 2), [torch.ones(_LENGTH, _WIDTH), torch.ones(_LENGTH - 1, _WIDTH)],
    [_ONE.expand(_LENGTH, _WIDTH)] * 3,
)  # fmt: skip


def _stored(seed: int) -> bytes:
    """A safetensors file, a few of its shapes, dtypes, names or metadata changed; the values are noise."""
    random = Random(seed)
    shapes = {name: (dtype, list(shape)) for name, (dtype, shape) in random.choice((_OWN, _DUMPED)).items()}
    metadata = dict(_METADATA)
    for _ in range(random.randrange(4)):
        name = random.choice(list(shapes))
        dtype, shape = shapes[name]
        change = random.randrange(7)
        if change == 0:
            del shapes[name]
        elif change == 1:
            shapes[name] = random.choice(list(DTYPE_BITS)), shape
        elif change == 2:
            shape.append(random.choice((0, 1, 2)))
        elif change == 3 and shape:
            shape[random.randrange(len(shape))] += random.choice((-1, 1, 0))
        elif change == 4 and shape:
            shape.pop(random.randrange(len(shape)))
        elif change == 5:
            shapes[
                random.choice((".hidden_states", "s2.hidden_states", "token_ids", "hidden_states", name.upper()))
            ] = dtype, shape
        else:
            metadata[random.choice(list(metadata))] = str(
                random.choice((*NASTY, "1 3", "0 0 1 2", "1 3 5 99", "-1 2 3 4"))
            )
        if not shapes:
            break
    infos, cursor = {}, 0
    for name, (dtype, shape) in shapes.items():
        bits = DTYPE_BITS[dtype]
        for n in shape:
            bits *= n
        infos[name] = TensorInfo(dtype, tuple(shape), cursor, cursor + bits // 8)
        cursor += bits // 8
    try:
        return build_header(infos, metadata) + (random.randbytes(64) * (cursor // 64 + 1))[:cursor]
    except UnicodeEncodeError:
        return b""


def _pickled(seed: int) -> bytes:
    random = Random(seed)
    document = dict(random.choice((_LISTED, _OFFLINE)))
    for _ in range(random.randrange(3)):
        document[random.choice([*document, "hidden_state", "more", 3])] = random.choice(_VALUES)
    out = io.BytesIO()
    torch.save(document, out, _use_new_zipfile_serialization=random.random() < 0.8)
    data = out.getvalue()
    if random.random() < 0.1:
        data = data[: random.randrange(len(data))]
    return zlib.compress(data, wbits=31) if random.random() < 0.1 else data


EXAMPLES = st.one_of(st.builds(_stored, st.integers(0, 2**32)), st.builds(_pickled, st.integers(0, 2**32)))


@cache
def _place() -> tuple[Hostile, DrafterSpec]:
    drafter = look(Request(source=str(DRAFTERS / "a_plain"), engines=("vllm",))).drafter
    assert drafter is not None
    return Hostile(made("sample") / "hs_0.safetensors"), drafter.spec


def one(data: bytes) -> None:
    file, spec = _place()
    file.write(data)
    try:
        sample = read_sample(file.path, spec, last_point=6)
        for sequence in sample.sequences:
            for point in spec.capture_points:
                sequence.state(point, 0)
    except Eagle3Error:
        return


def folders() -> tuple[Path, ...]:
    return (_place()[0].path.parent,)

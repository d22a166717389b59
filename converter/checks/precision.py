"""Values that are no numbers, and those that the served dtype cannot hold: the one check that reads all weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from converter.checkpoint.finite import Scanned, scan
from converter.checkpoint.header import FLOATS
from converter.checkpoint.reader import Checkpoint, StoredTensor
from converter.findings import Finding, error, some_of, warning
from converter.transforms import as_float32

_LOST_SHARE = 0.01  # of a tensor's values: of weights near 0.01, fp16 rounds some millionths to zero


def check_precision(
    checkpoint: Checkpoint, names: Iterable[str], served: str, kept: frozenset[str]
) -> Iterator[Finding]:
    """N103 NaN and infinity, N110 and N111 what fp16 cannot hold, in the tensors `names` of the checkpoint.

    served     the dtype that the weights will be cast to, as configs name it
    kept       those of `names` that are not cast
    """
    wanted = list(names)
    cast = frozenset(wanted) - kept if served == "float16" else frozenset()
    small: dict[str, float] = {}
    for name, scanned in scan(checkpoint, wanted, cast).items():
        stored = checkpoint.tensors[name]
        if scanned.not_finite:
            assert scanned.first is not None
            first = _value(checkpoint, stored, scanned.first)
            yield no_numbers(name, scanned.not_finite, f"the first is {first}")
        if scanned.over:
            yield _overflow(checkpoint, stored, scanned)
        share = scanned.under / max(math.prod(stored.info.shape), 1)
        if share > _LOST_SHARE:
            small[name] = share
    if small:
        yield _underflow(small)


def needs_cast(checkpoint: Checkpoint, tensors: Mapping[str, str], served: str) -> list[str]:
    """Names of weights that the output or an engine narrows to fp16."""
    if served != "float16":
        return []
    return [name for name in tensors.values() if checkpoint.tensors[name].info.dtype in FLOATS - {"F16"}]


def no_numbers(name: str, count: int, found: str = "") -> Finding:
    """N103 of a tensor with `count` values that are NaN or infinite; `found` says which, where that is known."""
    return error(
        "N103",
        f"{name} holds {count:,} values that are NaN or infinite",
        where=name,
        found=found,
        why="every draft that passes through them is NaN, and a healthy server rejects it",
        fix=("take an earlier checkpoint of the run",),
    )


def _overflow(checkpoint: Checkpoint, stored: StoredTensor, scanned: Scanned) -> Finding:
    assert scanned.first_over is not None
    return error(
        "N110",
        f"{stored.name} holds {scanned.over:,} values that become infinite in float16",
        where=stored.name,
        found=f"the first is {_value(checkpoint, stored, scanned.first_over)}",
        expected="at most 65,504, the largest that float16 has",
        why="every draft that passes through them is NaN, and a healthy server rejects it",
        fix=("keep the weights in bfloat16: --dtype bfloat16",),
    )


def _underflow(small: Mapping[str, float]) -> Finding:
    worst = max(small, key=small.__getitem__)
    return warning(
        "N111",
        f"a part of {worst if len(small) == 1 else f'{len(small)} tensors'} becomes zero in float16",
        where=some_of(list(small)),
        found=f"{small[worst]:.0%} of the values of {worst}",
        expected="magnitudes above 3e-8, half of the smallest that float16 has",
        why="the weights are so small that a part of what was trained is left out",
        fix=("keep the weights in bfloat16: --dtype bfloat16", "a sample shows what it costs: --sample FILE"),
    )


def _value(checkpoint: Checkpoint, stored: StoredTensor, position: int) -> str:
    """The value at a place counted in row order, with its indices: `nan at [3, 7]`."""
    indices: list[int] = []
    rest = position
    for size in reversed(stored.info.shape):
        rest, index = divmod(rest, size)
        indices.insert(0, index)
    place = f"at {indices}" if indices else "the only one"
    if stored.info.dtype not in FLOATS:
        return f"NaN or infinite {place}"
    part = checkpoint.rows(stored.name, indices[0], 1) if indices else checkpoint.read(stored.name)
    value = as_float32(part, stored.info.dtype).reshape(-1)[position % max(part.size, 1)]
    return f"{value:g} {place}"

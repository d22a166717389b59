"""Two stored tensors against each other: equal bytes, blocks in another order, or how far apart. Streamed, no torch.

Measures are defined in docs/metrics.md ("Tensors against each other").
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from converter.checkpoint.header import DTYPE_BITS, FLOATS, INTEGERS
from converter.checkpoint.reader import Checkpoint
from converter.transforms import as_float32, permute_blocks, rounded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Relation = Literal["equal", "equal values", "equal when rounded", "permuted", "differs", "shape", "not compared"]

_PART = 8 << 20  # bytes of the wider tensor that are held at once


@dataclass(frozen=True)
class Measures:
    """How far b is from a, over the values that are finite in both.

    elements, differing   how many values there are, and how many are not the same
    not_finite            values that are NaN or infinite in either
    max_abs               the largest |b - a|
    relative              |b - a| / |a|, Frobenius; None where a is zero
    cosine                of the two as vectors; None where either is zero

    The last three are None of integers, and where they are beyond what 64 bits hold.
    """

    elements: int
    differing: int
    not_finite: int = 0
    max_abs: float | None = None
    relative: float | None = None
    cosine: float | None = None


@dataclass(frozen=True)
class Compared:
    """What one tensor is to the other.

    relation  equal: the same bytes; equal values: the same numbers in other bytes; equal when rounded: of two
              widths, the same in the narrower; permuted: the same bytes, in blocks along the last axis
    order     block i of b was held against block order[i] of a; () for the order that they lie in
    measures  how far they are apart, where they differ
    """

    relation: Relation
    order: tuple[int, ...] = ()
    measures: Measures | None = None


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint."""

    checkpoint: Checkpoint
    name: str

    @property
    def dtype(self) -> str:
        """As safetensors names it."""
        return self.checkpoint.tensors[self.name].info.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.checkpoint.tensors[self.name].info.shape


def compare_tensors(a: Stored, b: Stored, order: tuple[int, ...] = (), blocks: int = 1) -> Compared:
    """b against a; with `order` (blocks of a in the places where b is expected to have them), against a so permuted.

    Where they differ and the last axis is of `blocks` > 1 equal blocks, any other order of them is looked for too.
    Raises InputError as `Checkpoint.read` does.
    """
    if a.shape != b.shape:
        return Compared("shape")
    blocks = blocks if blocks > 1 and a.shape and a.shape[-1] % blocks == 0 else 1
    moved = blocks > 1 and order not in ((), tuple(range(blocks)))
    order = order if moved else ()
    if a.dtype == b.dtype:
        if DTYPE_BITS[a.dtype] % 8:
            return Compared("not compared")
        if all(_same_bits(x, y) for x, y in _parts(a, b, order)):
            return Compared("permuted", order) if moved else Compared("equal")
        found = _order_of_blocks(a, b, blocks) if blocks > 1 else None
        if found is not None:
            return Compared("permuted", found) if found != tuple(range(blocks)) else Compared("equal")
    if {a.dtype, b.dtype} <= FLOATS:
        return _floats(a, b, order)
    if a.dtype == b.dtype or {a.dtype, b.dtype} <= INTEGERS | {"BOOL"}:
        differing = sum(int((x != y).sum()) for x, y in _parts(a, b, order))
        measures = Measures(math.prod(a.shape), differing)
        return Compared("differs", order, measures) if differing else Compared("equal values", order)
    return Compared("not compared")


def _parts(a: Stored, b: Stored, order: tuple[int, ...] = ()) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """The same rows of both, some megabytes at a time, those of a with their blocks put in order."""
    for x, y in _rows(a, b):
        yield (permute_blocks(x, order) if order else x), y


def _rows(a: Stored, b: Stored) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    infos = [side.checkpoint.tensors[side.name].info for side in (a, b)]
    nbytes = max(info.nbytes for info in infos)
    if not a.shape or not nbytes:
        yield a.checkpoint.read(a.name), b.checkpoint.read(b.name)
        return
    count = max(_PART * a.shape[0] // nbytes, 1)
    for start in range(0, a.shape[0], count):
        yield a.checkpoint.rows(a.name, start, count), b.checkpoint.rows(b.name, start, count)


def _same_bits(x: NDArray[Any], y: NDArray[Any]) -> bool:
    import numpy as np

    kind = f"u{x.dtype.itemsize}"
    return bool(np.array_equal(np.ascontiguousarray(x).view(kind), np.ascontiguousarray(y).view(kind)))


def _order_of_blocks(a: Stored, b: Stored, blocks: int) -> tuple[int, ...] | None:
    """The order of a's blocks in b; None where b is not made of them. Of equal blocks, each stays where it is."""
    import numpy as np

    equal = [[True] * blocks for _ in range(blocks)]  # [block of b][block of a]
    for x, y in _rows(a, b):
        xs, ys = np.split(x, blocks, axis=-1), np.split(y, blocks, axis=-1)
        equal = [[equal[i][j] and _same_bits(xs[j], ys[i]) for j in range(blocks)] for i in range(blocks)]
        if not all(map(any, equal)):
            return None
    return _matching(equal)


def _matching(equal: list[list[bool]]) -> tuple[int, ...] | None:
    """A different column for each row among those that are true, its own where it may; None where there is none."""
    taken: dict[int, int] = {}  # column -> row

    def place(row: int, seen: set[int]) -> bool:
        for column in sorted(range(len(equal)), key=lambda c: c != row):
            if equal[row][column] and column not in seen:
                seen.add(column)
                if column not in taken or place(taken[column], seen):
                    taken[column] = row
                    return True
        return False

    if not all(place(row, set()) for row in range(len(equal))):
        return None
    column_of = {row: column for column, row in taken.items()}
    return tuple(column_of[row] for row in range(len(equal)))


def _floats(a: Stored, b: Stored, order: tuple[int, ...]) -> Compared:
    import numpy as np

    narrow = min(a.dtype, b.dtype, key=lambda dtype: DTYPE_BITS[dtype])
    rounds = a.dtype != b.dtype and narrow in ("BF16", "F16")
    differing = not_finite = 0
    difference = squares_a = squares_b = product = 0.0
    max_abs = 0.0
    for x, y in _parts(a, b, order):
        wide_x, wide_y = _wide(x, a.dtype), _wide(y, b.dtype)
        same = (wide_x == wide_y) | (np.isnan(wide_x) & np.isnan(wide_y))
        differing += int(same.size - np.count_nonzero(same))
        rounds = rounds and _equal_in(narrow, wide_x, wide_y)
        finite = np.isfinite(wide_x) & np.isfinite(wide_y)
        not_finite += int(finite.size - np.count_nonzero(finite))
        wide_x, wide_y = wide_x[finite], wide_y[finite]
        if wide_x.size:
            with np.errstate(over="ignore", invalid="ignore"):  # squares of 64-bit values may go beyond 64 bits
                gap = wide_y - wide_x
                max_abs = max(max_abs, float(np.abs(gap).max()))
                difference += float(gap @ gap)
                squares_a += float(wide_x @ wide_x)
                squares_b += float(wide_y @ wide_y)
                product += float(wide_x @ wide_y)
    if not differing:
        return Compared("equal values", order)
    if rounds:
        return Compared("equal when rounded", order)
    measures = Measures(
        math.prod(a.shape),
        differing,
        not_finite,
        max_abs if math.isfinite(max_abs) else None,
        _ratio(math.sqrt(difference), math.sqrt(squares_a)),
        _ratio(product, math.sqrt(squares_a), math.sqrt(squares_b)),
    )
    return Compared("differs", order, measures)


def _ratio(number: float, *lengths: float) -> float | None:
    """The number over the lengths, one after another; None where one of them is zero or anything went out of range."""
    for length in lengths:
        if not length or not math.isfinite(length):
            return None
        number /= length
    return number if math.isfinite(number) else None


def _wide(values: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    import numpy as np

    return values.astype(np.float64) if dtype == "F64" else as_float32(values, dtype).astype(np.float64)


def _equal_in(dtype: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> bool:
    """Both rounded to the narrower dtype are the same."""
    import numpy as np

    with np.errstate(over="ignore"):
        narrow_x, narrow_y = (rounded(v.astype(np.float32), dtype) for v in (x, y))
    return bool(np.array_equal(narrow_x, narrow_y, equal_nan=True))

"""Values that are no numbers, or that fp16 cannot hold, found in the bits as they are stored: nothing is widened."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from converter.checkpoint.reader import Checkpoint, StoredTensor
from converter.threads import in_threads

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_RUN = 64 << 20  # bytes that one thread takes at a time
_THREADS = min(4, os.cpu_count() or 1)  # more do not read faster

# dtype -> how numpy reads its bits, which of them tell, and what these are in NaN and infinity. The wide ones have all
# exponent bits set; OCP's e4m3 has no infinity and one NaN of each sign, the FNUZ kinds one NaN, e8m0 one.
_NO_NUMBERS: Mapping[str, tuple[str, int, int]] = {
    "BF16": ("<u2", 0x7F80, 0x7F80),
    "F16": ("<u2", 0x7C00, 0x7C00),
    "F32": ("<u4", 0x7F800000, 0x7F800000),
    "F64": ("<u8", 0x7FF0000000000000, 0x7FF0000000000000),
    "F8_E5M2": ("u1", 0x7C, 0x7C),
    "F8_E4M3": ("u1", 0x7F, 0x7F),
    "F8_E5M2FNUZ": ("u1", 0xFF, 0x80),
    "F8_E4M3FNUZ": ("u1", 0xFF, 0x80),
    "F8_E8M0": ("u1", 0xFF, 0xFF),
}
# dtype -> its sign bit left out, the smallest magnitude that fp16 rounds to infinity (65520, or in bf16 the first above
# it, 65536) and the largest that it rounds to zero (2^-25, a tie that goes to even).
_BEYOND_FP16: Mapping[str, tuple[int, int, int]] = {
    "BF16": (0x7FFF, 0x4780, 0x3300),
    "F32": (0x7FFFFFFF, 0x477FF000, 0x33000000),
    "F64": (0x7FFFFFFFFFFFFFFF, 0x40EFFE0000000000, 0x3E60000000000000),
}


def count_not_finite(block: memoryview, dtype: str) -> int:
    """How many values of a block are NaN or infinite; 0 for dtypes that have no such values."""
    if dtype not in _NO_NUMBERS:
        return 0
    import numpy as np

    return int(np.count_nonzero(_not_finite(block, dtype)))


def _not_finite(block: memoryview, dtype: str) -> NDArray[np.bool_]:
    """Where a block has such values; empty where it has none, which is told in half the time."""
    import numpy as np

    form, mask, value = _NO_NUMBERS[dtype]
    bits: NDArray[np.unsignedinteger] = np.bitwise_and(np.frombuffer(block, dtype=form), mask)
    if mask == value and (not bits.size or bits.max() < value):
        return np.zeros(0, dtype=np.bool_)
    return np.asarray(bits == value)


@dataclass(frozen=True)
class Scanned:
    """What a pass over all values of a tensor found.

    not_finite     values that are NaN or infinite; first: where the first of them lies, counted in row order
    over, under    values that fp16 makes infinite, and those other than zero that it makes zero (0 unless asked for)
    first_over     where the first value lies that becomes infinite
    """

    not_finite: int = 0
    first: int | None = None
    over: int = 0
    under: int = 0
    first_over: int | None = None

    def __add__(self, other: Scanned) -> Scanned:
        """This run of a tensor and one that lies behind it."""
        return Scanned(
            self.not_finite + other.not_finite,
            other.first if self.first is None else self.first,
            self.over + other.over,
            self.under + other.under,
            other.first_over if self.first_over is None else self.first_over,
        )


def scan(checkpoint: Checkpoint, names: Iterable[str], for_fp16: frozenset[str] = frozenset()) -> dict[str, Scanned]:
    """Look at every value of the tensors `names`, with a few threads, in a megabyte of memory each.

    for_fp16   those of them that will be cast to fp16
    Raises InputError F100 where a file cannot be read and F109 where one became shorter.
    """
    runs = [
        (stored, start, name in for_fp16)
        for name in names
        if (stored := checkpoint.tensors[name]).info.dtype in _NO_NUMBERS
        for start in range(0, stored.info.nbytes, _RUN)
    ]
    found: dict[str, Scanned] = {}
    for (stored, _, _), scanned in zip(runs, _scanned(checkpoint, runs), strict=True):
        found[stored.name] = found.get(stored.name, Scanned()) + scanned
    return found


def _scanned(checkpoint: Checkpoint, runs: Sequence[tuple[StoredTensor, int, bool]]) -> Iterator[Scanned]:
    """Of each run, in their order; a few megabytes are looked at sooner than threads are there."""
    if sum(min(stored.info.nbytes - start, _RUN) for stored, start, _ in runs) < _RUN:
        yield from (_run(checkpoint, *run) for run in runs)
        return
    yield from in_threads(lambda run: _run(checkpoint, *run), runs, _THREADS, "scan")


def _run(checkpoint: Checkpoint, stored: StoredTensor, start: int, for_fp16: bool) -> Scanned:
    import numpy as np

    dtype, total = stored.info.dtype, Scanned()
    width = np.dtype(_NO_NUMBERS[dtype][0]).itemsize
    for position, block in checkpoint.blocks(stored, start, min(start + _RUN, stored.info.nbytes)):
        bad = _not_finite(block, dtype)
        count = int(np.count_nonzero(bad))
        here = Scanned(count, position // width + int(bad.argmax()) if count else None)
        if for_fp16 and dtype in _BEYOND_FP16:
            here = _beyond(block, dtype, here, position // width)
        total += here
    return total


def _beyond(block: memoryview, dtype: str, here: Scanned, position: int) -> Scanned:
    import numpy as np

    sign, infinite, zero = _BEYOND_FP16[dtype]
    bits = np.bitwise_and(np.frombuffer(block, dtype=_NO_NUMBERS[dtype][0]), sign)
    over = (bits >= infinite) & (bits < _NO_NUMBERS[dtype][2])
    under = int(np.count_nonzero(bits <= zero)) - int(np.count_nonzero(bits == 0))
    count = int(np.count_nonzero(over))
    return Scanned(here.not_finite, here.first, count, under, position + int(over.argmax()) if count else None)

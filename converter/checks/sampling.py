"""Rows of a matrix that stand for all of it: what the checks of values read instead of whole tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from converter.checkpoint.reader import Checkpoint
from converter.transforms import as_float32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_VALUES = 1 << 19  # read of each matrix: 1 MB in bf16
_RUNS = 16  # in each half, so that few reads are made
_FEWEST = 16  # rows of each half, however wide they are


@dataclass(frozen=True)
class Rows:
    """Rows of a matrix [R, n] from all over it; row i of the lower half is as far into it as row i of the upper.

    upper, lower   as stored (bf16 as its bits), [k, n] each; all rows where there are few
    """

    dtype: str
    upper: NDArray[Any]
    lower: NDArray[Any]

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """All of them in fp32, [2k, n]."""
        import numpy as np

        return as_float32(np.concatenate([self.upper, self.lower]), self.dtype)


def spread(checkpoint: Checkpoint, name: str, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Indices of at most `count` rows [k], evenly from the first to the last of the matrix, and the rows [k, n] in
    fp32; raises InputError as `Checkpoint.read` does.
    """
    import numpy as np

    info = checkpoint.tensors[name].info
    picked = np.unique(np.linspace(0, info.shape[0] - 1, min(count, info.shape[0])).astype(np.int64))
    return picked, as_float32(checkpoint.picked(name, picked.tolist()), info.dtype)


def sample(checkpoint: Checkpoint, name: str) -> Rows:
    """Rows of the matrix `name`, which has at least two; raises InputError as `Checkpoint.read` does."""
    import numpy as np

    info = checkpoint.tensors[name].info
    half, width = info.shape[0] // 2, max(info.shape[1], 1)
    count = min(half, max(_VALUES // width // 2, _FEWEST))
    runs = min(_RUNS, count) if count < half else 1
    size = count // runs
    starts = np.linspace(0, half - size, runs).astype(np.int64).tolist()
    upper, lower = (
        np.concatenate([checkpoint.rows(name, first + start, size) for start in starts]) for first in (0, half)
    )
    return Rows(info.dtype, upper, lower)

"""Where the rows of a table are in the target's, when they are not where they should be.

That is asked only of tables that are not the target's row by row, so that a healthy drafter never pays for a pass over
the target's table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from converter.checkpoint.reader import Checkpoint
from converter.checks.fresh import start_of
from converter.checks.sampling import sample, spread
from converter.target_weights import RowTable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROWS = 64  # looked for in the whole table
_FEW = 16  # looked for at single ids
_SHIFTS = 8  # ids up and down
_SAME = 0.95  # cosine of a row with itself after some training; of different tokens it is below 0.8 in trained tables
_MOST = 0.9  # of the rows must be found, for some may be padding or were trained further than others


@dataclass(frozen=True)
class Elsewhere:
    """found of `looked` rows are rows of the table, at other ids than theirs; shift: by how many, None where it varies.

    words   which ids these are, where it is known otherwise
    """

    found: int
    looked: int
    shift: int | None
    words: str = ""

    def __str__(self) -> str:
        where = (
            f"{self.shift:+d} away from their own" if self.shift is not None else "other than their own, in no order"
        )
        return f"{self.found} of {self.looked} rows are the target's of ids {self.words or where}"


def elsewhere(checkpoint: Checkpoint, name: str, ids: NDArray[np.integer] | None, table: RowTable) -> Elsewhere | None:
    """Where most rows of tensor `name` [N, H] are among all rows of the table; None where most are nowhere in it.

    ids   the target id of each row [N]; None: row i is of token i
    """
    import numpy as np

    picked, rows = _picked(checkpoint, name, _ROWS)
    best, at = np.full(len(rows), -1.0, dtype=np.float32), np.zeros(len(rows), dtype=np.int64)
    first = 0
    for block in table.blocks():
        cosines = rows @ _units(block).T
        nearest = cosines.argmax(axis=1)
        here = cosines[np.arange(len(rows)), nearest]
        at = np.where(here > best, first + nearest, at)
        best = np.maximum(best, here)
        first += len(block)
    own = picked if ids is None else ids[picked]
    away = at[best > _SAME] - own[best > _SAME]
    if not len(rows) or len(away) < _MOST * len(rows) or not away.any():
        return None
    shifts, counts = np.unique(away, return_counts=True)
    most = int(counts.argmax())
    return Elsewhere(len(away), len(rows), int(shifts[most]) if counts[most] >= _MOST * len(away) else None)


def nearby(checkpoint: Checkpoint, name: str, ids: NDArray[np.integer] | None, table: RowTable) -> Elsewhere | None:
    """As `elsewhere`, reading only the rows some ids away and, where there is a map, those that no map would name."""
    picked, rows = _picked(checkpoint, name, _FEW)
    own = picked if ids is None else ids[picked]
    for other, shift, words in _candidates(picked, own, mapped=ids is not None):
        inside = (other >= 0) & (other < table.shape[0])
        if int(inside.sum()) < _MOST * max(len(rows), 1):
            continue
        theirs = _units(table.picked(other[inside].tolist()))
        found = int(((rows[inside] * theirs).sum(axis=1) > _SAME).sum())
        if found >= _MOST * len(rows):
            return Elsewhere(found, len(rows), shift, words)
    return None


def _candidates(
    picked: NDArray[np.int64], own: NDArray[np.integer], *, mapped: bool
) -> Iterator[tuple[NDArray[np.integer], int | None, str]]:
    if mapped and not (picked == own).all():
        yield picked, None, "that there are without the map"
    for distance in range(1, _SHIFTS + 1):
        yield own + distance, distance, ""
        yield own - distance, -distance, ""


def _picked(checkpoint: Checkpoint, name: str, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Indices of rows spread over the tensor, without those that are zero, and the rows at length 1."""
    picked, rows = spread(checkpoint, name, count)
    there = rows.any(axis=1)
    return picked[there], _units(rows[there])


def _units(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):  # of rows that are not finite
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    usable = np.isfinite(lengths) & (lengths > 0)  # the others are near nothing
    return np.asarray(np.where(usable, rows, 0) / np.where(usable, lengths, 1), dtype=np.float32)


def kind_of_stranger(checkpoint: Checkpoint, name: str, *, table: bool) -> str:
    """What the values of a table are that has no row of the target: at their random start, or another model's."""
    start = start_of(sample(checkpoint, name).values, table=table)
    return (
        f"at its random start: {start}" if start else "trained values, but none of this target's rows: another model's"
    )

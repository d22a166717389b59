"""Embedding rows of a sample's tokens: of the drafter's own table, of the target's, or the sample's point 0.

Of a table only the rows of tokens that occur are read: a table of a large target has gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from converter.checkpoint.reader import Checkpoint
from converter.forward.states import States
from converter.forward.weights import picked
from converter.target_weights import RowTable

_COMPARED = 512  # tokens that two embeddings are compared on


@dataclass(frozen=True)
class Embedding:
    """`rows(sequence, start, stop)` gives [stop-start, H] for x_start..x_{stop-1}; `whose` is for the report."""

    whose: str
    rows: Callable[[States, int, int], Tensor]


def of_checkpoint(checkpoint: Checkpoint, name: str, sequences: Iterable[States]) -> Embedding:
    """The drafter's own table `name` [V, H]."""
    return _of_rows("the drafter's own", lambda ids: picked(checkpoint, name, ids).float(), sequences)


def of_target(table: RowTable, sequences: Iterable[States]) -> Embedding:
    """The target's table [V, Ht]."""
    return _of_rows("the target's", lambda ids: torch.from_numpy(table.picked(ids)), sequences)


def of_point_0() -> Embedding:
    """The sample's own states at point 0, which are the target's embedding rows."""
    return Embedding("the target's (point 0 of the sample)", lambda s, start, stop: s.state(0, start, stop).float())


def _of_rows(whose: str, read: Callable[[list[int]], Tensor], sequences: Iterable[States]) -> Embedding:
    ids = torch.unique(torch.cat([s.tokens for s in sequences]))
    table = read(ids.tolist())

    def rows(sequence: States, start: int, stop: int) -> Tensor:
        return table[torch.searchsorted(ids, sequence.tokens[start:stop])]

    return Embedding(whose, rows)


def alike(own: Embedding, other: Embedding, sequences: Iterable[States]) -> bool:
    """Whether two embeddings give the same rows, to rounding (bf16 rounds within 1/256) and one factor for all."""
    sequence = max(sequences, key=lambda s: len(s.tokens))
    count = min(len(sequence.tokens), _COMPARED)
    a, b = own.rows(sequence, 0, count).double(), other.rows(sequence, 0, count).double()
    if a.shape != b.shape:
        return False
    factor = float((a * b).sum() / a.square().sum().clamp(min=1e-30))
    gap = (b - factor * a).norm(dim=-1)
    return factor > 0 and bool((gap <= abs(factor) * a.norm(dim=-1) / 64).all())

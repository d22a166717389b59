"""What a forward needs of a sequence, and sequences made of random states, for which no target is needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class States(Protocol):
    """tokens [T] int64; counts [T] bool: tokens that the target wrote; target_next [T] int64: its choice after each."""

    @property
    def tokens(self) -> Tensor: ...
    @property
    def counts(self) -> Tensor: ...
    @property
    def target_next(self) -> Tensor: ...
    @property
    def points(self) -> tuple[int, ...]: ...

    def state(self, point: int, start: int = 0, stop: int | None = None) -> Tensor:
        """[stop-start, Ht]: the target's states at a capture point."""


@dataclass(frozen=True)
class RandomStates:
    """Random tokens with random states: the same state whenever it is asked for.

    The size of states differs from one to the next as it does in targets, whose residual stream grows.
    """

    tokens: Tensor
    counts: Tensor
    target_next: Tensor
    points: tuple[int, ...]
    width: int
    seed: int

    def state(self, point: int, start: int = 0, stop: int | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * self.seed + point)
        states = torch.randn(len(self.tokens), self.width, generator=generator)
        return (states * (1 + point % 7))[start:stop]


def random_states(points: Iterable[int], width: int, vocab_size: int, lengths: Iterable[int]) -> list[RandomStates]:
    """One sequence of random tokens per length."""
    sequences = []
    for seed, length in enumerate(lengths):
        tokens = torch.randint(vocab_size, (length,), generator=torch.Generator().manual_seed(seed))
        every = torch.ones(length, dtype=torch.bool)
        sequences.append(RandomStates(tokens, every, tokens, tuple(sorted(set(points))), width, seed))
    return sequences

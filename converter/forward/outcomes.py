"""What a drafter said about one sequence, in the numbers that all scores are made of.

Row i of a sequence x_0..x_{T-1} takes token x_{i+1} with the target's state at position i. Its step k takes x_{i+1+k},
the true token, and names x_{i+2+k}. Its label is the target's own choice there, `target_next[i+1+k]`, and it counts
where `counts[i+1+k]` does. So step k has the rows 0..T-2-k.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """One sequence of T tokens with R = T-1 rows, K steps each. All on the CPU.

    tokens       [T] int64
    counts       [T] bool    tokens that the target wrote. What follows an end-of-sequence token must not count
    target_next  [T] int64   the target's choice over its full vocabulary after each position
    choices      [K, R] int64    the target's id that step k of row i names; past the last row of a step: anything
    likelihood   [K, R] float32  natural logarithm of the (smoothed) probability that step k of row i gives its label;
                                 NaN where that is not known
    """

    tokens: Tensor
    counts: Tensor
    target_next: Tensor
    choices: Tensor
    likelihood: Tensor

    def __post_init__(self) -> None:
        length = len(self.tokens)
        shape = (self.choices.shape[0], max(length - 1, 0))
        if {len(self.counts), len(self.target_next)} != {length} or self.choices.shape != shape:
            raise ValueError(f"choices {list(self.choices.shape)} do not belong to {length} tokens")
        if self.likelihood.shape != shape:
            raise ValueError(f"likelihood {list(self.likelihood.shape)} does not belong to {length} tokens")

    @property
    def steps(self) -> int:
        return int(self.choices.shape[0])

    def rows(self, step: int) -> int:
        """How many rows have this step."""
        return max(len(self.tokens) - 1 - step, 0)

    def counted(self, step: int) -> Tensor:
        """[R_k] bool: rows whose label counts at this step."""
        return self.counts[1 + step :].bool()

    def labels(self, step: int) -> Tensor:
        """[R_k] int64."""
        return self.target_next[1 + step :]

    def right(self) -> list[Tensor]:
        """Of every step k, [R_k] bool: rows that named their labels at all steps 0..k."""
        result: list[Tensor] = []
        for step in range(self.steps):
            hit = self.choices[step, : self.rows(step)] == self.labels(step)
            result.append(hit if step == 0 else hit & result[-1][: len(hit)])
        return result

    def greedy(self) -> Tensor:
        """[T] bool: tokens that are the target's choice after the token before; x_0 is not known and says no."""
        hit = torch.zeros(len(self.tokens), dtype=torch.bool)
        hit[1:] = self.tokens[1:] == self.target_next[:-1]
        return hit

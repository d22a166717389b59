"""95 % intervals for shares of rows, where rows of one text are not independent.

Rows are put together in clusters: whole sequences where there are enough of them, else stretches of consecutive
rows. The variance of a share (a ratio of two sums) is estimated between clusters (Cochran, Sampling Techniques,
section 6.3; Kish's design effect is that variance over the binomial one, here never below 1), and Wilson's interval
is taken with the number of independent rows that would have the same variance, with Student's t for the few clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

ENOUGH = 10  # clusters, for a variance between them to mean something
STRETCH = 32  # rows; longer than most repetition within a text, short enough for one sequence to give several
_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Share:
    """`hits` of `rows`, and the 95 % interval of that share."""

    hits: int
    rows: int
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.hits / self.rows


def share(hits: Sequence[Tensor], counted: Sequence[Tensor]) -> Share | None:
    """The share of counted rows that are hits; None where nothing counts.

    Of every sequence, hits [R] bool and counted [R] bool.
    """
    rows = sum(int(c.sum()) for c in counted)
    if not rows:
        return None
    hits = [(h & c).long() for h, c in zip(hits, counted, strict=True)]
    total = sum(int(h.sum()) for h in hits)
    groups, number = clusters(counted)
    spread = variance([(per_cluster(hits, groups, number), per_cluster(counted, groups, number))])
    return Share(total, rows, *wilson(total / rows, rows, spread, number))


def clusters(counted: Sequence[Tensor]) -> tuple[list[Tensor], int]:
    """Of every sequence, the cluster [R] of each row; and how many clusters hold rows that count.

    Whole sequences if at least ENOUGH of them have rows that count, else stretches of at most STRETCH consecutive
    rows within a sequence, halved until there are ENOUGH of them.
    """
    if sum(bool(c.any()) for c in counted) >= ENOUGH:
        return _numbered(counted, None)
    length = STRETCH
    while True:
        groups, number = _numbered(counted, length)
        if number >= ENOUGH or length == 1:
            return groups, number
        length //= 2


def _numbered(counted: Sequence[Tensor], length: int | None) -> tuple[list[Tensor], int]:
    groups, number = [], 0
    for rows in counted:
        place = torch.arange(len(rows)) // (length or max(len(rows), 1))
        _, index = torch.unique(place[rows.bool()], return_inverse=True)
        group = torch.zeros(len(rows), dtype=torch.int64)
        group[rows.bool()] = index + number
        groups.append(group)
        number += int(index.max()) + 1 if len(index) else 0
    return groups, number


def per_cluster(values: Sequence[Tensor], groups: Sequence[Tensor], number: int) -> Tensor:
    """[number] float64: sums of values [R], which are 0 in rows that do not count."""
    total = torch.zeros(number, dtype=torch.float64)
    for value, group in zip(values, groups, strict=True):
        total.index_add_(0, group[: len(value)], value.double())
    return total


def variance(ratios: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Of a sum of ratios sum(y_j) / sum(n_j), from the sums y_j, n_j [G] of the same G clusters, by linearisation."""
    number = len(ratios[0][0])
    if number < 2:
        return 0.0
    residual = sum(((y - y.sum() / n.sum() * n) / n.sum() for y, n in ratios), torch.zeros(number, dtype=torch.float64))
    return float(residual.pow(2).sum()) * number / (number - 1)


def wilson(value: float, trials: float, spread: float, number: int) -> tuple[float, float]:
    """The interval of a share `value` with variance `spread` between `number` clusters, of at most `trials` rows.

    Where the spread is 0 (all right, all wrong, a single cluster) rows count as independent.
    """
    own = value * (1 - value)
    trials = min(trials, own / spread) if own > 0 and spread > 0 else trials
    t = student(max(number - 1, 1))
    middle = (value + t * t / (2 * trials)) / (1 + t * t / trials)
    half = t / (1 + t * t / trials) * (own / trials + t * t / (4 * trials * trials)) ** 0.5
    return max(middle - half, 0.0), min(middle + half, 1.0)


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t (Cornish and Fisher's expansion; 12.7 and 4.3 for the first two)."""
    if freedom < 3:
        return (12.706, 4.303)[freedom - 1]
    z = _Z
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3

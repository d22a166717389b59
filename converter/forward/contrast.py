"""Whether one wiring fits a sample better than another: paired differences of log-likelihood, position by position.

Accuracy is too coarse (a layer set off by one can cost one point of it, inside the noise of a thousand positions);
the difference of log-likelihoods of the same labels under two wirings has most of that noise in common and loses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Verdict = Literal["better", "worse", "equal", "undecided"]

BETTER = 4.0  # z from which a wiring is called better: some thirty are tried, three times over
WORSE = 3.0
MARGIN = 0.05  # nats per position over all steps: less than that is no difference that a server shows
CLUSTER = 8  # consecutive positions taken as one observation, since they are not independent
_FEW = 6  # clusters below which no spread can be estimated


@dataclass
class Contrast:
    """A candidate against the declared wiring, over `positions` rows in clusters.

    Differences are candidate minus declared, summed over the steps of a row, in nats.

    sums, counts   of each cluster, the sum of its rows' differences, and how many rows it has
    """

    sums: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, difference: Tensor, unit: Tensor) -> None:
        """difference [N]; unit [N]: rows with the same number lie in one stretch of text."""
        difference = difference.double().cpu()
        for number in torch.unique(unit).tolist():
            for part in torch.split(difference[unit == number], CLUSTER):
                self.sums.append(float(part.sum()))
                self.counts.append(len(part))

    @property
    def positions(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Nats per position; 0 where there is none."""
        return sum(self.sums) / self.positions if self.positions else 0.0

    @property
    def error(self) -> float:
        """Standard error of the mean, clusters as units."""
        clusters = len(self.sums)
        if clusters < 2:
            return math.inf
        mean = self.mean
        spread = sum([(s - mean * n) ** 2 for s, n in zip(self.sums, self.counts, strict=True)])
        return math.sqrt(clusters / (clusters - 1) * spread) / self.positions

    @property
    def z(self) -> float:
        """The mean over its standard error, brought from Student's t to the normal scale.

        Wallace's approximation (D. L. Wallace, Ann. Math. Statist. 30, 1959): within 1 % down to three clusters.
        """
        freedom, mean = len(self.sums) - 1, self.mean
        if not mean or freedom < 1:
            return 0.0
        error = self.error
        if not error:
            return math.copysign(math.inf, mean)
        t = mean / error
        size = math.sqrt(freedom * math.log1p(t * t / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
        return math.copysign(size, t)

    @property
    def verdict(self) -> Verdict:
        """equal: not told apart, and better by less than MARGIN at most; undecided: it may be better by more."""
        if len(self.sums) < _FEW:
            return "undecided"
        z = self.z
        if z >= BETTER and self.mean > MARGIN:
            return "better"
        if z <= -WORSE:
            return "worse"
        return "equal" if self.mean + WORSE * self.error <= MARGIN else "undecided"

    @property
    def mirrored(self) -> Contrast:
        """The same with the two wirings exchanged."""
        return Contrast([-s for s in self.sums], list(self.counts))

    @property
    def needed(self) -> int:
        """Positions on which a difference of this size would be decided; meaningful where undecided."""
        if len(self.sums) < _FEW:
            return 20 * CLUSTER
        # Whichever comes first: shown to be better, to be worse, or to be better by no more than MARGIN.
        ways = [WORSE * self.error / (MARGIN - self.mean)] if self.mean < MARGIN else []
        ways += [BETTER * self.error / self.mean] if self.mean > MARGIN else []
        ways += [WORSE * self.error / -self.mean] if self.mean < 0 else []
        return math.ceil(self.positions * min(ways, default=1.0) ** 2)

    def as_json(self) -> dict[str, Any]:
        """Of report and seal; error and z are null where they are not finite (too few clusters, or no spread)."""
        error, z = self.error, self.z
        return {
            "difference": round(self.mean, 6),
            "error": round(error, 6) if math.isfinite(error) else None,
            "z": round(z, 3) if math.isfinite(z) else None,
            "positions": self.positions,
            "verdict": self.verdict,
        }

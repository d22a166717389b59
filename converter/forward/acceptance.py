"""Acceptance length: 1 + accepted draft tokens / verification steps, for a greedy chain of drafted tokens.

On a text that the target wrote greedily it is exact and needs no target: there a server accepts what equals the text.
On other texts it is an estimate, and is called one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from converter.forward.intervals import Share, clusters, per_cluster, share, variance, wilson
from converter.forward.outcomes import Outcome


@dataclass(frozen=True)
class Walk:
    """The verification steps of a server on one sequence.

    positions  the row that each step's chain starts from
    accepted   how many drafted tokens each step accepts
    """

    positions: tuple[int, ...]
    accepted: tuple[int, ...]


@dataclass(frozen=True)
class Acceptance:
    """The mean acceptance length with chains of `chain` drafted tokens, and its 95 % interval.

    exact         replayed on a greedy text; else estimated from single rows
    per_position  [chain] share of verification steps that accept draft token 0, 1, ..; length = 1 + their sum
    accepted      drafted tokens accepted in the replay, `steps` verification steps; None in an estimate
    rows          rows that each of `per_position` was estimated on; empty in a replay
    """

    chain: int
    exact: bool
    length: float
    low: float
    high: float
    per_position: tuple[float, ...]
    accepted: int | None
    steps: int | None
    rows: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """Of report and seal (schemas/report.schema.json)."""
        return {
            "chain": self.chain,
            "exact": self.exact,
            "length": self.length,
            "interval": [self.low, self.high],
            "per_position": list(self.per_position),
            "accepted": self.accepted,
            "steps": self.steps,
            "rows": list(self.rows),
        }


def greedy_share(outcomes: Sequence[Outcome]) -> Share | None:
    """How many of the tokens that count are the target's choice after the token before."""
    return share([o.greedy()[1:] for o in outcomes], [o.counted(0) for o in outcomes])


def walk(outcome: Outcome, chain: int) -> Walk:
    """The server's walk over a greedy sequence, turn by turn (a turn: a run of tokens that count).

    A turn begins with its first token x_p, which the prefill gave: the chain from row p-1 (state p-1, token x_p)
    guesses x_{p+1}, x_{p+2} and so on. From row i a step accepts while the chain equals the text, and the next one
    starts at row i + 1 + accepted. The turn ends with its last token; a chain that is right up to there and runs past
    it is not counted, as nothing says whether it would have gone on.

    The choices are teacher-forced, which makes no difference: they are read only as far as the chain equals the text.
    Raises ValueError for a chain longer than the steps that were run.
    """
    if not 1 <= chain <= outcome.steps:
        raise ValueError(f"a chain of {chain}, where steps 1 to {outcome.steps} were run")
    accepted, positions = [], []
    choices, tokens = outcome.choices.tolist(), outcome.tokens.tolist()
    for first, end in _turns(outcome.counts):
        row = max(first - 1, 0)
        while row + 2 < end:
            most = min(chain, end - (row + 2))
            count = 0
            while count < most and choices[count][row] == tokens[row + 2 + count]:
                count += 1
            if count == most < chain:
                break
            positions.append(row)
            accepted.append(count)
            row += 1 + count
    return Walk(tuple(positions), tuple(accepted))


def acceptance(outcomes: Sequence[Outcome], chain: int, choices_known: bool = True) -> Acceptance | None:
    """Exact where every token that counts is the target's greedy choice, else an estimate.

    choices_known   False where the labels are the text itself, which then looks greedy

    None where the sample is too short to tell. Raises ValueError for a chain longer than the steps that were run.
    """
    greedy = greedy_share(outcomes)
    if greedy is None:
        return None
    exact = choices_known and greedy.hits == greedy.rows
    return _replayed(outcomes, chain) if exact else _estimated(outcomes, chain)


def _replayed(outcomes: Sequence[Outcome], chain: int) -> Acceptance | None:
    starts, accepted = [], []
    for outcome in outcomes:
        steps = walk(outcome, chain)
        at = torch.tensor(steps.positions, dtype=torch.int64)
        start = torch.zeros(outcome.rows(0), dtype=torch.bool)
        start[at] = True
        count = torch.zeros(outcome.rows(0), dtype=torch.int64)
        count[at] = torch.tensor(steps.accepted, dtype=torch.int64)
        starts.append(start)
        accepted.append(count)
    number, total = sum(int(s.sum()) for s in starts), sum(int(a.sum()) for a in accepted)
    if not number:
        return None
    groups, among = clusters(starts)
    # As a share of the drafted tokens it has an interval that stays within its bounds, also at 0 and at all.
    spread = variance([(per_cluster(accepted, groups, among), chain * per_cluster(starts, groups, among))])
    low, high = wilson(total / (chain * number), chain * number, spread, among)
    rates = tuple(sum(int((a > k).sum()) for a in accepted) / number for k in range(chain))
    return Acceptance(chain, True, 1 + total / number, 1 + chain * low, 1 + chain * high, rates, total, number, ())


def _estimated(outcomes: Sequence[Outcome], chain: int) -> Acceptance | None:
    """1 + the sum over k < chain of P(right at steps 0..k).

    Step k is judged on rows that a server could start from (x_{i+1}.. x_{i+1+k} count) and whose tokens x_{i+2}..
    x_{i+1+k} are the target's choices: there a right chain was fed what it had drafted itself.
    """
    if chain > min(o.steps for o in outcomes):
        raise ValueError(f"a chain of {chain}, where fewer steps were run")
    right = [o.right() for o in outcomes]
    usable = [_usable(o, chain) for o in outcomes]
    rows = tuple(sum(int(u[k].sum()) for u in usable) for k in range(chain))
    if not all(rows):
        return None
    groups, among = clusters([u[0] for u in usable])
    ratios = []
    for k in range(chain):
        hits = [r[k] & u[k] for r, u in zip(right, usable, strict=True)]
        ratios.append((per_cluster(hits, groups, among), per_cluster([u[k] for u in usable], groups, among)))
    rates = tuple(float(y.sum() / n.sum()) for y, n in ratios)
    mean = sum(rates)
    low, high = wilson(mean / chain, sum(rows), variance(ratios) / chain**2, among)
    return Acceptance(chain, False, 1 + mean, 1 + chain * low, 1 + chain * high, rates, None, None, rows)


def _usable(outcome: Outcome, chain: int) -> list[Tensor]:
    """Of every step k < chain, [R_k] bool."""
    greedy, result = outcome.greedy(), [outcome.counted(0)]
    for k in range(1, chain):
        rows = outcome.rows(k)
        result.append(result[-1][:rows] & outcome.counted(k) & greedy[1 + k :])
    return result


def _turns(counts: Tensor) -> list[tuple[int, int]]:
    """First token and end of every run of tokens that count."""
    padded = torch.zeros(len(counts) + 2, dtype=torch.int64)
    padded[1:-1] = counts.long()
    change = padded.diff()
    return list(zip((change == 1).nonzero()[:, 0].tolist(), (change == -1).nonzero()[:, 0].tolist(), strict=True))

"""How often a drafter is right on a sample: by draft step and by position, with intervals, and what a server gains.

Definitions and their relation to what trainers and engines log: docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from converter.forward.acceptance import Acceptance, acceptance, greedy_share
from converter.forward.intervals import Share, share
from converter.forward.outcomes import Outcome

DEFINITION = "rows right at all steps 0..k against the target's choice over its full vocabulary"
_FIRST_BUCKET = 256


@dataclass(frozen=True)
class Bucket:
    """Step 0 of the rows first..last (their positions in the sequence)."""

    first: int
    last: int
    accuracy: Share


@dataclass(frozen=True)
class Scores:
    """Of every step k; None where no row of it counts.

    steps           rows right at all steps 0..k, of the rows that count at step k
    conditional     the same, of those that were still right after step k-1
    in_vocabulary   the same as `steps`, of the rows whose labels at steps 0..k are all in the draft vocabulary
    draft_vocabulary   the same as `steps` against the target's choice among the draft vocabulary, as trainers log it;
                    empty where that is not known
    log_likelihood  mean over the rows that count of ln P(label), P smoothed as in evaluate.py

    Of step 0: `coverage`, the labels that are in the draft vocabulary (no accuracy can be higher), and `by_position`.
    greedy      tokens that count and are the target's choice after the token before
    acceptance  for chains of 1..K drafted tokens, those that can be told
    """

    steps: tuple[Share | None, ...]
    conditional: tuple[Share | None, ...]
    in_vocabulary: tuple[Share | None, ...]
    draft_vocabulary: tuple[Share | None, ...]
    log_likelihood: tuple[float | None, ...]
    coverage: Share
    by_position: tuple[Bucket, ...]
    greedy: Share
    acceptance: tuple[Acceptance, ...]

    @property
    def right(self) -> tuple[int, ...]:
        """Rows right at all steps 0..k, 0 where no row of step k counts."""
        return tuple(s.hits if s else 0 for s in self.steps)

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows that count at step k."""
        return tuple(s.rows if s else 0 for s in self.steps)

    @property
    def accuracy(self) -> tuple[float, ...]:
        """Of the steps that have rows."""
        return tuple(s.value for s in self.steps if s)


def score(
    outcomes: Sequence[Outcome],
    *,
    in_draft: Tensor | None = None,
    choices_known: bool = True,
    draft_labels: Sequence[Tensor] | None = None,
) -> Scores:
    """Score a sample; in_draft [V] bool says which of the target's ids the drafter can name (None: all).

    draft_labels    per sequence [T] int64, the target's choice among the draft vocabulary, where it is known
    choices_known   False where the labels are the text's own tokens: nothing tells whether it is the target's choice

    Raises ValueError where no row counts: nothing measured is no measurement.
    """
    if not outcomes or len({o.steps for o in outcomes}) != 1 or not outcomes[0].steps:
        raise ValueError("scores need sequences that were all run for the same number of steps, one at least")
    number = outcomes[0].steps
    right = [o.right() for o in outcomes]
    covered = [_covered(o, in_draft) for o in outcomes]
    steps, conditional, in_vocabulary = [], [], []
    for k in range(number):
        hits = [r[k] for r in right]
        counted = [o.counted(k) for o in outcomes]
        before = [c if k == 0 else c & r[k - 1][: len(c)] for c, r in zip(counted, right, strict=True)]
        steps.append(share(hits, counted))
        conditional.append(share(hits, before))
        in_vocabulary.append(share(hits, [c & v[k] for c, v in zip(counted, covered, strict=True)]))
    first = [o.counted(0) for o in outcomes]
    coverage, greedy = share([v[0] for v in covered], first), greedy_share(outcomes)
    if coverage is None or greedy is None:
        raise ValueError("no row counts, so nothing was measured")
    chains = [acceptance(outcomes, chain, choices_known) for chain in range(1, number + 1)]
    return Scores(
        tuple(steps),
        tuple(conditional),
        tuple(in_vocabulary),
        tuple(_against(outcomes, draft_labels)) if draft_labels is not None else (),
        tuple(_mean([o.likelihood[k, : o.rows(k)][o.counted(k)] for o in outcomes]) for k in range(number)),
        coverage,
        tuple(_buckets([r[0] for r in right], first)),
        greedy,
        tuple(a for a in chains if a),
    )


def _against(outcomes: Sequence[Outcome], labels: Sequence[Tensor]) -> list[Share | None]:
    """Of every step, rows right at all steps so far against other labels."""
    others = [replace(o, target_next=label) for o, label in zip(outcomes, labels, strict=True)]
    right = [o.right() for o in others]
    return [share([r[k] for r in right], [o.counted(k) for o in others]) for k in range(others[0].steps)]


def _covered(outcome: Outcome, in_draft: Tensor | None) -> list[Tensor]:
    """Of every step k, [R_k] bool: the labels of steps 0..k are all in the draft vocabulary."""
    result: list[Tensor] = []
    for k in range(outcome.steps):
        labels = outcome.labels(k)
        inside = torch.ones(len(labels), dtype=torch.bool) if in_draft is None else in_draft[labels].bool()
        result.append(inside if k == 0 else inside & result[-1][: len(inside)])
    return result


def _buckets(hits: Sequence[Tensor], counted: Sequence[Tensor]) -> list[Bucket]:
    """Rows 0..255, 256..511, 512..1023 and so on doubling; those where something counts."""
    result, first, end = [], 0, _FIRST_BUCKET
    while first < max(len(c) for c in counted):
        measured = share([h[first:end] for h in hits], [c[first:end] for c in counted])
        if measured:
            result.append(Bucket(first, end - 1, measured))
        first, end = end, 2 * end
    return result


def _mean(values: Sequence[Tensor]) -> float | None:
    known = torch.cat(list(values)).double()
    known = known[~known.isnan()]
    return float(known.mean()) if len(known) else None


def as_json(scores: Scores) -> dict[str, Any]:
    """Of report and seal. Shares are {right, rows, share, interval}, null where no row counts."""
    return {
        "definition": DEFINITION,
        "right": list(scores.right),
        "rows": list(scores.rows),
        "accuracy": list(scores.accuracy),
        "interval": [None if s is None else [s.low, s.high] for s in scores.steps],
        "conditional": [_share(s) for s in scores.conditional],
        "in_vocabulary": [_share(s) for s in scores.in_vocabulary],
        "draft_vocabulary": [_share(s) for s in scores.draft_vocabulary],
        "log_likelihood": list(scores.log_likelihood),
        "coverage": _share(scores.coverage),
        "by_position": [{"first": b.first, "last": b.last, "accuracy": _share(b.accuracy)} for b in scores.by_position],
        "greedy": _share(scores.greedy),
        "acceptance": [a.as_json() for a in scores.acceptance],
    }


def _share(measured: Share | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    return {
        "right": measured.hits,
        "rows": measured.rows,
        "share": measured.value,
        "interval": [measured.low, measured.high],
    }

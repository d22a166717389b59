"""Why an engine computes something else than the trainer, and what that costs.

Each field that the engine computes otherwise is given to the reference alone: what then differs is due to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from converter.drafter.layout import expected_tensors
from converter.drafter.spec import DrafterSpec, differences
from converter.findings import Finding
from converter.forward import proof_findings as findings_of
from converter.forward.evaluate import Evaluation, Side, evaluate
from converter.forward.model import DraftModel
from converter.forward.proof_findings import Cost
from converter.forward.rope import NotComputable
from converter.forward.scores import score
from converter.forward.states import States

_ROWS = 4096  # rows that the fields are tried on one by one


def disagreement(
    first: Side,
    side: Side,
    trained: Evaluation,
    served: Evaluation,
    sequences: Sequence[States],
    steps: int,
    tolerance: float,
    labelled: bool,
) -> Finding:
    """N102 of `side` against the reference `first`, whose evaluations are given; labelled: there is a sample."""
    costs = [
        cost
        for name in _differing(first.model.spec, side.model.spec)
        if (cost := _cost(name, first, side, _some(sequences), steps, tolerance, labelled)) is not None
    ]
    gap = 0.0
    if side.embedding is not first.embedding:
        for sequence in sequences:
            count = len(sequence.tokens)
            rows = first.embedding.rows(sequence, 0, count) - side.embedding.rows(sequence, 0, count)
            gap = max(gap, float(rows.abs().max()))
    whole = (score(trained.outcomes), score(served.outcomes)) if labelled else None
    return findings_of.disagrees(
        side.label, served.difference, tolerance, costs, gap, names_others(first, side), whole
    )  # fmt: skip


def names_others(first: Side, side: Side) -> bool:
    """Whether draft tokens mean other target tokens to the second."""
    return first.to_target.tolist() != side.to_target.tolist()


def only_windows_move(first: Side, side: Side, sequences: Sequence[States], steps: int, tolerance: float) -> bool:
    """Whether the trainer's forward differs from the engine's in nothing but how windows move with the steps."""
    if all(window is None for window in first.model.spec.layer_windows) or names_others(first, side):
        return False
    moving = replace(first, model=DraftModel(first.model.spec, first.model.weights, windows_move=True))
    [_, theirs] = evaluate([moving, side], sequences, steps)
    return theirs.difference.logits <= tolerance


def _differing(ours: DrafterSpec, theirs: DrafterSpec) -> list[str]:
    names = differences(ours, replace(theirs, dtype=ours.dtype))
    # The blocks of fc are permuted with their points.
    permuted = sorted(ours.capture_points) == sorted(theirs.capture_points)
    return [n for n in names if n != "capture_points" or not permuted]


def _some(sequences: Sequence[States]) -> Sequence[States]:
    rows = accumulate(len(s.tokens) for s in sequences)
    return [s for s, so_far in zip(sequences, rows, strict=True) if so_far - len(s.tokens) < _ROWS]


def _cost(
    name: str, first: Side, side: Side, sequences: Sequence[States], steps: int, tolerance: float, labelled: bool
) -> Cost | None:
    """None where the field changes nothing; without scores where the reference cannot compute it alone."""
    ours, theirs = getattr(first.model.spec, name), getattr(side.model.spec, name)
    changed = replace(first.model.spec, **{name: theirs})
    weights = first.model.weights
    wanted = expected_tensors(changed)
    if any(n in weights and tuple(weights[n].shape) != e.shape for n, e in wanted.items()):
        return Cost(name, ours, theirs, None)
    try:
        model = DraftModel(changed, {n: w for n, w in weights.items() if n in wanted})
        variant = replace(first, model=model, points=changed.capture_points)
        own, alone = evaluate([first, variant], sequences, steps)
    except (NotComputable, KeyError):  # a part that the reference has no weights for
        return Cost(name, ours, theirs, None)
    if alone.difference.logits <= tolerance:
        return None
    return Cost(name, ours, theirs, (score(own.outcomes), score(alone.outcomes)) if labelled else None)

"""Why an engine computes something else than the trainer, and what that costs.

Each field that the engine computes otherwise is given to the reference alone: what then differs is due to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

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
    part = longest([s for s in sequences if bool(s.counts[1:].any())] if labelled else sequences, _ROWS)
    names = _differing(first.model.spec, side.model.spec)
    variants = {name: _alone(name, first, side) for name in names}
    if side.embedding is not first.embedding:
        variants["embed_tokens.weight"] = replace(first, embedding=side.embedding)
    computed = {name: variant for name, variant in variants.items() if variant is not None}
    own, *alone = evaluate([first, *computed.values()], part, steps)
    costs = [Cost(name, *_values(name, first, side)) for name in names if variants[name] is None]
    for name, result in zip(computed, alone, strict=True):
        if result.difference.logits > tolerance:
            scores = (score(own.outcomes), score(result.outcomes)) if labelled else None
            costs.append(Cost(name, *_values(name, first, side), scores))
    whole = (score(trained.outcomes), score(served.outcomes)) if labelled else None
    return findings_of.disagrees(side.label, served.difference, tolerance, costs, names_others(first, side), whole)


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


def longest(sequences: Sequence[States], rows: int) -> Sequence[States]:
    """The longest sequences, which show most, up to about `rows` rows; one at least."""
    ordered = sorted(sequences, key=lambda s: -len(s.tokens))
    so_far = accumulate(len(s.tokens) for s in ordered)
    return [s for s, total in zip(ordered, so_far, strict=True) if total - len(s.tokens) < rows]


def _values(name: str, first: Side, side: Side) -> tuple[Any, Any]:
    if name == "embed_tokens.weight":
        return "the drafter's own", "the target's"
    return getattr(first.model.spec, name), getattr(side.model.spec, name)


def _alone(name: str, first: Side, side: Side) -> Side | None:
    """The reference with one field of the engine's; None where it has no weights for that."""
    changed = replace(first.model.spec, **{name: getattr(side.model.spec, name)})
    wanted = {n: e for n, e in expected_tensors(changed).items() if n in first.model.weights or not e.optional}
    weights = {n: w for n, w in first.model.weights.items() if n in wanted}
    if any(n not in weights or tuple(weights[n].shape) != e.shape for n, e in wanted.items()):
        return None
    try:
        return replace(first, model=DraftModel(changed, weights), points=changed.capture_points)
    except NotComputable:
        return None

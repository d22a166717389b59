"""Prepares a proof: what each engine would see, the sample, what is at hand of the target. Imports torch late."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from converter.checkpoint.reader import Checkpoint, open_checkpoint
from converter.checks.as_it_is import Seen
from converter.checks.engine import would_see
from converter.drafter.drafter import Drafter
from converter.drafter.target import Target
from converter.errors import UsageError
from converter.plan import Plan
from converter.rules.engine import EngineRelease
from converter.source import open_source
from converter.target_weights import TargetWeights

if TYPE_CHECKING:
    from converter.forward.prove import Question
    from converter.forward.sample import Sample
    from converter.forward.sides import EngineFiles

DEFAULT_STEPS = 3  # where the trainer recommends none
DEFAULT_POSITIONS = 16384  # an accuracy of 50 % is then known to about 1 point
_MOST_STEPS = 16


@dataclass(frozen=True)
class Wish:
    """What the user wants proved: the options of the same names. positions 0: all of the sample."""

    sample: Path | None = None
    prove: bool = False
    find_wiring: bool = False
    sample_points: tuple[int, ...] | None = None
    positions: int | None = None
    steps: int | None = None
    device: str = "auto"
    min_accuracy: float | None = None

    @property
    def anything(self) -> bool:
        return self.prove or self.sample is not None

    def check(self) -> None:
        """Raises UsageError for options that do not go together, and without torch."""
        if self.anything and importlib.util.find_spec("torch") is None:
            option = "--sample" if self.sample is not None else "--prove"
            raise UsageError(f"{option} needs torch, which is not installed:  pip install 'eagle3-convert[torch]'")
        for value, option in ((self.min_accuracy, "--min-accuracy"), (self.sample_points, "--sample-points")):
            if value is not None and self.sample is None:
                raise UsageError(f"{option} needs --sample: there is nothing to measure it on")
        if self.find_wiring and self.sample is None:
            raise UsageError("--find-wiring needs --sample: the wiring is found by what fits it")
        if self.positions is not None and (self.positions < 0 or self.sample is None):
            raise UsageError("--positions: expected a number of the sample's positions (0: all), with --sample")
        if self.steps is not None and not 1 <= self.steps <= _MOST_STEPS:
            raise UsageError(f"--steps {self.steps}: expected 1 to {_MOST_STEPS} draft steps")


def written(plan: Plan, folder: Path, target: Target) -> list[EngineFiles]:
    """The files in `folder` as each release of the plan sees them."""
    from converter.forward.sides import EngineFiles

    checkpoint, config = open_checkpoint(folder), open_source(str(folder)).config
    found = []
    for engine in plan.engines:
        view = engine.view(config, list(checkpoint.tensors), target, plan.launch)
        assert view.spec is not None
        embedding = engine.replaces_embedding(view.spec)
        found.append(
            EngineFiles(str(engine), view.spec, checkpoint, view.received, embedding, engine.stops(view, target))
        )
    return found


def unwritten(engine: EngineRelease, drafter: Drafter, target: Target) -> EngineFiles | None:
    """What the release would make of the drafter in its form, the weights still in the input.

    None where it stops before it computes anything.
    """
    from converter.forward.sides import EngineFiles

    view = would_see(engine, replace(drafter.spec, capture_points=tuple(sorted(drafter.spec.capture_points))), target)
    if view is None or view.spec is None:
        return None
    spec = view.spec
    if spec.capture_points == tuple(sorted(drafter.spec.capture_points)):
        # The blocks of fc are permuted when they are written; here they are as they were.
        spec = replace(spec, capture_points=drafter.spec.capture_points)
    names = {c: drafter.tensors[c] for c in view.received if c in drafter.tensors}
    if "d2t" in view.received and drafter.vocab is not None:
        names.setdefault("d2t", "d2t")
    stops = engine.stops(view, target)
    return EngineFiles(str(engine), spec, drafter.checkpoint, names, engine.replaces_embedding(spec), stops)


def lying(seen: Seen, checkpoint: Checkpoint) -> EngineFiles:
    """The files as a release would be given them, by what it makes of them."""
    from converter.forward.sides import EngineFiles

    assert seen.spec is not None and seen.received is not None
    embedding = seen.engine.replaces_embedding(seen.spec)
    return EngineFiles(str(seen.engine), seen.spec, checkpoint, seen.received, embedding, seen.stops, as_it_is=True)


def read_proof_sample(
    wish: Wish, drafter: Drafter, target: Target, weights: TargetWeights | None, points_known: bool
) -> Sample | None:
    """Raises InputError where the sample cannot be used with this drafter."""
    from converter.forward.sample import read_sample
    from converter.forward.target_head import TargetHead

    if wish.sample is None:
        return None
    return read_sample(
        wish.sample,
        drafter.spec,
        points=wish.sample_points,
        last_point=target.layers,
        head=TargetHead.of(weights, target),
        needed=() if wish.find_wiring else None,
        most=(DEFAULT_POSITIONS if wish.positions is None else wish.positions) or None,
        declared=points_known,
    )


def question_of(
    wish: Wish, drafter: Drafter, sample: Sample | None, target: Target, weights: TargetWeights | None
) -> Question:
    """What the user wishes to be proved, as yet of no engine."""
    from converter.forward.device import choose_device
    from converter.forward.prove import Question
    from converter.forward.target_head import TargetHead

    return Question(
        drafter=drafter,
        engines=(),
        refused=(),
        sample=sample,
        target=weights,
        head=TargetHead.of(weights, target),
        layers=target.layers,
        rope_theta=target.rope.theta if target.rope is not None else None,
        device=choose_device(wish.device),
        steps=wish.steps or min(max(drafter.provenance.speculative_tokens or 0, DEFAULT_STEPS), _MOST_STEPS),
        min_accuracy=wish.min_accuracy,
    )


__all__ = ["Wish", "lying", "question_of", "read_proof_sample", "unwritten", "written"]

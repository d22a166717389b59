"""What a trainer computed and no engine does, held on a sample against what engines compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from converter.forward.contrast import Contrast
from converter.forward.evaluate import Side, evaluate
from converter.forward.model import DraftModel
from converter.forward.outcomes import Outcome
from converter.forward.scores import Scores, score
from converter.forward.states import States
from converter.forward.wiring_scores import SETTLED

# By the names that rules use (schemas/dialect.schema.json, cautions).
COMPUTED: Mapping[str, Callable[[DraftModel], DraftModel]] = {
    "state_normed_twice": lambda model: DraftModel(model.spec, model.weights, state_normed_twice=True),
}


@dataclass(frozen=True)
class Measured:
    """What the difference costs.

    contrast          the trainer's computation against the engines', summed over the steps of a row
    trained, served   scores of the two on the same rows
    """

    contrast: Contrast
    trained: Scores
    served: Scores


def measure(computed: str, first: Side, sequences: Sequence[States], steps: int) -> Measured:
    """What `computed`, a name in COMPUTED, changes; `first` is the reference, which computes as engines do."""
    other = replace(first, model=COMPUTED[computed](first.model))
    ours, theirs = (e.outcomes for e in evaluate([first, other], sequences, steps))
    contrast = Contrast()
    for number, (one, two) in enumerate(zip(ours, theirs, strict=True)):
        kept = one.counted(0) & (torch.arange(one.rows(0)) >= SETTLED)
        gain = torch.stack([_gain(one, two, step) for step in range(steps)]).sum(0)
        contrast.add(gain[kept], torch.full((int(kept.sum()),), number))
    return Measured(contrast, score(theirs), score(ours))


def _gain(one: Outcome, two: Outcome, step: int) -> torch.Tensor:
    """[R]: of log-likelihood at this step, 0 where the row has no such step or its label is not known."""
    gain = (two.likelihood[step] - one.likelihood[step]).nan_to_num(0.0)
    counted = torch.zeros(len(gain), dtype=torch.bool)
    counted[: one.rows(step)] = one.counted(step)
    return torch.where(counted, gain, 0.0)

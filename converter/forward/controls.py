"""Controls: what a drafter must beat to be one at all."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from converter.forward.contrast import MARGIN, Contrast
from converter.forward.outcomes import Outcome
from converter.forward.wiring_scores import SETTLED

_ENOUGH = 100  # positions below which a control says nothing


def no_worse(control: Contrast) -> bool:
    """Whether a control does as well as the drafter: by what the positions say, not for lack of them.

    A weak drafter on few positions beats its controls by less than they scatter, and still beats them.
    """
    return control.positions >= _ENOUGH and control.verdict != "worse" and control.mean > -MARGIN


def frequency_contrast(outcomes: Sequence[Outcome], vocab_size: int) -> Contrast:
    """How often each label occurs in the sample, against what the drafter says of it (step 0).

    The frequencies of a row leave its own label out, so that no label speaks for itself.
    """
    settled = [o.counted(0) & (torch.arange(o.rows(0)) >= SETTLED) for o in outcomes]
    labels = torch.cat([o.labels(0)[kept] for o, kept in zip(outcomes, settled, strict=True)])
    counts = torch.bincount(labels, minlength=vocab_size).double()
    known = int((counts > 0).sum())
    contrast = Contrast()
    for number, (outcome, kept) in enumerate(zip(outcomes, settled, strict=True)):
        others = counts[outcome.labels(0)[kept]] - 1
        frequency = ((others + 0.5) / (len(labels) - 1 + 0.5 * known)).log()
        given = outcome.likelihood[0, : outcome.rows(0)][kept]
        contrast.add(frequency - given, torch.full((int(kept.sum()),), number))
    return contrast

"""Outcomes of a drafter on a sample, for tests of scores."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from converter.forward.outcomes import Outcome
from tests.speculative import Drafter
from tests.teacher_forced import logits_of


def outcome_of(
    drafter: Drafter, tokens: Tensor, counts: Tensor, target_next: Tensor, states: Tensor, steps: int
) -> Outcome:
    """Teacher-forced choices; the likelihood is that of the drafter's softmax, not smoothed."""
    logits = logits_of(drafter.model, drafter.embedding[tokens], drafter.inputs(states), steps)
    choices = torch.full((steps, len(tokens) - 1), -1)
    likelihood = torch.full(choices.shape, float("nan"))
    for k, step in enumerate(logits):
        choices[k, : len(step)] = drafter.ids[step.argmax(-1)]
        place = drafter.ids == target_next[1 + k :, None]
        known = torch.where(place, step.log_softmax(-1), 0.0).sum(-1)
        likelihood[k, : len(step)] = torch.where(place.any(-1), known, torch.nan)
    return Outcome(tokens, counts.bool(), target_next, choices, likelihood)


def outcomes_of(drafter: Drafter, sample: Path, steps: int) -> list[Outcome]:
    tensors = load_file(sample)
    result = []
    for name in sorted(n.split(".")[0] for n in tensors if n.endswith(".input_ids")):
        parts = [tensors[f"{name}.{p}"] for p in ("input_ids", "loss_mask", "target_greedy_next", "hidden_states")]
        result.append(outcome_of(drafter, *parts, steps))
    return result

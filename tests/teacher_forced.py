"""The logits of every step of one sequence, as a trainer computes them: each step takes the true token."""

from __future__ import annotations

import torch
from torch import Tensor

from converter.forward.model import DraftModel, History, Piece, window

PIECE = 512  # rows computed at once


def logits_of(model: DraftModel, embeds: Tensor, states: Tensor, steps: int) -> list[Tensor]:
    """Over the draft vocabulary, of steps 0..steps-1, each [T-1-k, Vd].

    embeds  [T, H]     embedding rows of x_0..x_{T-1}
    states  [T, n*Ht]  the target's states at the capture points, side by side, in the order of fc's blocks
    """
    rows = embeds.shape[0] - 1
    history, parts = History(), []
    with torch.inference_mode():
        for start in range(0, rows, PIECE):
            piece = Piece(start, min(PIECE, rows - start), history)
            tokens = [window(embeds, start + 1 + k, piece.count) for k in range(min(steps, rows))]
            combined = model.combine(states[start : start + piece.count])
            parts.append([model.logits(n) for n in model.steps(combined, tokens, [piece])])
    return [torch.cat(step)[: rows - k] for k, step in enumerate(zip(*parts, strict=True))]

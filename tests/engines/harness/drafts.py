"""What the scripts that load drafters have in common, whatever the engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jobs
import torch
from observe import ConsumptionWatch, ParameterWatch
from safetensors.torch import load_file


@contextmanager
def watched_loading(draft_class: type[torch.nn.Module], result: jobs.Result) -> Iterator[None]:
    """Watch what the class's own `load_weights` reads and writes, and report it in the result.

    Afterwards parameters that were not written hold what the constructor had put there, so that
    the forward pass computes what the engine would have computed.
    """
    original = draft_class.load_weights

    def watched(model: torch.nn.Module, weights: Any, *args: Any, **kwargs: Any) -> Any:
        result["stage"] = "load_weights"
        parameters, consumption = ParameterWatch(model), ConsumptionWatch()
        parameters.begin()
        try:
            with consumption:
                return original(model, consumption.watched(weights), *args, **kwargs)
        finally:
            seen = parameters.report()
            result.update(
                parameters=seen,
                unwritten=[name for name, p in seen.items() if p["written"] == 0],
                partly_written=[name for name, p in seen.items() if 0 < p["written"] < p["elements"]],
                not_consumed=consumption.not_consumed(),
            )
            parameters.restore_unwritten()

    draft_class.load_weights = watched
    try:
        yield
    finally:
        draft_class.load_weights = original


def target_weights(job: jobs.Job) -> dict[str, torch.Tensor]:
    """The target's embedding and head, where the job names the file that holds them."""
    if "target_weights" not in job:
        return {}
    tensors = load_file(Path(job["target_weights"]))
    names = {"embed_tokens": "model.embed_tokens.weight", "lm_head": "lm_head.weight"}
    return {ours: tensors[theirs] for ours, theirs in names.items() if theirs in tensors}


def next_step_mask(rows: int) -> torch.Tensor:
    """Who sees whom: a causal prefill of `rows`, then a next step of all rows but the last.

    One pass with this mask holds the prefill's rows and after them those of the next step, each of
    which sees the prefill up to its own row.
    """
    causal = torch.ones(rows, rows, dtype=torch.bool).tril()
    mask = torch.zeros(2 * rows - 1, 2 * rows - 1, dtype=torch.bool)
    mask[:rows, :rows] = causal
    mask[rows:, :rows] = causal[:-1]
    mask[rows:, rows:] = torch.eye(rows - 1, dtype=torch.bool)
    return mask


@dataclass(frozen=True)
class Rows:
    """What attention must know of the rows of one pass: where they stand, and who sees whom (None: causal)."""

    positions: torch.Tensor
    mask: torch.Tensor | None = None

    def seen(self, window: int | None) -> torch.Tensor | None:
        """The mask with a window laid over it, which counts positions, the row's own among them."""
        if window is None:
            return self.mask
        distance = self.positions[:, None] - self.positions
        mask = distance >= 0 if self.mask is None else self.mask
        return mask & (distance < window)


def attention_over_one_sequence(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    head_dim: int,
    scale: float,
    rows: Rows | None,
    window: int | None = None,
) -> torch.Tensor:
    """PyTorch's attention over the rows of one sequence; causal and without a window where there are no `rows`."""
    tokens = q.shape[0]
    mask = None if rows is None else rows.seen(window)

    def by_head(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.reshape(1, tokens, -1, head_dim).transpose(1, 2)

    attended = torch.nn.functional.scaled_dot_product_attention(
        by_head(q),
        by_head(k),
        by_head(v),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=True,
    )
    return attended.transpose(1, 2).reshape(tokens, -1)

"""Stored tensors as torch tensors in fp32."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from converter.checkpoint.reader import Checkpoint
from converter.drafter.layout import expected_tensors
from converter.drafter.spec import DrafterSpec


def tensor(checkpoint: Checkpoint, name: str, index: int | None = None) -> Tensor:
    """The tensor `name`, or its part `index` along the first axis."""
    values = torch.from_numpy(checkpoint.read(name, index).copy())
    return values.view(torch.bfloat16) if checkpoint.tensors[name].info.dtype == "BF16" else values


def weights_of(
    spec: DrafterSpec, checkpoint: Checkpoint, names: Mapping[str, str], device: torch.device
) -> dict[str, Tensor]:
    """Every weight of `spec` that `names` (canonical -> stored) has, in fp32 on `device`.

    What is missing is left out; a norm without its weight is one that the caller must not run.
    """
    return {
        canonical: tensor(checkpoint, names[canonical]).to(device, torch.float32)
        for canonical in expected_tensors(spec)
        if canonical in names
    }

"""Stored tensors as torch tensors on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from converter.checkpoint.reader import Checkpoint
from converter.drafter.layout import expected_tensors
from converter.drafter.spec import DrafterSpec
from converter.forward.rope import NotComputable

if TYPE_CHECKING:
    from numpy.typing import NDArray

EMBEDDING = "embed_tokens.weight"


def tensor(checkpoint: Checkpoint, name: str) -> Tensor:
    """The tensor `name` in its stored dtype."""
    return as_torch(checkpoint, name, checkpoint.read(name).copy())


def picked(checkpoint: Checkpoint, name: str, indexes: Sequence[int]) -> Tensor:
    """Parts of the tensor `name` along the first axis, in its stored dtype."""
    return as_torch(checkpoint, name, checkpoint.picked(name, indexes))


def as_torch(checkpoint: Checkpoint, name: str, values: NDArray[Any]) -> Tensor:
    """What `checkpoint` reads of the tensor `name`, in its stored dtype; it shares the memory of `values`."""
    dtype = checkpoint.tensors[name].info.dtype
    bits = {"BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn}  # which numpy has not
    return torch.from_numpy(values).view(bits[dtype]) if dtype in bits else torch.from_numpy(values)


def weights_of(
    spec: DrafterSpec,
    checkpoint: Checkpoint,
    names: Mapping[str, str],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    twins: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Every weight of `spec` in `dtype` on `device`; `names` is canonical -> stored.

    The embedding is left out unless the head is tied to it: its rows are read token by token (embedding.py).
    A norm that `names` lacks is all ones, as torch modules and engines initialise it.
    twins   tensors of another reading; where the values are the same, they are taken instead of a second copy

    Raises NotComputable where another weight is missing (it stays at whatever memory holds) or misshapen.
    """
    weights: dict[str, Tensor] = {}
    for canonical, expected in expected_tensors(spec).items():
        if canonical == EMBEDDING and not spec.tie_word_embeddings:
            continue
        if canonical in names:
            weight = tensor(checkpoint, names[canonical]).to(device, dtype)
            if tuple(weight.shape) != expected.shape:
                raise NotComputable(f"{canonical}, which has another shape than the config implies")
        elif "norm" in canonical:
            weight = torch.ones(expected.shape, device=device, dtype=dtype)
        else:
            raise NotComputable(f"{canonical}, which is left at its initial value")
        twin = (twins or {}).get(canonical)
        same = twin is not None and twin.shape == weight.shape and torch.equal(twin, weight)
        weights[canonical] = twin if twin is not None and same else weight
    return weights

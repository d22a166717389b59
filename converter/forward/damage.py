"""Damages that converters and hand-written scripts do to weights, and that can be undone by doing them again.

Scored beside the other wirings: where a drafter fits the sample better with its tensors exchanged, they were exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from converter.drafter.spec import DrafterSpec

Weights = Mapping[str, Tensor]


def _exchange(first: str, second: str) -> Callable[[DrafterSpec, Weights], dict[str, Tensor]]:
    def damage(spec: DrafterSpec, weights: Weights) -> dict[str, Tensor]:
        result = dict(weights)
        for name in [n for n in weights if f".{first}." in n]:
            twin = name.replace(f".{first}.", f".{second}.")
            if twin in weights:
                result[name], result[twin] = weights[twin], weights[name]
        return result

    return damage


def _rope_layout(interleave: bool) -> Callable[[DrafterSpec, Weights], dict[str, Tensor]]:
    """Rows of q and k between the two layouts of rotary embedding: halves of a head, or pairs side by side."""

    def damage(spec: DrafterSpec, weights: Weights) -> dict[str, Tensor]:
        result = dict(weights)
        split = (2, spec.head_dim // 2) if interleave else (spec.head_dim // 2, 2)
        for name in [n for n in weights if ".q_proj." in n or ".k_proj." in n]:
            rows = weights[name]
            parts = rows.reshape(-1, *split, *rows.shape[1:]).transpose(1, 2)
            result[name] = parts.reshape(rows.shape)
        return result

    return damage


def _head_groups(spec: DrafterSpec, weights: Weights) -> dict[str, Tensor]:
    """q, k and v that were one matrix with the heads that share keys together, cut as if all of q came first."""
    result = dict(weights)
    shares = spec.num_key_value_heads
    for name in [n for n in weights if ".q_proj." in n]:
        names = [name.replace(".q_proj.", f".{x}_proj.") for x in "qkv"]
        parts = [weights[n] for n in names]
        whole = torch.cat(parts)
        groups = torch.split(whole.reshape(shares, -1, *whole.shape[1:]), [len(p) // shares for p in parts], dim=1)
        result |= {n: rows.flatten(0, 1) for n, rows in zip(names, groups, strict=True)}
    return result


# Words for the report -> what to do to the weights.
DAMAGES: Mapping[str, Callable[[DrafterSpec, Weights], dict[str, Tensor]]] = {
    "mlp gate and up exchanged": _exchange("gate_proj", "up_proj"),
    "layer 0 input_layernorm and hidden_norm exchanged": _exchange("input_layernorm", "hidden_norm"),
    "rows of q and k interleaved": _rope_layout(True),
    "rows of q and k de-interleaved": _rope_layout(False),
    "rows of q, k and v by groups of heads": _head_groups,
}

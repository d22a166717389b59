"""Rotary position embedding, by transformers' kinds: default, linear, llama3, yarn."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from converter.drafter.spec import Rope


class NotComputable(Exception):
    """The forward pass does not know this part of a spec, so nothing can be proved about it."""


def frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim/2] (fp32) and the factor that cos and sin are scaled by.

    Raises NotComputable for other kinds, for rotation of only a part of the head, and for parameters that give none.
    """
    p = dict(rope.parameters)
    if p.get("partial_rotary_factor", 1) != 1 or "mrope_section" in p:
        raise NotComputable("rope over a part of the head")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / rope.theta**exponents
    if rope.kind == "default":
        return plain, 1.0
    if rope.kind not in ("linear", "llama3", "yarn"):
        raise NotComputable(f"rope of the kind {rope.kind}")
    # A list in place of a number, or a base whose logarithm is 0.
    if any(isinstance(value, tuple) for value in p.values()) or (rope.kind == "yarn" and rope.theta == 1):
        raise NotComputable(f"rope with {rope}")
    if rope.kind == "linear":
        return plain / p["factor"], 1.0
    return (_llama3(plain, p), 1.0) if rope.kind == "llama3" else _yarn(plain, rope.theta, head_dim, p)


def _llama3(plain: Tensor, p: dict[str, float]) -> Tensor:
    """Llama 3.1: long waves are stretched by `factor`, short ones kept, those between blended."""
    waves = 2 * math.pi / plain
    low, high, trained = p["low_freq_factor"], p["high_freq_factor"], p["original_max_position_embeddings"]
    blend = ((trained / waves - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * plain / p["factor"] + blend * plain


def _yarn(plain: Tensor, theta: float, head_dim: int, p: dict[str, float]) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071): interpolate the dimensions that turn less than beta_slow times in the trained length."""
    factor, trained = p["factor"], p["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        return head_dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(p.get("beta_fast") or 32), dimension(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = ((torch.arange(head_dim // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
    scale = p.get("attention_factor")
    if scale is None:
        both = p.get("mscale") and p.get("mscale_all_dim")  # transformers takes them only together
        scale = _mscale(factor, p["mscale"]) / _mscale(factor, p["mscale_all_dim"]) if both else _mscale(factor, 1)
    return plain / factor * ramp + plain * (1 - ramp), float(scale)


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, heads, D] with cos and sin [T, 1, D]; the halves of a head are the two components (neox style)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin

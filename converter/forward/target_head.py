"""The target's final norm and head: what it would say after a state, without loading the target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from converter.drafter.target import Target
from converter.fingerprint import target_fingerprint
from converter.target_weights import RowTable, TargetWeights

NormKind = Literal["weight", "one plus weight", "layer norm"]

_NORMED = 0.05  # of a mean square; rounding to bf16 changes it by less than a hundredth
_POSITIONS = 1024  # positions held against a block of head rows at once

# transformers 5.24.0, models/*/modeling_*.py: the norm multiplies by 1 + weight.
_ONE_PLUS = frozenset({
    "gemma", "gemma2", "gemma3", "gemma3_text", "recurrent_gemma", "vaultgemma", "qwen3_next", "qwen3_5",
    "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "minimax_m3_vl", "minimax_m3_vl_text", "step3p5", "step3p7",
})  # fmt: skip
# models/cohere/modeling_cohere.py there: the mean is taken out as well, without a bias.
_LAYER_NORM = frozenset({"cohere", "cohere2"})


@dataclass(frozen=True, eq=False)
class TargetHead:
    """head [>= vocab_size, Ht], norm and norm_bias [Ht], head_bias [>= vocab_size]; padded rows are never chosen.

    kind         what the norm does; from the target's model_type, a bias beside the norm's weight makes it a layer norm
    vocab_size   ids that may be chosen
    place        the target's folder or id, for its fingerprint; None where it is not known
    """

    head: RowTable
    norm: Tensor
    eps: float
    kind: NormKind
    vocab_size: int
    place: Path | None = None
    norm_bias: Tensor | None = None
    head_bias: Tensor | None = None

    @classmethod
    def of(cls, weights: TargetWeights | None, target: Target) -> TargetHead | None:
        """None where head, final norm or its epsilon are not known. Raises InputError where a file cannot be read."""
        if weights is None or weights.head is None or weights.checkpoint is None or target.norm_eps is None:
            return None
        norm = weights.vector(weights.norm)
        if norm is None:
            return None
        bias = weights.vector(f"{weights.norm.removesuffix('weight')}bias")
        head_bias = weights.vector(f"{weights.head.name.removesuffix('weight')}bias")
        layer_norm = bias is not None or target.model_type in _LAYER_NORM
        plain: NormKind = "one plus weight" if target.model_type in _ONE_PLUS else "weight"
        return cls(
            weights.head,
            torch.from_numpy(norm.copy()),
            target.norm_eps,
            "layer norm" if layer_norm else plain,
            min(target.vocab_size or weights.head.shape[0], weights.head.shape[0]),
            weights.place,
            None if bias is None else torch.from_numpy(bias.copy()),
            None if head_bias is None else torch.from_numpy(head_bias.copy()),
        )

    @cached_property
    def fingerprint(self) -> str:
        """What tells this target from others; "" where its place is not known. Raises as target_fingerprint does."""
        return "" if self.place is None else target_fingerprint(self.place)

    def with_kind(self, kind: NormKind) -> TargetHead:
        """The same with a final norm that does something else with its weight."""
        return replace(self, kind=kind)

    def normalise(self, states: Tensor) -> Tensor:
        """[T, Ht] of any dtype -> [T, Ht] fp32 after the final norm."""
        values = states.float()
        if self.kind == "layer norm":
            values = values - values.mean(-1, keepdim=True)
        values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + self.eps)
        weight = self.norm.to(values.device)
        values = values * (1.0 + weight if self.kind == "one plus weight" else weight)
        return values if self.norm_bias is None else values + self.norm_bias.to(values.device)

    def is_normed(self, states: Tensor) -> bool:
        """Whether states [T, Ht] lie after the final norm: without its weight their root mean square is 1, in each."""
        weight = 1.0 + self.norm if self.kind == "one plus weight" else self.norm
        values = states.float() if self.norm_bias is None else states.float() - self.norm_bias.to(states.device)
        clear = weight.abs() > 1e-3 * weight.abs().max()
        plain = values[:, clear.to(states.device)] / weight[clear].to(states.device)
        squares = plain.square().mean(-1)
        return bool(((squares - 1).abs() < _NORMED).float().mean() > 0.98)

    def choices(self, states: Tensor, normed: bool = False) -> Tensor:
        """[T] int64: the target's choice over its full vocabulary after each state [T, Ht].

        `normed`: the states are those after the final norm. Memory does not grow with the vocabulary. Of equal
        logits the lowest id is chosen.
        """
        return self._best(states, normed, None)

    def draft_choices(self, states: Tensor, ids: Tensor) -> Tensor:
        """[T] int64: as `choices`, among the target ids `ids` [Vd] only; a target id, not a place in `ids`."""
        return self._best(states, False, ids)

    def _best(self, states: Tensor, normed: bool, ids: Tensor | None) -> Tensor:
        device = states.device
        normal = states.float() if normed else self.normalise(states)
        best = torch.full((len(states),), float("-inf"), device=device)
        choice = torch.zeros(len(states), dtype=torch.int64, device=device)
        first = 0
        for block in self.head.blocks():
            rows = torch.arange(first, max(min(first + len(block), self.vocab_size), first))
            if ids is not None:
                rows = rows[torch.isin(rows, ids.cpu())]
            if len(rows):
                whole = len(rows) == len(block)
                weights = torch.from_numpy(block if whole else block[(rows - first).numpy()]).to(device)
                bias = None if self.head_bias is None else self.head_bias[rows].to(device)
                rows = rows.to(device)
                for start in range(0, len(states), _POSITIONS):
                    part = slice(start, start + _POSITIONS)
                    logits = normal[part] @ weights.T
                    top, place = (logits if bias is None else logits + bias).max(-1)
                    better = top > best[part]
                    best[part] = torch.where(better, top, best[part])
                    choice[part] = torch.where(better, rows[place], choice[part])
            first += len(block)
        return choice

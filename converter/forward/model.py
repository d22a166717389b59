"""The canonical drafter's forward pass, one sequence at a time.

Row i of a sequence x_0..x_T takes the token x_{i+1} together with the target's state at position i, and says
x_{i+2} (EAGLE-3, arXiv 2503.01840; row layout as speculators 0.9.0 models/eagle3/data.py `shift_batch`).
Step k of row i takes x_{i+1+k} with the state that step k-1 gave for the same row; it attends to the step-0 keys
of rows <= i and to its own steps 1..k.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from converter.drafter.spec import DrafterSpec
from converter.forward.rope import NotComputable, frequencies, rotate

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
_QUERY_BLOCK = 256  # query rows scored at once: memory is heads x block x rows


@dataclass
class _Keys:
    """One layer's keys and values: of step 0 [T, kv, D], and of each further step [T, kv, D]."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


class DraftModel:
    """A drafter of `spec` with `weights` (canonical name -> fp32 tensor; shapes as drafter/layout.py says).

    Raises NotComputable where the spec has a part that this pass does not know.
    """

    def __init__(self, spec: DrafterSpec, weights: Mapping[str, Tensor]) -> None:
        if spec.hidden_act not in _ACTIVATIONS:
            raise NotComputable(f"the activation {spec.hidden_act}")
        self.spec = spec
        self.weights = weights
        self.device = weights["fc.weight"].device
        inverse, self._rope_scale = frequencies(spec.rope, spec.head_dim)
        self._inverse = inverse.to(self.device)

    @torch.inference_mode()
    def run(self, embeds: Tensor, states: Tensor, steps: int) -> list[Tensor]:
        """Logits over the draft vocabulary of steps 0..steps-1, each [T-1-k, Vd]; later steps are teacher-forced.

        embeds  [T, H]     embedding rows of x_0..x_{T-1}
        states  [T, n*Ht]  the target's states at the capture points, side by side, in the order of fc's blocks
        """
        rows = embeds.shape[0] - 1
        hidden = self._combine(states[:rows])
        cache = [_Keys() for _ in range(self.spec.num_hidden_layers)]
        logits = []
        for step in range(min(steps, rows)):
            # Rows whose token lies past the end have no step k; they are cut everywhere from here on.
            rows = embeds.shape[0] - 1 - step
            tokens = embeds[1 + step : 1 + step + rows]
            hidden = self._layers(tokens, hidden[:rows], step, cache)
            normed = self._norm(hidden, "norm.weight")
            logits.append(normed @ self._head().T)
            hidden = normed if self.spec.norm_output else hidden
        return logits

    def _head(self) -> Tensor:
        return self.weights["embed_tokens.weight" if self.spec.tie_word_embeddings else "lm_head.weight"]

    def _combine(self, states: Tensor) -> Tensor:
        """[T, n*Ht] -> [T, H]: the norms before fc, then fc."""
        if self.spec.norm_before_fc:
            states = self._norm(states, "input_norm.weight")
        if self.spec.fc_norm:
            parts = states.chunk(self.spec.num_points, dim=-1)
            states = torch.cat([self._norm(s, f"fc_norm.{j}.weight") for j, s in enumerate(parts)], dim=-1)
        return self._linear(states, "fc")

    def _layers(self, tokens: Tensor, hidden: Tensor, step: int, cache: list[_Keys]) -> Tensor:
        """One pass through all layers: [T, H] -> [T, H] before the final norm."""
        for i, keys in enumerate(cache):
            name = f"layers.{i}"
            normed = self._norm(hidden, f"{name}.hidden_norm.weight" if i == 0 else f"{name}.input_layernorm.weight")
            residual = hidden
            if i == 0:
                residual = normed if self.spec.norm_before_residual else hidden
                normed = torch.cat([self._norm(tokens, f"{name}.input_layernorm.weight"), normed], dim=-1)
            hidden = residual + self._attention(normed, f"{name}.self_attn", step, keys, self.spec.layer_windows[i])
            normed = self._norm(hidden, f"{name}.post_attention_layernorm.weight")
            gate = _ACTIVATIONS[self.spec.hidden_act](self._linear(normed, f"{name}.mlp.gate_proj"))
            up = self._linear(normed, f"{name}.mlp.up_proj")
            hidden = hidden + self._linear(gate * up, f"{name}.mlp.down_proj")
        return hidden

    def _attention(self, x: Tensor, name: str, step: int, keys: _Keys, window: int | None) -> Tensor:
        rows, dim = x.shape[0], self.spec.head_dim
        q = self._linear(x, f"{name}.q_proj").view(rows, self.spec.num_attention_heads, dim)
        k = self._linear(x, f"{name}.k_proj").view(rows, self.spec.num_key_value_heads, dim)
        v = self._linear(x, f"{name}.v_proj").view(rows, self.spec.num_key_value_heads, dim)
        if self.spec.qk_norm:
            q, k = self._norm(q, f"{name}.q_norm.weight"), self._norm(k, f"{name}.k_norm.weight")
        angles = torch.arange(1 + step, 1 + step + rows, device=x.device)[:, None] * self._inverse
        cos = torch.cat([angles, angles], dim=-1).cos()[:, None] * self._rope_scale
        sin = torch.cat([angles, angles], dim=-1).sin()[:, None] * self._rope_scale
        groups = self.spec.num_attention_heads // self.spec.num_key_value_heads
        keys.keys.append(rotate(k, cos, sin).repeat_interleave(groups, dim=1))
        keys.values.append(v.repeat_interleave(groups, dim=1))
        q = rotate(q, cos, sin) * dim**-0.5
        blocks = [
            self._attend(q[start : start + _QUERY_BLOCK], start, keys, window) for start in range(0, rows, _QUERY_BLOCK)
        ]
        return self._linear(torch.cat(blocks).reshape(rows, -1), f"{name}.o_proj")

    @staticmethod
    def _attend(q: Tensor, start: int, keys: _Keys, window: int | None) -> Tensor:
        """q [B, heads, D] of rows start..start+B-1 -> [B, heads, D].

        The first columns of the scores are the step-0 keys of rows <= the query's, within the window (which
        counts the query's own row, as in speculators 0.9.0 models/attention.py); the last are the own chain.
        """
        end = start + q.shape[0]
        row = torch.arange(start, end, device=q.device)[:, None]
        column = torch.arange(end, device=q.device)
        hidden = column > row
        if window is not None:
            hidden |= column <= row - window
        scores = torch.einsum("qhd,khd->qhk", q, keys.keys[0][:end]).masked_fill(hidden[:, None], float("-inf"))
        own = [(q * k[start:end]).sum(-1, keepdim=True) for k in keys.keys[1:]]
        weights = torch.cat([scores, *own], dim=-1).softmax(dim=-1)
        out = torch.einsum("qhk,khd->qhd", weights[..., :end], keys.values[0][:end])
        for j, v in enumerate(keys.values[1:]):
            out = out + weights[..., end + j, None] * v[start:end]
        return out

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.spec.rms_norm_eps)
        return x * scale * self.weights[name]

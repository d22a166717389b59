"""What the installed release's draft model lacks, put in as modules; one small adapter for each difference.

Its forward pass stays the release's own: it calls `fc`, the layers and `norm` of its model, and those are exchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import QKVParallelLinear
from sglang.srt.models import llama, llama_eagle3
from sglang.srt.utils import add_prefix
from torch import nn

from converter.sglang_plugin.wanted import Wanted

# Up to 0.5.11 the model has one `midlayer`, and refuses a config with more; from 0.5.12 on a list of `layers`.
ONE_LAYER = "midlayer" in llama_eagle3.LlamaModel.__init__.__code__.co_names

# What SGLang's attention takes for no window (layers/radix_attention.py @ 0.5.6 to 0.5.23).
ALL_KEYS = -1


class NormedResidualLayer(llama_eagle3.LlamaDecoderLayer):
    """A first layer that adds the normed state to its residual: it is normed before the layer, once, for both."""

    def forward(self, positions: Any, embeds: Any, hidden_states: torch.Tensor, *rest: Any) -> Any:
        return super().forward(positions, embeds, self.state_norm(hidden_states), *rest)


class QKV(QKVParallelLinear):
    """The projection to q, k and v, perhaps with a norm over each head of q and k.

    sizes   of q, k and v on this rank
    """

    def __init__(self, *shape: Any, sizes: list[int], norms: tuple[nn.Module | None, nn.Module | None], **rest: Any):
        super().__init__(*shape, **rest)
        self.sizes = sizes
        self.q_norm, self.k_norm = norms

    def forward(self, hidden_states: torch.Tensor) -> Any:
        qkv, bias = super().forward(hidden_states)
        if self.q_norm is None or self.k_norm is None:
            return qkv, bias
        q, k, v = qkv.split(self.sizes, dim=-1)
        return torch.cat([_by_head(self.q_norm, q), _by_head(self.k_norm, k), v], dim=-1), bias


def _by_head(norm: Any, rows: torch.Tensor) -> Any:
    return norm(rows.reshape(-1, norm.weight.shape[0])).view(rows.shape)


class Layers(nn.ModuleList):
    """The layers of a drafter in place of the one `midlayer`: a first one, and plain Llama layers after it."""

    def forward(self, positions: Any, embeds: Any, hidden_states: Any, forward_batch: Any, residual: Any) -> Any:
        first, *later = self
        hidden_states, residual = first(positions, embeds, hidden_states, forward_batch, residual)
        for layer in later:
            hidden_states, residual = layer(positions, hidden_states, forward_batch, residual)
        return hidden_states, residual


class NormedProjection(nn.Linear):
    """fc with norms before it: one over all states, or one over each; either may be missing."""

    def __init__(self, width: int, hidden: int, bias: bool, norm: nn.Module | None, norms: nn.ModuleList | None):
        super().__init__(width, hidden, bias=bias)
        self.input_norm, self.fc_norm = norm, norms

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        if not len(states):  # an idle batch is three states wide, whatever fc takes (eagle_worker.py:917 @ 0.5.9)
            return states.new_zeros(0, self.out_features)
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            each = zip(self.fc_norm, states.chunk(len(self.fc_norm), dim=-1), strict=True)
            # A norm's kernel wants its rows side by side.
            states = torch.cat([norm(state.contiguous()) for norm, state in each], dim=-1)
        return super().forward(states)


class FedBackNorm(RMSNorm):
    """The last norm where the state that is fed back is the normed one."""

    def forward(self, *arguments: Any) -> Any:
        normed, _ = super().forward(*arguments)
        return normed, normed


def layers_of(model: Any, config: Any, wanted: Wanted, quant_config: Any, prefix: str) -> list[Any]:
    """All layers of the model, those made that the release did not."""
    if not ONE_LAYER:
        for layer in list(model.layers)[1:]:  # they have the parameter and never use it
            layer.input_layernorm = layer.hidden_norm
        return list(model.layers)
    layers = [model.midlayer]
    for i in range(1, wanted.layers):
        layers.append(llama.LlamaDecoderLayer(config, i, quant_config, prefix))
    if len(layers) > 1:
        model.midlayer = Layers(layers)
    return layers


def norm_the_residual(layer: Any) -> None:
    layer.state_norm = layer.hidden_norm
    layer.hidden_norm = nn.Identity()
    layer.__class__ = NormedResidualLayer


def project_qkv(layer: Any, first: bool, config: Any, wanted: Wanted, quant_config: Any, prefix: str) -> None:
    """Exchange a layer's projection by one with biases, norms of q and k, or both."""
    attention = layer.self_attn
    norms = [RMSNorm(wanted.head_dim, eps=config.rms_norm_eps) if wanted.qk_norm else None for _ in "qk"]
    attention.qkv_proj = QKV(
        wanted.hidden * (2 if first else 1),
        wanted.head_dim,
        wanted.heads,
        wanted.kv_heads,
        bias=wanted.qkv_bias,
        quant_config=quant_config,
        prefix=add_prefix("qkv_proj", prefix),
        sizes=[attention.q_size, attention.kv_size, attention.kv_size],
        norms=(norms[0], norms[1]),
    )


def project_states(model: Any, config: Any, wanted: Wanted) -> None:
    """fc for as many states as are fed in, and the norms before it that the release does not build."""
    points, width = len(wanted.points), wanted.target_hidden
    norm = norms = None
    if wanted.norm_before_fc and getattr(model, "input_norm", None) is None:
        norm = RMSNorm(points * width, eps=config.rms_norm_eps)
    if wanted.fc_norm and getattr(model, "fc_norm", None) is None:
        norms = nn.ModuleList([RMSNorm(width, eps=config.rms_norm_eps) for _ in range(points)])
    if norm is not None or norms is not None or model.fc.in_features != points * width:
        model.fc = NormedProjection(points * width, wanted.hidden, wanted.fc_bias, norm, norms)


def feed_back(model: Any, wanted: Wanted) -> None:
    """The normed state, where it is asked for and the release does not know of it."""
    if wanted.norm_output and not hasattr(model, "norm_output"):
        model.norm.__class__ = FedBackNorm

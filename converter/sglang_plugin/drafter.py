"""The draft class: the installed release's own, with what it lacks put in, a strict loader, and its ids checked."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

try:
    from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
except ModuleNotFoundError as missing:
    if not (missing.name or "").startswith("sglang"):
        raise
    raise ModuleNotFoundError(
        "converter.sglang_plugin is a plugin for SGLang, which is not installed in this Python: install eagle3-convert "
        "where SGLang runs, and name this package in SGLANG_EXTERNAL_MODEL_PACKAGE there",
        name="sglang",
    ) from missing

import torch
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.utils import add_prefix
from torch import nn

from converter.sglang_plugin import adapters
from converter.sglang_plugin.target import CapturedPoints
from converter.sglang_plugin.wanted import Misfit, Wanted, canonical

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """Where a tensor of the files goes: a parameter, or the part of a fused one that SGLang calls `shard`."""

    parameter: nn.Parameter
    shard: Any = None

    def fill(self, tensor: torch.Tensor) -> None:
        load = getattr(self.parameter, "weight_loader", default_weight_loader)
        load(self.parameter, tensor, *(() if self.shard is None else (self.shard,)))


class Eagle3ConvertForCausalLM(LlamaForCausalLMEagle3):
    """A drafter that `eagle3-convert --allow-plugin` wrote."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        self.wanted = wanted = Wanted.of(config)  # first: the constructor of 0.5.12 asks for the window
        built = config
        if adapters.ONE_LAYER:
            built = copy.deepcopy(config)
            built.num_hidden_layers = 1
        super().__init__(built, quant_config=quant_config, prefix=prefix)
        self.config = self.model.config = config
        prefix = add_prefix("model", prefix)
        self._layers = layers = adapters.layers_of(self.model, config, wanted, quant_config, prefix)
        for i, (layer, window) in enumerate(zip(layers, wanted.windows, strict=True)):
            if wanted.qk_norm or wanted.qkv_bias:
                adapters.project_qkv(layer, i == 0, config, wanted, quant_config, prefix)
            if wanted.reach is not None:
                layer.self_attn.attn.sliding_window_size = adapters.ALL_KEYS if window is None else window - 1
        if wanted.norm_before_residual:
            adapters.norm_the_residual(layers[0])
        adapters.project_states(self.model, config, wanted)
        adapters.feed_back(self.model, wanted)
        self._filled = False
        self._own_embedding = False
        self._captured: CapturedPoints | None = None
        self._points_checked = False

    def get_attention_sliding_window_size(self) -> int | None:
        stock = getattr(super(), "get_attention_sliding_window_size", None)
        return self.wanted.reach if stock is None or self.wanted.reach is not None else stock()

    # --- weights ------------------------------------------------------------------------------------------

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Raises ValueError where a tensor goes nowhere, has another shape, or a parameter receives nothing.

        Later calls are partial (an update of weights that a server is sent, the target's among them): then only the
        drafter's own names are taken.
        """
        places, shapes = self._places(), self.wanted.shapes()
        received: set[str] = set()
        nowhere, misshapen = [], []
        for file_name, tensor in weights:
            name = canonical(file_name)
            if name == "d2t":
                shapes[name] = (self.wanted.draft_vocabulary,)
            elif name == "t2d" or (name == "embed_tokens.weight" and self._filled and not self._own_embedding):
                continue  # the target's embedding is not ours to change
            elif name not in places:
                nowhere.append(file_name)
                continue
            if tuple(tensor.shape) != shapes[name]:
                misshapen.append(f"{file_name} is {list(tensor.shape)}, expected {list(shapes[name])}")
            elif name == "d2t":
                self.hot_token_id = tensor + torch.arange(len(tensor))
            else:
                places[name].fill(tensor)
            received.add(name)
        if not self._filled:
            misfit = Misfit(nowhere, misshapen, self._unfilled(places, received))
            if misfit:
                raise ValueError(f"eagle3-convert's plugin: {misfit}")
            self._own_embedding = "embed_tokens.weight" in received
        self._filled = True

    def _unfilled(self, places: dict[str, Place], received: set[str]) -> list[str]:
        """What received nothing: tensors of the drafter, by their names, and parameters that nothing is meant for."""
        optional = {"embed_tokens.weight"} if self.wanted.shares_embedding else set()
        missing = [name for name in places if name not in received | optional]
        if self.wanted.draft_vocabulary != self.wanted.vocabulary and "d2t" not in received:
            missing.append("d2t")
        meant = {id(place.parameter) for place in places.values()}
        return missing + [name for name, parameter in self.named_parameters() if id(parameter) not in meant]

    def _places(self) -> dict[str, Place]:
        """Every tensor of the files by its canonical name."""
        wanted, model = self.wanted, self.model
        places = {"embed_tokens.weight": Place(model.embed_tokens.weight), "norm.weight": Place(model.norm.weight)}
        places["fc.weight"] = Place(model.fc.weight)
        if wanted.fc_bias:
            places["fc.bias"] = Place(model.fc.bias)
        if not wanted.tied:
            places["lm_head.weight"] = Place(self.lm_head.weight)
        if wanted.norm_before_fc:
            places["input_norm.weight"] = Place(self._before_fc("input_norm").weight)
        if wanted.fc_norm:
            norms = self._before_fc("fc_norm")
            places |= {f"fc_norm.{j}.weight": Place(norm.weight) for j, norm in enumerate(norms)}
        for i, layer in enumerate(self._layers):
            places |= {f"layers.{i}.{name}": place for name, place in self._layer_places(layer).items()}
        first = self._layers[0]
        state_norm = first.state_norm if wanted.norm_before_residual else first.hidden_norm
        places["layers.0.hidden_norm.weight"] = Place(state_norm.weight)
        return places

    def _before_fc(self, norm: str) -> Any:
        """A norm before fc: the release's own, or the one that was put into fc."""
        own = getattr(self.model, norm, None)
        return getattr(self.model.fc, norm) if own is None else own

    def _layer_places(self, layer: Any) -> dict[str, Place]:
        attention, mlp, wanted = layer.self_attn, layer.mlp, self.wanted
        places = {
            "input_layernorm.weight": Place(layer.input_layernorm.weight),
            "post_attention_layernorm.weight": Place(layer.post_attention_layernorm.weight),
            "self_attn.o_proj.weight": Place(attention.o_proj.weight),
            "mlp.gate_proj.weight": Place(mlp.gate_up_proj.weight, 0),
            "mlp.up_proj.weight": Place(mlp.gate_up_proj.weight, 1),
            "mlp.down_proj.weight": Place(mlp.down_proj.weight),
            **{f"self_attn.{part}_proj.weight": Place(attention.qkv_proj.weight, part) for part in "qkv"},
        }
        if wanted.qkv_bias:
            places |= {f"self_attn.{part}_proj.bias": Place(attention.qkv_proj.bias, part) for part in "qkv"}
        if wanted.o_bias:
            places["self_attn.o_proj.bias"] = Place(attention.o_proj.bias)
        if wanted.qk_norm:
            places["self_attn.q_norm.weight"] = Place(attention.qkv_proj.q_norm.weight)
            places["self_attn.k_norm.weight"] = Place(attention.qkv_proj.k_norm.weight)
        return places

    # --- the target ---------------------------------------------------------------------------------------

    def set_embed(self, embed: torch.Tensor) -> None:
        """Share the target's embedding, unless the drafter has one of its own that differs from it."""
        self._captured = CapturedPoints((LlamaForCausalLMEagle3,))
        self.check_points()
        own = self.model.embed_tokens.weight
        if self._own_embedding and not (own.shape == embed.shape and torch.equal(own, embed.to(own.dtype))):
            logger.info("The drafter's embedding differs from the target's, and is kept.")
            return
        self._own_embedding = False
        super().set_embed(embed)

    def check_points(self, last_call: bool = False) -> None:
        """Raises ValueError where the target captures other states than the drafter was trained on.

        SGLang up to 0.5.12 sets the target's ids before the drafter is loaded, 0.5.17 and 0.5.23 after it, so this is
        asked when the embedding is shared and again, for the last time, in the first forward pass.
        """
        if self._points_checked:
            return
        lists = self._captured.lists() if self._captured is not None else set()
        wrong = lists - {self.wanted.points}
        if wrong:
            raise ValueError(
                f"eagle3-convert's plugin: the target hands out the states {list(min(wrong))} (0 = embedding, "
                f"k = output of the k-th layer), the drafter was trained on {list(self.wanted.points)}: to this "
                "release of SGLang and this target class the ids in its config.json mean other layers. Convert it for "
                "them: eagle3-convert IN OUT --engine sglang==RELEASE --target TARGET --allow-plugin"
            )
        self._points_checked = bool(lists) or last_call
        if last_call and not lists:
            logger.warning(
                "eagle3-convert's plugin cannot see which states the target hands out; the drafter was trained on %s.",
                list(self.wanted.points),
            )

    @functools.wraps(LlamaForCausalLMEagle3.forward)  # SGLang looks at its signature
    def forward(self, *arguments: Any, **named: Any) -> Any:
        if not self._points_checked:
            self.check_points(last_call=True)
        return super().forward(*arguments, **named)


EntryClass = [Eagle3ConvertForCausalLM]

"""Small targets as models of the transformers library, and the states at their capture points.

Capture point p is by definition what the transformers model feeds into its decoder layer p (p =
LAYERS: into its final norm), so the numbering does not depend on an engine. An engine's class is
given the same weights, and each state it hands over is compared with all points.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jobs
import torch
from transformers import AutoConfig, AutoModelForCausalLM

LAYERS = 6
TOKENS = 5
HIDDEN = 32

COMMON: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "vocab_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "torch_dtype": "float32",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "head_dim": 8,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 8,
        "attention_bias": False,
    },
    "deepseek": {  # every layer dense
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "first_k_dense_replace": LAYERS,
        "moe_layer_freq": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "rope_scaling": {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "beta_fast": 32,
            "beta_slow": 1,
        },
    },
    "gpt_oss": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
        "attention_bias": True,
        "rms_norm_eps": 1e-5,  # vLLM's class has this written in
        "swiglu_limit": 7.0,
    },
}

#: Where a block's kernels have no PyTorch version, the block is replaced in BOTH models by a
#: scaling of its input. Embedding, residual stream, norms and capture stay the engine's own.
#: The first name that a model has is the one meant.
SCALED_BLOCKS: dict[str, dict[tuple[str, ...], float]] = {
    "deepseek": {("self_attn",): 0.5},
    "gpt_oss": {("self_attn", "attn"): 0.5, ("mlp",): 0.25},
}


def prepare(
    job: jobs.Job, result: jobs.Result, engine: str, release: str
) -> tuple[Path, torch.nn.Module, list[torch.Tensor]]:
    """A folder with the config of a job's target, its transformers model, and the states at points 0 to LAYERS."""
    architecture = job["architecture"]
    result.update(engine=engine, release=release, architecture=architecture, ids=job["ids"], layers=LAYERS)
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps({**COMMON, **ARCHITECTURES[architecture]}))
    result["stage"] = "reference"
    reference = make_reference(folder, architecture)
    return folder, reference, capture_points(reference)


def make_reference(folder: Path, architecture: str) -> torch.nn.Module:
    """The transformers model, with weights large enough to tell the points apart."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    config._attn_implementation = "eager"
    reference = AutoModelForCausalLM.from_config(config).float().eval()
    for name, parameter in reference.named_parameters():
        noise = torch.randn(parameter.shape) * 0.1
        parameter.data.copy_(1 + noise if "norm" in name else noise)
    scale_blocks(reference, architecture, lambda scaled: (scaled, None))
    return reference


def copy_weights(reference: torch.nn.Module, target: torch.nn.Module) -> None:
    """Copy by name, joining what the engine keeps fused; what has no counterpart stays as it is.

    The classes' own load_weights would do it as well, but for some of them only with kernels.
    """
    renamed = {"model.embedding.weight": "model.embed_tokens.weight"}
    fused = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    weights = reference.state_dict()
    for name, parameter in target.named_parameters():
        sources = [renamed.get(name, name)]
        for whole, parts in fused.items():
            if f".{whole}." in name:
                sources = [name.replace(whole, part) for part in parts]
        if all(source in weights for source in sources):
            joined = torch.cat([weights[source] for source in sources])
            if joined.shape == parameter.shape:
                parameter.data.copy_(joined)


def scale_blocks(model: torch.nn.Module, architecture: str, returned: Callable[[torch.Tensor], Any]) -> None:
    """Replace the blocks of SCALED_BLOCKS; `returned` shapes the result as the caller expects."""
    for names, factor in SCALED_BLOCKS.get(architecture, {}).items():
        for layer in model.model.layers:

            def scaled(*args: Any, factor: float = factor, **kwargs: Any) -> Any:
                hidden_states = kwargs.get("hidden_states")
                if hidden_states is None:
                    hidden_states = next(a for a in args if torch.is_floating_point(a))
                return returned(hidden_states * factor)

            block = next(getattr(layer, name) for name in names if hasattr(layer, name))
            block.forward = scaled


def capture_points(reference: torch.nn.Module) -> list[torch.Tensor]:
    """The residual stream of the transformers model at points 0 to LAYERS."""
    points: list[torch.Tensor] = []

    def note_input(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        points.append(args[0][0].clone())

    for module in (*reference.model.layers, reference.model.norm):
        module.register_forward_pre_hook(note_input)
    with torch.no_grad():
        reference(input_ids=input_ids()[None])
    return points


def input_ids() -> torch.Tensor:
    return torch.arange(TOKENS) + 3


def which_point(state: torch.Tensor, points: list[torch.Tensor]) -> int | None:
    """The one point whose values the state has, None if there is no such point."""
    matches = [index for index, point in enumerate(points) if torch.allclose(state, point, atol=1e-4)]
    return matches[0] if len(matches) == 1 else None


def single_point(states: list[torch.Tensor], point: int, points: list[torch.Tensor]) -> str:
    """What came of asking for one point: "captured", "missing", or what was handed over instead."""
    if not states:
        return "missing"
    found = [which_point(state, points) for state in states]
    return "captured" if found == [point] else f"wrong: {found}"

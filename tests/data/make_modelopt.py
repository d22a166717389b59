"""Write small ModelOpt drafters with nvidia-modelopt's own conversion and export code, on a CPU, the target tiny.

    pip install torch -e '.[fixtures]' "transformers==4.57.6" "nvidia-modelopt==0.42.0"
    (then 0.47.0: one fixture for each)
    python -m tests.data.make_modelopt

The weights are those of the trained drafter a_plain; d2t is put into its buffer as ModelOpt's training script does.
Nothing of the package is replaced. It wants transformers 4 (4.57.6 was used). Its Megatron export needs Megatron-Core;
test_producers.py imitates the names.
"""

from __future__ import annotations

# First, for it says what is not installed.
from tests.data.producer import DATA, POINTS, PRODUCERS, SHAPE, TARGET, check, weights

# isort: split
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import modelopt
import modelopt.torch.speculative as mtsp
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

RELEASE = tuple(int(part) for part in modelopt.__version__.split(".")[:2])
SAME = ("hidden_size", "vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id")  # the target's


def make(name: str) -> None:
    target = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.bfloat16)
    config = deepcopy(mtsp.EAGLE3_DEFAULT_CFG)
    config = config.get("config", config)  # 0.37 to 0.42 wrap it
    config["eagle_decoder_type"] = "llama"
    config["eagle_architecture_config"] |= {
        **{key: value for key, value in SHAPE.items() if key not in SAME},
        "eagle_aux_hidden_state_layer_ids": [p - 1 for p in POINTS],
        "rope_scaling": {"rope_type": "default", "rope_theta": 10000.0},
        "rope_theta": 10000.0,
        "use_aux_hidden_state": True,
        "use_last_layernorm": True,
        "_attn_implementation": "eager",
    }
    mtsp.convert(target, [("eagle", config)])
    ours = weights("layers.0", but=["embed_tokens.weight", "t2d"])
    print(name, target.eagle_module.load_state_dict(ours))
    exact = deepcopy(target.eagle_module).float()
    own: list[torch.Tensor] = []

    def kept(embeds: list[torch.Tensor], states: torch.Tensor) -> list[torch.Tensor]:
        own[:] = chain(exact, embeds, states)
        return own

    print("largest difference from a_plain's logits, step 0:", check(kept, steps=1))
    # What the trainer computed on the first sequence, every fourth row: another thing than any engine does (C216).
    save_file({"s0.draft_logits_step0": own[0][0, ::4].contiguous()}, DATA / "expected" / f"{name}.safetensors")
    plain = deepcopy(exact)
    plain.layers[0].input_layernorm.forward = embedding_alone(plain.layers[0].input_layernorm)
    print("  the state not normalised by input_layernorm:", check(lambda e, s: chain(plain, e, s), steps=1))
    out = PRODUCERS / name
    shutil.rmtree(out, ignore_errors=True)
    export(target, out)


def embedding_alone(norm: torch.nn.Module) -> Any:
    """The layer's first norm for the embedding, and none for the state that transformers' layer gives it."""
    own = type(norm).forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        return own(norm, x) if getattr(norm, "embedding", None) is x else x

    return forward


def export(target: torch.nn.Module, out: Path) -> None:
    if RELEASE >= (0, 43):
        from modelopt.torch.export.plugins.hf_spec_export import EagleExporter

        EagleExporter(target).export(out)
    else:  # through unified_export_hf.py:1012-1016
        from modelopt.torch.export import export_hf_checkpoint

        out.mkdir()
        export_hf_checkpoint(target, export_dir=out)


def chain(module: torch.nn.Module, embeds: list[torch.Tensor], states: torch.Tensor) -> list[torch.Tensor]:
    """One step of HFEagleModel.forward: fc, then the module (speculative/plugins/hf_eagle.py)."""
    rows = states.shape[1]
    mask = torch.full((rows, rows), torch.finfo(torch.float32).min).triu(1)[None, None]
    if hasattr(module, "_maybe_init_rope"):
        module._maybe_init_rope()
    module.layers[0].input_layernorm.embedding = embeds[0]
    with torch.no_grad():
        normed, _, _ = module(module.fc(states), embeds[0], attention_mask=mask, position_ids=torch.arange(rows)[None])
        return [module.lm_head(normed)]


if __name__ == "__main__":
    if RELEASE >= (0, 43):
        make("modelopt_layers")
    else:
        make("modelopt_midlayer")

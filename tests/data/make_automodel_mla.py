"""Write a small NeMo AutoModel drafter with latent attention by nemo-automodel 0.7.0's own model, on a CPU.

    pip install torch transformers pillow, and --no-deps "nemo-automodel==0.7.0"
    python -m tests.data.make_automodel_mla

As make_automodel.py, for a DeepSeek-V3 target of the size of target-tiny. fc, norms, MLP, head and map are those of the
trained drafter a_plain; its attention is as the model initialises it (seed 0). Nothing of the package is replaced.
"""

from __future__ import annotations

import shutil

import torch
from nemo_automodel.components.speculative.eagle.draft_deepseek import DeepseekV3Eagle3DraftModel
from safetensors.torch import save_file
from transformers import DeepseekV3Config

from tests.data.producer import PRODUCERS, SHAPE, weights

LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}


def main() -> None:
    torch.manual_seed(0)
    ours = {n: t for n, t in weights().items() if ".self_attn." not in n}
    shape = {k: v for k, v in SHAPE.items() if k not in ("draft_vocab_size", "head_dim")}
    base = DeepseekV3Config(
        **{**shape, **LATENT, "num_key_value_heads": 4, "n_routed_experts": 8, "num_hidden_layers": 6}
    )
    config = base.to_dict() | {
        "draft_vocab_size": 384, "target_hidden_size": base.hidden_size, "architectures": ["LlamaEagle3DraftModel"],
        "tie_word_embeddings": False, "attn_implementation": "eager", "fc_norm": False, "norm_output": False,
        "parallel_drafting": False,
    }  # fmt: skip
    model = DeepseekV3Eagle3DraftModel(type(base).from_dict(config))
    top = ("lm_head.weight", "d2t", "t2d")
    print(model.load_state_dict({n if n in top else f"model.{n}": t for n, t in ours.items()}, strict=False))
    model.set_vocab_mapping(ours["d2t"] + torch.arange(384))
    out = PRODUCERS / "automodel_mla"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    state = {k: v.contiguous() for k, v in model.to(torch.bfloat16).state_dict().items()}
    save_file(state, out / "model.safetensors")
    model.config.to_json_file(out / "config.json")


if __name__ == "__main__":
    main()

"""Write a small NeMo AutoModel drafter with nemo-automodel 0.7.0's own model, on a CPU.

    pip install torch -e '.[fixtures]', and --no-deps "nemo-automodel==0.7.0"
    python -m tests.data.make_automodel

The weights are those of the trained drafter a_plain. Nothing of the package is replaced. The config is put together as
recipes/llm/train_eagle3.py:606-658 does, from the whole config of the target; the files are written as its export of
merged adapters writes them (:486-492), the names being those of state_dict() in every export.
"""

from __future__ import annotations

# First, for it says what is not installed.
from tests.data.producer import PRODUCERS, TARGET, check, weights

# isort: split
import shutil

import torch
from nemo_automodel.components.speculative.eagle.draft_llama import LlamaEagle3DraftModel
from safetensors.torch import save_file
from transformers import AutoConfig


def main() -> None:
    ours = weights()
    base = AutoConfig.from_pretrained(TARGET)
    config = base.to_dict() | {
        "draft_vocab_size": 384, "target_hidden_size": base.hidden_size, "architectures": ["LlamaEagle3DraftModel"],
        "tie_word_embeddings": False, "attn_implementation": "eager", "fc_norm": False, "norm_output": False,
        "parallel_drafting": False,
        "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 1024,
    }  # fmt: skip
    model = LlamaEagle3DraftModel(type(base).from_dict(config)).float()
    top = ("lm_head.weight", "d2t", "t2d")
    selected = ours["d2t"] + torch.arange(384)
    model.load_state_dict({n if n in top else f"model.{n}": t for n, t in ours.items()})
    model.set_vocab_mapping(selected)
    print("largest difference from a_plain's logits:", check(lambda e, s: chain(model, e, s)))
    out = PRODUCERS / "automodel"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    state = {k: v.contiguous() for k, v in model.to(torch.bfloat16).state_dict().items()}
    save_file(state, out / "model.safetensors")
    model.config.to_json_file(out / "config.json")


def chain(model: torch.nn.Module, embeds: list[torch.Tensor], states: torch.Tensor) -> list[torch.Tensor]:
    """The steps of its trainer (components/speculative/eagle/core.py), the embeddings given."""
    rows = states.shape[1]
    cache: list[list[torch.Tensor]] = [[], []]
    hidden = model.project_hidden_states(states)
    found = []
    with torch.no_grad():
        for embed in embeds:
            model.embed_input_ids = lambda ids, embed=embed: embed
            ids = torch.zeros(1, rows, dtype=torch.long)
            hidden = model(ids, hidden, torch.ones(1, rows, dtype=torch.long), cache_hidden=cache)
            found.append(model.compute_logits(hidden))
    del model.embed_input_ids
    return found


if __name__ == "__main__":
    main()

"""What the make_*.py scripts share: the weights of the trained drafter a_plain, to be put into another trainer's model,
and what speculators' own model computed with them, to hold the other trainer's against.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from packaging.requirements import Requirement
from safetensors.torch import load_file

DATA = Path(__file__).parent
PRODUCERS = DATA / "producers"
TARGET = DATA / "target-tiny"
POINTS = (1, 3, 5)
SHAPE = {
    "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "max_position_embeddings": 1024, "vocab_size": 512, "draft_vocab_size": 384, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

# Embeddings [1, T, H] of the tokens to come and states [1, T, 3 H] -> logits [1, T, Vd] of each step.
Chain = Callable[[Sequence[torch.Tensor], torch.Tensor], list[torch.Tensor]]


def weights(layer: str = "layers.0", but: Sequence[str] = ()) -> dict[str, torch.Tensor]:
    """The trained tensors of a_plain, its layer named `layer`."""
    tensors = load_file(DATA / "drafters" / "a_plain" / "model.safetensors")
    return {n.replace("layers.0.", f"{layer}."): t.clone() for n, t in tensors.items() if n not in but}


def check(chain: Chain, steps: int = 3) -> float:
    """The largest difference of the other trainer's logits from the record, over the steps of one sequence."""
    sample = load_file(DATA / "samples" / "tiny.safetensors")
    record = load_file(DATA / "expected" / "a_plain.safetensors")
    table = weights()["embed_tokens.weight"].float()
    tokens, states = sample["s0.input_ids"], sample["s0.hidden_states"]
    rows = len(tokens) - 1
    feed = torch.cat([states[p, :rows] for p in POINTS], dim=-1)[None]
    later = [torch.cat([tokens[1 + k :], tokens.new_zeros(k)]) for k in range(steps)]
    found = chain([table[t][None] for t in later], feed)
    worst = 0.0
    for step, logits in enumerate(found):
        theirs = record[f"s0.draft_logits_step{step}"]
        ours = logits[0, : rows - step]
        worst = max(worst, float((ours if step == 0 else ours[::4]).sub(theirs).abs().max()))
    return worst


# What each script was run with, beside the extra [fixtures]: what is installed with pip, and what with --no-deps.
NEEDED = {
    "make_specforge": (["transformers>=5"], ["specforge==0.2.0"]),
    "make_modelopt": (["transformers<5,>=4.57", "nvidia-modelopt>=0.42"], []),
    "make_automodel": (["transformers>=5"], ["nemo-automodel==0.7.0"]),
    "make_automodel_mla": (["transformers>=5"], ["nemo-automodel==0.7.0"]),
    "make_peagle": (["transformers>=5"], []),  # and one of two trainers: it says which
    "make_angelslim": (["transformers>=5"], ["angelslim==0.5.0"]),
    "make_speculators_early": (["transformers<4.58"], ["speculators<0.5"]),
}


def _absent(requirement: str) -> bool:
    wanted = Requirement(requirement)
    try:
        return not wanted.specifier.contains(version(wanted.name), prereleases=True)
    except PackageNotFoundError:
        return True


def _check_packages(script: str) -> None:
    """End a script whose packages are not there, saying what to install."""
    plain, alone = NEEDED.get(script, ([], []))
    if any(map(_absent, [*plain, *alone])):
        ways = ["pip install torch -e '.[fixtures]'", "pip install " + " ".join(f"'{r}'" for r in plain)]
        ways += ["pip install --no-deps " + " ".join(f"'{r}'" for r in alone)] if alone else []
        wanted = ", ".join([*plain, *alone])
        sys.exit(f"{script}: needs {wanted}. In an environment of its own:\n  " + " && ".join(ways))


_check_packages(Path(sys.argv[0]).stem)  # before the script imports them

"""Write small drafters with early speculators: what its converter made, and what its training saved, on a CPU.

    pip install torch -e '.[fixtures]' "transformers==4.53.3", and --no-deps "speculators==0.1.0"   (then 0.2.0)
    python -m tests.data.make_speculators_early

and then with "transformers==4.57.6" and "speculators==0.4.0.1". Nothing of the packages is replaced.

0.1.0 and 0.2.0 train nothing: their converter was run on specforge_sglang, the trained drafter a_plain as SpecForge
exports it. 0.2.0's is known to lose a decoder layer that is named midlayer.*, and did. 0.4.0.1 is its own model class
with the weights of a_plain, saved by its own checkpointer. a_plain was trained on points 1, 3 and 5, which no early
data generation would have captured: of the points of such drafters these files show only that none are written.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from tests.data.producer import DATA, POINTS, PRODUCERS, SHAPE, check, weights

RELEASE = version("speculators")
BLOCK = 128  # of flex attention's mask, which 0.4 extends by whole blocks


def converted(out: Path) -> None:
    from speculators.convert.eagle.eagle3_converter import Eagle3Converter

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        source = shutil.copytree(PRODUCERS / "specforge_sglang", Path(folder) / "specforge")
        config = json.loads((source / "config.json").read_text())
        # transformers 4, which SpecForge wrote with at the time, names the dtype so.
        (source / "config.json").write_text(json.dumps(config | {"torch_dtype": config.pop("dtype")}))
        # 0.2.0 takes ids as they are given; its help gives [1, 23, 44] as an example (__main__.py:122), which for 48
        # layers are SpecForge's.
        ids = {} if RELEASE == "0.1.0" else {"eagle_aux_hidden_state_layer_ids": [p - 1 for p in POINTS]}
        Eagle3Converter().convert(source, out, "target-tiny", validate=False, **ids)


def trained(out: Path) -> None:
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.train.checkpointer import SingleGPUCheckpointer
    from transformers import LlamaConfig

    ours = weights()
    layer = LlamaConfig(**{k: v for k, v in SHAPE.items() if k != "draft_vocab_size"}, rope_theta=10000.0)
    layer._attn_implementation = "simple_flex_attention"  # registered by models/eagle3/attention.py
    model = Eagle3DraftModel.from_training_args(
        layer, draft_vocab_size=384, norm_before_residual=False, ttt_steps=3, verifier_name_or_path="target-tiny",
        t2d=ours["t2d"], d2t=ours["d2t"],
    )  # fmt: skip
    print(model.load_state_dict(ours, strict=False))
    print("largest difference from a_plain's logits:", check(lambda e, s: chain(model.float(), e, s)))
    with tempfile.TemporaryDirectory() as folder:
        SingleGPUCheckpointer(folder).save_checkpoint(model, torch.optim.AdamW(model.parameters()), epoch=0)
        shutil.copytree(Path(folder) / "0", out)
    (out / "optimizer_state_dict.pt").unlink()


def chain(model: Any, embeds: list[torch.Tensor], states: torch.Tensor) -> list[torch.Tensor]:
    """Its own forward over as many steps, the embeddings given and the logits taken from the head."""
    rows = states.shape[1]
    more = -rows % BLOCK
    left, found = iter(embeds), []
    model.embed_tokens.forward = lambda ids: F.pad(next(left), (0, 0, 0, more))
    hook = model.lm_head.register_forward_hook(lambda module, args, logits: found.append(logits[:, :rows]))
    ids = torch.zeros(1, rows + more, dtype=torch.long)
    with torch.no_grad():
        model(F.pad(states, (0, 0, 0, more)), ids, torch.tensor([rows]), ttt_steps=len(embeds))
    hook.remove()
    del model.embed_tokens.forward
    return found


def main() -> None:
    out = PRODUCERS / f"speculators_{RELEASE.replace('.', '')}"
    shutil.rmtree(out, ignore_errors=True)
    os.chdir(DATA)  # the target's path is written into the drafter
    (trained if RELEASE >= "0.3" else converted)(out)
    for left in ("config.py", "eagle3.py", "generation_config.json"):  # the library's own code, and nothing
        (out / left).unlink(missing_ok=True)


if __name__ == "__main__":
    main()

"""Write small P-EAGLE drafters with the model and saving code of speculators 0.9.0 and of specforge 0.2.0, on a CPU.

    pip install torch transformers==5.19.0 "speculators==0.9.0"     python -m tests.data.make_peagle speculators
    pip install torch transformers "specforge==0.2.0" --no-deps     python -m tests.data.make_peagle specforge

Two layers. The first, fc, norms, head and map are those of the trained drafter a_plain; the second and mask_hidden are
as the model initialises them (seed 0): training needs a GPU's flex attention. Nothing of the packages is replaced.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import LlamaConfig

from tests.data.producer import POINTS, PRODUCERS, SHAPE, TARGET, weights

LAYERS = 2
MASK = 3


def layer_config() -> LlamaConfig:
    shape = {key: value for key, value in SHAPE.items() if key != "draft_vocab_size"}
    return LlamaConfig(**{**shape, "num_hidden_layers": LAYERS})


def fill(model: torch.nn.Module) -> None:
    """a_plain's tensors, where the model has them."""
    missing, unexpected = model.load_state_dict(weights(), strict=False)
    print("kept as initialised:", sorted(missing), "  unexpected:", unexpected)


def speculators() -> None:
    from speculators.models.peagle import PEagleDraftModel

    ours = weights()
    model = PEagleDraftModel.from_training_args(
        layer_config(),
        t2d=ours["t2d"],
        d2t=ours["d2t"],
        draft_vocab_size=SHAPE["draft_vocab_size"],
        norm_before_residual=False,
        target_layer_ids=list(POINTS),
        mask_token_id=MASK,
        num_depths=8,
        verifier_name_or_path=str(TARGET),
        draft_attn_impl="eager",
    )
    fill(model)
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    out = fresh("speculators_peagle")
    model.save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = TARGET.name  # not where it lies on this machine
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for code in out.glob("*.py"):  # the library's own config.py
        code.unlink()


def specforge() -> None:
    from specforge.export import export_to_hf
    from specforge.modeling.auto import AutoDraftModel, AutoDraftModelConfig
    from specforge.training.strategies.base import PEagleTrainStrategy

    work = Path(tempfile.mkdtemp())
    eagle = {"eagle_aux_hidden_state_layer_ids": [p - 1 for p in POINTS], "use_aux_hidden_state": True}
    document = {
        "architectures": ["PEagleDraftModel"], "model_type": "llama", "eagle_config": eagle, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", **SHAPE, "num_hidden_layers": LAYERS,
    }  # fmt: skip
    (work / "draft.json").write_text(json.dumps(document))
    config = AutoDraftModelConfig.from_file(str(work / "draft.json"))
    model = AutoDraftModel.from_config(config, torch_dtype=torch.bfloat16)
    fill(model)
    # What training holds: the draft model inside OnlinePEagleModel, filtered as its strategy does.
    wrapped = torch.nn.Module()
    wrapped.draft_model = model
    state = PEagleTrainStrategy.checkpoint_state_filter(SimpleNamespace(), wrapped.state_dict())
    run = work / "tiny-step500"
    run.mkdir()
    torch.save(
        {"draft_state_dict": state, "global_step": 500, "epoch": 1, "strategy": "peagle", "run_id": "tiny"},
        run / "training_state.pt",
    )
    out = fresh("specforge_peagle")
    export_to_hf(str(run), str(work / "draft.json"), str(out))
    shutil.rmtree(work)


def fresh(name: str) -> Path:
    out = PRODUCERS / name
    shutil.rmtree(out, ignore_errors=True)
    return out


if __name__ == "__main__":
    torch.manual_seed(0)
    {"speculators": speculators, "specforge": specforge}[sys.argv[1]]()

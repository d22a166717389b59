"""Write small SpecForge drafters with specforge 0.2.0's own model, checkpoint and export code, on a CPU.

    pip install torch -e '.[fixtures]', and --no-deps "specforge==0.2.0"
    python -m tests.data.make_specforge

The weights are those of the trained drafter a_plain. Nothing of the package is replaced; the training loop, which needs
SGLang and a GPU, is not run: the training state is what its controller saves (training/controller.py:848-866), through
its own filter of names (training/strategies/base.py:306-319).
"""

from __future__ import annotations

# First, for it says what is not installed.
from tests.data.producer import PRODUCERS, SHAPE, TARGET, check, weights

# isort: split
import json
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from specforge.export import export_to_hf, export_to_sglang
from specforge.modeling.auto import AutoDraftModel, AutoDraftModelConfig
from specforge.training.strategies.base import Eagle3TrainStrategy

CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4], "use_aux_hidden_state": True},
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    **SHAPE,
}


def main() -> None:
    torch._dynamo.config.disable = True
    work = Path(tempfile.mkdtemp())
    (work / "draft.json").write_text(json.dumps(CONFIG))
    config = AutoDraftModelConfig.from_file(str(work / "draft.json"))
    exact = AutoDraftModel.from_config(config, torch_dtype=torch.float32)
    exact.load_state_dict(weights("midlayer"))
    print("largest difference from a_plain's logits:", check(lambda e, s: chain(exact, e, s)))
    model = AutoDraftModel.from_config(config, torch_dtype=torch.bfloat16)
    model.load_state_dict(weights("midlayer"))
    model.freeze_embedding()

    # What training holds: the draft model inside OnlineEagle3Model, filtered as its strategy does.
    wrapped = torch.nn.Module()
    wrapped.draft_model = model
    strategy = SimpleNamespace(eagle3_model=wrapped)
    state = {
        "draft_state_dict": Eagle3TrainStrategy.checkpoint_state_filter(strategy, wrapped.state_dict()),
        "global_step": 500, "epoch": 1, "epoch_batch": 0, "epoch_samples": 0, "strategy": "eagle3",
        "run_id": "tiny", "world_size": 1,
    }  # fmt: skip
    run = work / "tiny-step500"
    run.mkdir()
    torch.save(state, run / "training_state.pt")
    for name, export, more in (
        ("specforge_sglang", export_to_sglang, {}),
        ("specforge_hf", export_to_hf, {"embedding_source": str(TARGET)}),
    ):
        out = PRODUCERS / name
        shutil.rmtree(out, ignore_errors=True)
        export(str(run), str(work / "draft.json"), str(out), **more)
    out = PRODUCERS / "specforge_state"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    shutil.copy(run / "training_state.pt", out)
    shutil.copy(work / "draft.json", out / "config.json")
    shutil.rmtree(work)


def chain(model: torch.nn.Module, embeds: list[torch.Tensor], states: torch.Tensor) -> list[torch.Tensor]:
    """The steps of OnlineEagle3Model.forward (algorithms/eagle3/model.py:310-400) with its sdpa backend."""
    rows = states.shape[1]
    hidden = model.project_hidden_states(states)
    mask = model.prepare_decoder_attention_mask(torch.ones(1, rows, dtype=torch.bool), hidden, 1, rows, 0)
    positions = torch.arange(rows)[None]
    cache: list[list[torch.Tensor]] = [[], []]
    found = []
    with torch.no_grad():
        for embed in embeds:
            hidden = model.backbone(embed, hidden, cache, mask, positions)
            found.append(model.compute_logits(hidden))
    return found


if __name__ == "__main__":
    main()

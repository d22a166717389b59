"""Write a small AngelSlim drafter with angelslim 0.5.0's own model, on a CPU.

    pip install torch -e '.[fixtures]', and --no-deps "angelslim==0.5.0"
    python -m tests.data.make_angelslim

The weights are those of the trained drafter a_plain. Replaced: the package's top modules, which import one that the
wheel lacks (angelslim.compressor.qat) and much that this needs not; they are empty here. The names that are left out on
saving are those of train/trainer/eagle3_trainer.py:355-366, whose method needs DeepSpeed. The config states a rope base
of a million, as AngelSlim's own for Qwen3 do, which the model does not read.
"""

from __future__ import annotations

# First, for it says what is not installed.
from tests.data.producer import PRODUCERS, SHAPE, check, weights

# isort: split
import importlib.util
import json
import shutil
import sys
import tempfile
import types
from pathlib import Path

import torch

_SPEC = importlib.util.find_spec("angelslim")
assert _SPEC is not None and _SPEC.submodule_search_locations
_ROOT = Path(next(iter(_SPEC.submodule_search_locations)))
_TRAIN = "compressor/speculative/train"
for _place in (
    "",
    "compressor",
    "compressor/speculative",
    _TRAIN,
    f"{_TRAIN}/models",
    f"{_TRAIN}/models/draft",
    f"{_TRAIN}/data",
):
    _package = types.ModuleType(".".join(("angelslim", *Path(_place).parts)))
    _package.__path__ = [str(_ROOT / _place)]
    sys.modules[_package.__name__] = _package

from angelslim.compressor.speculative.train.models.draft.draft_model_factory import (  # noqa: E402
    DraftModelConfig,
    DraftModelFactory,
)
from angelslim.compressor.speculative.train.models.draft.llama_eagle3 import Eagle3LlamaForCausalLM  # noqa: E402, F401

CONFIG = {
    "architectures": ["Eagle3LlamaForCausalLM"], "model_type": "llama", "target_model_type": "llama",
    "rope_theta": 1000000, "rope_scaling": None, "tie_word_embeddings": False, "attention_bias": False,
    "torch_dtype": "bfloat16", **SHAPE,
}  # fmt: skip


def main() -> None:
    work = Path(tempfile.mkdtemp())
    (work / "config.json").write_text(json.dumps(CONFIG))
    config = DraftModelConfig.from_file(work / "config.json")
    model = DraftModelFactory.from_config(config)
    ours = weights("midlayer")
    exact = type(model)(config).float()
    exact.load_state_dict(ours)
    print("largest difference from a_plain's logits:", check(lambda e, s: chain(exact, e, s)))
    model.load_state_dict(ours)
    out = PRODUCERS / "angelslim"
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out, state_dict={k: v for k, v in model.state_dict().items() if "embed" not in k})
    shutil.rmtree(work)


def chain(model: torch.nn.Module, embeds: list[torch.Tensor], states: torch.Tensor) -> list[torch.Tensor]:
    """The steps of train/trainer/eagle3_trainer.py:235-270."""
    rows = states.shape[1]
    hidden = model.combine_hidden_states(states)
    mask = torch.full((rows, rows), torch.finfo(torch.float32).min).triu(1)[None, None]
    cache: list[list[torch.Tensor]] = [[], []]
    found = []
    with torch.no_grad():
        for embed in embeds:
            hidden, cache = model.encode_layers(embed, hidden, cache, mask, torch.arange(rows)[None], True)
            found.append(model.compute_logits(hidden))
    return found


if __name__ == "__main__":
    main()

"""What `--to` wrote, opened by the trainers' own classes; speculators' form also by vLLM, which reads it itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import DATA, ROOT, TARGET

from .conftest import Engines
from .drafters import LOGIT_TOLERANCE, Loaded, Workshop, change_config, collect, sample_inputs

pytestmark = pytest.mark.engines

VLLM = "0.33.0"
DRAFTERS = sorted(p.name for p in (DATA / "drafters").iterdir())

#: Other trainers' drafters, all with the weights of a_plain, and what has to be said to convert them.
FOREIGN = {
    "specforge_hf": (),
    "modelopt_midlayer": (),
    "modelopt_layers": ("--set", "rope_scaling=none"),
    "automodel": ("--aux", "1,3,5"),
    "angelslim": ("--aux", "1,3,5", "--set", "rope_theta=10000"),
}
#: vLLM's layer of a later layer has a norm that nothing uses.
UNUSED_IN_VLLM = {"e_2layers": {"model.layers.1.hidden_norm.weight"}}

#: Drafters that SpecForge can have, and its own export of the same weights.
SPECFORGES = ("a_plain", "d_fcnorm_normout", "h_fullvocab", "i_rope_headdim")

#: Keys of a configuration that say who saved it.
OF_THE_WRITER = {"transformers_version", "_name_or_path", "auto_map", "architectures", "torch_dtype"}


class Forms:
    """Writes each form once, and opens them all in one process of each program."""

    def __init__(self, engines: Engines, scratch: Path) -> None:
        self._engines, self._scratch, self._workshop = engines, scratch, Workshop(scratch)
        self.write = cache(self._write)
        self.served = cache(self._served)
        self.trained = cache(self._trained)

    def _write(self, source: Path, form: str, *more: str) -> Path:
        output = self._scratch / form / source.name
        output.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "converter", "convert", str(source), str(output), "--to", form]
        command += ["--target", str(TARGET), *more]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return output

    def speculators(self) -> dict[str, Path]:
        own = {name: self.write(DATA / "drafters" / name, "speculators") for name in DRAFTERS}
        return own | {name: self.write(DATA / "producers" / name, "speculators", *FOREIGN[name]) for name in FOREIGN}

    def original(self, drafter: str) -> Path:
        """The trainer's own, in which the target's name is a path from where it was trained."""
        folder = self._scratch / "original" / drafter
        if not folder.exists():
            shutil.copytree(DATA / "drafters" / drafter, folder)
            made = json.loads((folder / "config.json").read_text())["speculators_config"]
            verifier = {**made["verifier"], "name_or_path": str(TARGET)}
            change_config(folder, speculators_config={**made, "verifier": verifier})
        return folder

    def _served(self) -> dict[str, Loaded]:
        jobs = [
            self._workshop.job(name, folder, sample_inputs("a_plain" if name in FOREIGN else name))
            for name, folder in self.speculators().items()
        ]
        return collect(jobs, self._engines.load_with_vllm(VLLM, jobs))

    def _trained(self, trainer: str, **folders: Path) -> dict[str, dict[str, Any]]:
        jobs = [{"name": name, "drafter": str(folder)} for name, folder in folders.items()]
        return self._engines.load_with_trainer(trainer, jobs)


@pytest.fixture(scope="module")
def forms(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Forms:
    return Forms(engines, tmp_path_factory.mktemp("forms"))


@pytest.mark.parametrize("name", [*DRAFTERS, *FOREIGN])
def test_vllm_serves_a_speculators_drafter_that_was_written(forms: Forms, name: str) -> None:
    loaded = forms.served()[name]
    assert loaded.result["error"] is None, loaded.result["error"]
    assert set(loaded.result["dead_parameters"]) == UNUSED_IN_VLLM.get(name, set())
    assert set(loaded.result["unwritten"]) <= UNUSED_IN_VLLM.get(name, set()) | {"model.embed_tokens.weight"}
    assert set(loaded.result["not_consumed"]) <= {"t2d"}
    drafter = "a_plain" if name in FOREIGN else name
    for step in (0, 1):
        assert loaded.logit_error(drafter, step) < LOGIT_TOLERANCE


def values(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in OF_THE_WRITER and value is not None}


@pytest.mark.parametrize("name", [*DRAFTERS, *FOREIGN])
def test_speculators_opens_what_was_written_as_its_own(forms: Forms, name: str) -> None:
    drafter = "a_plain" if name in FOREIGN else name
    originals = {f"original {d}": forms.original(d) for d in DRAFTERS}
    opened = forms.trained("speculators==0.9.0", **forms.speculators(), **originals)
    ours, own = opened[name], opened[f"original {drafter}"]
    assert ours["error"] is None, ours["error"]
    assert ours["class"] == own["class"] == "speculators.models.eagle3.core.Eagle3DraftModel"
    of_the_target = {"verifier_lm_head.weight", "verifier_norm.weight"}
    without_embedding = {"embed_tokens.weight"} & set(ours["not_in_file"]) if name in FOREIGN else set()
    assert set(ours["not_in_file"]) == of_the_target | without_embedding
    assert ours["not_loaded"] == []
    learnt = ours["tensors"].keys() - of_the_target - without_embedding
    assert {n: ours["tensors"][n] for n in learnt} == {n: own["tensors"][n] for n in learnt}
    for key in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "draft_vocab_size",
                "eagle_aux_hidden_state_layer_ids", "embed_requires_grad"):  # fmt: skip
        assert ours["config"][key] == own["config"][key], key
    layer, own_layer = (
        values(ours["config"]["transformer_layer_config"]),
        values(own["config"]["transformer_layer_config"]),
    )
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                "head_dim", "vocab_size", "hidden_act", "rms_norm_eps", "max_position_embeddings", "rope_parameters",
                "attention_bias", "model_type"):  # fmt: skip
        assert layer.get(key) == own_layer.get(key), key
    assert bool(layer.get("mlp_bias")) == bool(own_layer.get("mlp_bias"))  # which qwen3 layers never have
    full = ["full_attention"] * layer["num_hidden_layers"]  # what an absent key means, to the trainer too
    assert (layer.get("layer_types") or full) == (own_layer.get("layer_types") or full)


@pytest.mark.parametrize("name", SPECFORGES)
def test_specforge_opens_what_was_written_as_its_own(forms: Forms, name: str) -> None:
    written = {d: forms.write(DATA / "drafters" / d, "specforge") for d in SPECFORGES}
    opened = forms.trained("specforge==0.2.0", **written, original=DATA / "producers" / "specforge_hf")
    ours, own = opened[name], opened["original"]
    assert ours["error"] is None, ours["error"]
    assert ours["class"] == own["class"] == "specforge.modeling.draft.llama3_eagle.LlamaForCausalLMEagle3"
    assert ours["not_in_file"] == own["not_in_file"] == [] and ours["not_loaded"] == []
    assert ours["tensors"].keys() - {f"fc_norm.{j}.weight" for j in range(3)} == own["tensors"].keys()
    if name == "a_plain":  # the same weights
        assert ours["tensors"] == own["tensors"]
        assert values(ours["config"]) == values(own["config"])

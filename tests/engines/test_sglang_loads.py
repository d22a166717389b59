"""Converted drafters in SGLang's own draft class.

The drafters in tests/data were made by the speculators library, and its own model's logits over
states of the target are recorded beside them. Each drafter is converted with the command line and
loaded by the real class: every parameter must be filled, and the logits must be the trainer's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from converter.rules.ids import solve

from .conftest import Engines

pytestmark = pytest.mark.engines

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY / "tests" / "data"
TARGET = DATA / "target-tiny"
TARGET_LAYERS = 6

DRAFTERS = {
    "0.5.23": (
        "a_plain",
        "c_nbfc",
        "d_fcnorm_normout",
        "e_2layers",
        "g_aux024",
        "h_fullvocab",
        "i_rope_headdim",
        "k_embedgrad",
    ),
    "0.5.9": ("a_plain", "h_fullvocab", "i_rope_headdim", "k_embedgrad"),
}

#: Parameters that a release makes and never uses, so that nothing needs to be loaded into them.
UNUSED_PARAMETERS = {
    # Every layer but the first norms its input with hidden_norm.
    ("0.5.23", "e_2layers"): {"model.layers.1.input_layernorm.weight"},
}

#: Loaded or not, it is replaced by the target's; `embedding` of a result says so.
EMBEDDING = "model.embed_tokens.weight"

#: fp32 on both sides; the logits are of the order of 10.
LOGIT_TOLERANCE = 1e-3

#: What the faults below move logits by at least.
LOGIT_FAULT = 1.0

#: The recorded logits of steps after the first are every fourth row.
ROWS_RECORDED = 4

#: Loadings that must be seen to be wrong, by release. See the end of this file.
TRAINERS_NAMES = ("0.5.9", "a_plain under the trainer's tensor names")
OTHER_ORDER = ("0.5.23", "a_plain fed with its states in another order")
LOST_FLAG = ("0.5.23", "d_fcnorm_normout without norm_output")


@dataclass(frozen=True)
class Loaded:
    """What a release made of a drafter; `outputs` is empty if it did not get that far."""

    result: dict[str, Any]
    outputs: dict[str, np.ndarray]

    def logit_error(self, drafter: str, step: int) -> float:
        """Largest distance from the logits that the trainer's own model computed."""
        recorded = load_file(DATA / "expected" / f"{drafter}.safetensors")
        expected = recorded[f"s0.draft_logits_step{step}"]
        computed = self.outputs["logits"] if step == 0 else self.outputs["next_logits"][::ROWS_RECORDED]
        assert computed.shape == expected.shape
        return float(np.abs(computed - expected).max())


class Loader:
    """Converts drafters, and loads all of a release in one process of the engine."""

    def __init__(self, engines: Engines, scratch: Path) -> None:
        self._engines = engines
        self._scratch = scratch
        self.convert = cache(self._convert)
        self.load_all = cache(self._load_all)

    def _convert(self, release: str, drafter: str) -> tuple[Path, str | None]:
        """The converted folder, and what the converter printed if it failed."""
        output = self._scratch / release / drafter
        output.parent.mkdir(exist_ok=True)
        command = [
            *(sys.executable, "-m", "converter", "convert"),
            *(str(DATA / "drafters" / drafter), str(output)),
            *("--engine", f"sglang=={release}", "--target", str(TARGET)),
        ]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
        failure = f"{done.stdout}{done.stderr}" if done.returncode else None
        return output, failure

    def _load_all(self, release: str) -> dict[str, Loaded]:
        """The drafters of a release under their names, and its faulty loadings."""
        jobs = []
        for drafter in DRAFTERS[release]:
            folder, failure = self.convert(release, drafter)
            if failure is None:
                jobs.append(self._job(drafter, folder, sample_inputs(drafter)))
                jobs += self._faulty_jobs(release, drafter, folder)
        results = self._engines.load_with_sglang(release, jobs)
        loaded = {}
        for job in jobs:
            outputs = Path(job["outputs"])
            tensors = load_file(outputs) if outputs.exists() else {}
            loaded[job["name"]] = Loaded(results[job["name"]], tensors)
        return loaded

    def _faulty_jobs(self, release: str, drafter: str, folder: Path) -> list[dict[str, str]]:
        inputs = sample_inputs(drafter)
        if (release, drafter) == (TRAINERS_NAMES[0], "a_plain"):
            faulty = self._copy(folder)
            shutil.copy(DATA / "drafters" / drafter / "model.safetensors", faulty)
            return [self._job(TRAINERS_NAMES[1], faulty, inputs)]
        if (release, drafter) == (OTHER_ORDER[0], "a_plain"):
            low, middle, high = np.split(inputs["aux_hidden_states"], 3, axis=-1)
            inputs["aux_hidden_states"] = np.concatenate([middle, low, high], axis=-1)
            return [self._job(OTHER_ORDER[1], folder, inputs)]
        if (release, drafter) == (LOST_FLAG[0], "d_fcnorm_normout"):
            faulty = self._copy(folder)
            config = json.loads((faulty / "config.json").read_text())
            del config["norm_output"]
            (faulty / "config.json").write_text(json.dumps(config))
            return [self._job(LOST_FLAG[1], faulty, inputs)]
        return []

    def _copy(self, folder: Path) -> Path:
        return shutil.copytree(folder, folder.with_name(f"{folder.name}-faulty"))

    def _job(self, name: str, folder: Path, inputs: dict[str, np.ndarray]) -> dict[str, str]:
        files = folder.parent / name.replace(" ", "-")
        save_file(inputs, f"{files}.inputs")
        return {
            "name": name,
            "drafter": str(folder),
            "target": str(TARGET),
            "target_weights": str(TARGET / "model.safetensors"),
            "dtype": "float32",
            "inputs": f"{files}.inputs",
            "outputs": f"{files}.outputs",
        }


def trained_points(drafter: str) -> list[int]:
    config = json.loads((DATA / "drafters" / drafter / "config.json").read_text())
    return config["eagle_aux_hidden_state_layer_ids"]


def sample_inputs(drafter: str) -> dict[str, np.ndarray]:
    """The first sequence of the sample as a draft prefill: token i + 1 with the state at i."""
    sample = load_file(DATA / "samples" / "tiny.safetensors")
    tokens, states = sample["s0.input_ids"], sample["s0.hidden_states"]
    return {
        "input_ids": tokens[1:],
        "aux_hidden_states": np.concatenate([states[point, :-1] for point in trained_points(drafter)], axis=-1),
        "positions": np.arange(1, len(tokens)),
    }


def target_token_ids(drafter: str) -> list[int] | None:
    """The target's ids of the draft tokens, read off the mask that says which are in."""
    with safe_open(DATA / "drafters" / drafter / "model.safetensors", framework="numpy") as file:
        if "t2d" not in file.keys():  # noqa: SIM118  (the file is no mapping)
            return None
        return np.flatnonzero(file.get_tensor("t2d")).tolist()


@pytest.fixture(scope="module")
def loader(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Loader:
    return Loader(engines, tmp_path_factory.mktemp("loads"))


@pytest.fixture(
    params=[(release, drafter) for release, names in DRAFTERS.items() for drafter in names],
    ids="-".join,
)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture
def loaded(loader: Loader, case: tuple[str, str]) -> Loaded:
    release, drafter = case
    _, failure = loader.convert(release, drafter)
    assert failure is None, failure
    loaded = loader.load_all(release)[drafter]
    assert loaded.result["error"] is None, loaded.result["error"]
    return loaded


def test_every_parameter_is_filled(loaded: Loaded, case: tuple[str, str]) -> None:
    unused = UNUSED_PARAMETERS.get(case, set())
    assert set(loaded.result["dead_parameters"]) == unused
    assert set(loaded.result["unwritten"]) - {EMBEDDING} <= unused
    assert loaded.result["partly_written"] == []


def test_every_tensor_is_used(loaded: Loaded) -> None:
    assert set(loaded.result["not_consumed"]) <= {"t2d"}


def test_draft_tokens_mean_the_same_target_tokens(loaded: Loaded, case: tuple[str, str]) -> None:
    _, drafter = case
    assert loaded.result["target_token_ids"] == target_token_ids(drafter)


def test_embedding_is_the_targets_and_head_the_drafters(loaded: Loaded) -> None:
    assert (loaded.result["embedding"], loaded.result["head"]) == ("target", "checkpoint")


def test_target_is_asked_for_the_states_of_the_training(loaded: Loaded, case: tuple[str, str]) -> None:
    """What these ids capture in the target's class is tested in test_sglang_captures.py."""
    _, drafter = case
    ids = solve("plus_one", trained_points(drafter), TARGET_LAYERS)
    assert ids is not None
    assert loaded.result["aux_layer_ids"] == list(ids)


@pytest.mark.parametrize("step", [0, 1])
def test_logits_are_the_trainers(loaded: Loaded, case: tuple[str, str], step: int) -> None:
    _, drafter = case
    assert loaded.logit_error(drafter, step) <= LOGIT_TOLERANCE


# From here on: that the checks above can fail.


def faulty(loader: Loader, fault: tuple[str, str]) -> Loaded:
    release, name = fault
    loaded = loader.load_all(release)[name]
    assert loaded.result["error"] is None, loaded.result["error"]
    return loaded


def test_a_layer_under_names_that_0_5_9_drops_is_noticed(loader: Loader) -> None:
    loaded = faulty(loader, TRAINERS_NAMES)
    assert "model.midlayer.self_attn.qkv_proj.weight" in loaded.result["unwritten"]
    assert "layers.0.self_attn.q_proj.weight" in loaded.result["not_consumed"]
    # Not "> LOGIT_FAULT": uninitialised memory can hold anything, NaN too.
    assert not loaded.logit_error("a_plain", step=0) <= LOGIT_FAULT


def test_states_in_another_order_are_noticed(loader: Loader) -> None:
    assert faulty(loader, OTHER_ORDER).logit_error("a_plain", step=0) > LOGIT_FAULT


def test_a_lost_flag_of_the_recurrence_is_noticed_in_the_second_step(loader: Loader) -> None:
    loaded = faulty(loader, LOST_FLAG)
    assert loaded.logit_error("d_fcnorm_normout", step=0) <= LOGIT_TOLERANCE
    assert loaded.logit_error("d_fcnorm_normout", step=1) > LOGIT_FAULT

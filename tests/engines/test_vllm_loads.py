"""Converted drafters in vLLM's own draft classes, and outputs for vLLM and SGLang together.

As test_sglang_loads.py, whose drafters are a part of those here: vLLM can serve them all. Where
SGLang can as well, one folder is converted for both, loaded by both and must give the same.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from converter.rules.ids import solve

from .conftest import Engines
from .drafters import (
    LOGIT_FAULT,
    LOGIT_TOLERANCE,
    TARGET_LAYERS,
    Job,
    Loaded,
    Workshop,
    change_config,
    collect,
    inputs_in_another_order,
    rename_tensor,
    sample_inputs,
    target_token_ids,
    trained_points,
    trained_windows,
)

pytestmark = pytest.mark.engines

VLLM = "0.33.0"
SGLANG = "0.5.23"
FOR_VLLM = (f"vllm=={VLLM}",)
FOR_BOTH = (f"sglang=={SGLANG}", f"vllm=={VLLM}")

DRAFTERS = (
    "a_plain",
    "b_nbr",
    "c_nbfc",
    "d_fcnorm_normout",
    "e_2layers",
    "f_qwen3",
    "g_aux024",
    "h_fullvocab",
    "i_rope_headdim",
    "j_attnbias",
    "k_embedgrad",
    "l_defaults",
)

#: Those that SGLang can serve too.
SHARED = (
    "a_plain",
    "c_nbfc",
    "d_fcnorm_normout",
    "e_2layers",
    "g_aux024",
    "h_fullvocab",
    "i_rope_headdim",
    "k_embedgrad",
)

CLASSES = {"f_qwen3": "vllm.model_executor.models.qwen3_eagle3.Eagle3Qwen3ForCausalLM"}
LLAMA_CLASS = "vllm.model_executor.models.llama_eagle3.Eagle3LlamaForCausalLM"

#: Parameters that an engine makes and never uses. The two have different names for the norm that
#: a layer after the first applies to its input.
UNUSED_IN_VLLM = {"e_2layers": {"model.layers.1.hidden_norm.weight"}}
UNUSED_IN_SGLANG = {"e_2layers": {"model.layers.1.input_layernorm.weight"}}

#: Loaded or not, SGLang replaces it by the target's.
SGLANG_EMBEDDING = "model.embed_tokens.weight"

#: Loadings that must be seen to be wrong. See the end of this file.
OTHER_ORDER = "a_plain fed with its states in another order"
OTHER_NAME = "a_plain with a tensor that vLLM does not know"
DROPPED_NAME = "a_plain with a tensor that vLLM drops"
OTHER_EMBEDDING = "a_plain beside a target of another embedding"
LOST_NORM = "b_nbr without norm_before_residual"
LOST_FLAG = "d_fcnorm_normout without norm_output"
LOST_BIASES = "j_attnbias without attention_bias"


class Loader:
    """Converts drafters, and loads all of them in one process of each engine."""

    def __init__(self, engines: Engines, scratch: Path) -> None:
        self._engines = engines
        self._workshop = Workshop(scratch)
        self.convert = self._workshop.convert
        self.in_vllm = cache(self._in_vllm)
        self.in_sglang = cache(self._in_sglang)

    def _in_vllm(self) -> dict[tuple[str, ...] | str, Loaded]:
        """By engines converted for and drafter; the faulty ones by their names."""
        jobs = {}
        for drafter in DRAFTERS:
            folder, failure = self.convert(drafter, *FOR_VLLM)
            if failure is None:
                jobs[FOR_VLLM, drafter] = self._workshop.job(f"{drafter} alone", folder, sample_inputs(drafter))
                jobs |= {job["name"]: job for job in self._faulty_jobs(drafter, folder)}
        jobs |= {(FOR_BOTH, drafter): job for drafter, job in self._shared_jobs().items()}
        loaded = collect(jobs.values(), self._engines.load_with_vllm(VLLM, list(jobs.values())))
        return {key: loaded[job["name"]] for key, job in jobs.items()}

    def _in_sglang(self) -> dict[str, Loaded]:
        """The drafters converted for both, by name."""
        jobs = self._shared_jobs()
        loaded = collect(jobs.values(), self._engines.load_with_sglang(SGLANG, list(jobs.values())))
        return {drafter: loaded[job["name"]] for drafter, job in jobs.items()}

    def _shared_jobs(self) -> dict[str, Job]:
        jobs = {}
        for drafter in SHARED:
            folder, failure = self.convert(drafter, *FOR_BOTH)
            if failure is None:
                jobs[drafter] = self._workshop.job(f"{drafter} shared", folder, sample_inputs(drafter))
        return jobs

    def _faulty_jobs(self, drafter: str, folder: Path) -> list[Job]:
        job, copy = self._workshop.job, self._workshop.copy
        inputs = sample_inputs(drafter)
        if drafter == "a_plain":
            unknown, dropped = copy(folder, OTHER_NAME), copy(folder, DROPPED_NAME)
            rename_tensor(unknown, "norm.weight", "final_norm.weight")
            rename_tensor(dropped, "norm.weight", "norm.bias")
            embedding = {"embed_tokens": np.zeros((512, 64), np.float32)}
            return [
                job(OTHER_ORDER, folder, inputs_in_another_order(drafter)),
                job(OTHER_NAME, unknown, inputs),
                job(DROPPED_NAME, dropped, inputs),
                job(OTHER_EMBEDDING, folder, {**inputs, **embedding}),
            ]
        lost = {
            "b_nbr": (LOST_NORM, "norm_before_residual"),
            "d_fcnorm_normout": (LOST_FLAG, "norm_output"),
            "j_attnbias": (LOST_BIASES, "attention_bias"),
        }
        if drafter not in lost:
            return []
        name, key = lost[drafter]
        faulty = copy(folder, name)
        change_config(faulty, **{key: None})
        return [job(name, faulty, inputs)]


@pytest.fixture(scope="module")
def loader(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Loader:
    return Loader(engines, tmp_path_factory.mktemp("loads"))


def converted(loader: Loader, drafter: str, targets: tuple[str, ...]) -> None:
    """Fail with the converter's words if it did not convert the drafter."""
    _, failure = loader.convert(drafter, *targets)
    assert failure is None, failure


def without_error(loaded: Loaded) -> Loaded:
    assert loaded.result["error"] is None, loaded.result["error"]
    return loaded


def assert_whole(loaded: Loaded, unused: set[str], replaced: set[str]) -> None:
    """Every parameter is filled, but for those unused and replaced, and every tensor is used."""
    assert set(loaded.result["dead_parameters"]) == unused
    assert set(loaded.result["unwritten"]) - replaced <= unused
    assert loaded.result["partly_written"] == []
    assert set(loaded.result["not_consumed"]) <= {"t2d"}


# Converted for vLLM.


@pytest.fixture(params=DRAFTERS)
def drafter(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def loaded(loader: Loader, drafter: str) -> Loaded:
    converted(loader, drafter, FOR_VLLM)
    return without_error(loader.in_vllm()[FOR_VLLM, drafter])


def test_drafter_is_loaded_whole(loaded: Loaded, drafter: str) -> None:
    assert loaded.result["class"] == CLASSES.get(drafter, LLAMA_CLASS)
    assert_whole(loaded, UNUSED_IN_VLLM.get(drafter, set()), replaced=set())


def test_draft_tokens_mean_the_same_target_tokens(loaded: Loaded, drafter: str) -> None:
    assert loaded.result["target_token_ids"] == target_token_ids(drafter)


def test_target_is_asked_for_the_states_of_the_training(loaded: Loaded, drafter: str) -> None:
    """What these ids capture in the target's class is tested in test_vllm_captures.py."""
    assert loaded.result["aux_layer_ids"] == trained_points(drafter)


def test_layers_see_as_far_as_in_training(loaded: Loaded, drafter: str) -> None:
    assert loaded.result["layer_windows"] == trained_windows(drafter)


@pytest.mark.parametrize("step", [0, 1])
def test_logits_are_the_trainers(loaded: Loaded, drafter: str, step: int) -> None:
    assert loaded.logit_error(drafter, step) <= LOGIT_TOLERANCE


# Converted for both.


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def shared_in_vllm(loader: Loader, shared: str) -> Loaded:
    converted(loader, shared, FOR_BOTH)
    return without_error(loader.in_vllm()[FOR_BOTH, shared])


@pytest.fixture
def shared_in_sglang(loader: Loader, shared: str) -> Loaded:
    converted(loader, shared, FOR_BOTH)
    return without_error(loader.in_sglang()[shared])


def test_one_folder_is_loaded_whole_by_both(shared_in_vllm: Loaded, shared_in_sglang: Loaded, shared: str) -> None:
    assert_whole(shared_in_vllm, UNUSED_IN_VLLM.get(shared, set()), replaced=set())
    assert_whole(shared_in_sglang, UNUSED_IN_SGLANG.get(shared, set()), replaced={SGLANG_EMBEDDING})


def test_one_folder_has_one_vocabulary_in_both(shared_in_vllm: Loaded, shared_in_sglang: Loaded, shared: str) -> None:
    assert shared_in_vllm.result["target_token_ids"] == target_token_ids(shared)
    assert shared_in_sglang.result["target_token_ids"] == target_token_ids(shared)


def test_one_folder_has_the_ids_of_both(shared_in_vllm: Loaded, shared_in_sglang: Loaded, shared: str) -> None:
    points = trained_points(shared)
    for loaded, rule in ((shared_in_vllm, "literal"), (shared_in_sglang, "plus_one")):
        ids = solve(rule, points, TARGET_LAYERS)
        assert ids is not None
        assert loaded.result["aux_layer_ids"] == list(ids)


def test_one_folder_has_the_same_outputs_in_both(shared_in_vllm: Loaded, shared_in_sglang: Loaded, shared: str) -> None:
    assert shared_in_vllm.outputs.keys() == shared_in_sglang.outputs.keys()
    for name, output in shared_in_vllm.outputs.items():
        np.testing.assert_allclose(output, shared_in_sglang.outputs[name], rtol=0, atol=LOGIT_TOLERANCE)
    assert shared_in_vllm.logit_error(shared, step=0) <= LOGIT_TOLERANCE
    assert shared_in_vllm.logit_error(shared, step=1) <= LOGIT_TOLERANCE


# From here on: that the checks above can fail, and what vLLM does then.


def faulty(loader: Loader, name: str) -> Loaded:
    converted(loader, name.partition(" ")[0], FOR_VLLM)
    return loader.in_vllm()[name]


def test_states_in_another_order_are_noticed(loader: Loader) -> None:
    assert without_error(faulty(loader, OTHER_ORDER)).logit_error("a_plain", step=0) > LOGIT_FAULT


def test_a_name_that_vllm_does_not_know_stops_it(loader: Loader) -> None:
    loaded = faulty(loader, OTHER_NAME)
    assert (loaded.result["stage"], loaded.result["error"]["type"]) == ("load_weights", "ValueError")
    assert "final_norm" in loaded.result["error"]["message"]


def test_a_tensor_that_vllm_drops_is_noticed(loader: Loader) -> None:
    loaded = without_error(faulty(loader, DROPPED_NAME))
    assert loaded.result["unwritten"] == ["model.norm.weight"]
    assert "norm.bias" in loaded.result["not_consumed"]
    assert loaded.logit_error("a_plain", step=0) > LOGIT_TOLERANCE


def test_a_lost_norm_is_noticed(loader: Loader) -> None:
    loaded = without_error(faulty(loader, LOST_NORM))
    assert loaded.logit_error("b_nbr", step=0) > LOGIT_FAULT


def test_a_lost_flag_of_the_recurrence_is_noticed_in_the_second_step(loader: Loader) -> None:
    loaded = without_error(faulty(loader, LOST_FLAG))
    assert loaded.logit_error("d_fcnorm_normout", step=0) <= LOGIT_TOLERANCE
    assert loaded.logit_error("d_fcnorm_normout", step=1) > LOGIT_FAULT


def test_biases_dropped_without_a_word_are_noticed(loader: Loader) -> None:
    loaded = without_error(faulty(loader, LOST_BIASES))
    dropped = {name for name in loaded.result["not_consumed"] if name.endswith(".bias")}
    assert len(dropped) == 4
    assert loaded.logit_error("j_attnbias", step=0) > LOGIT_TOLERANCE


def test_an_embedding_unlike_the_targets_is_kept(loader: Loader) -> None:
    """SGLang would replace it."""
    loaded = without_error(faulty(loader, OTHER_EMBEDDING))
    assert loaded.result["embedding"] == "checkpoint"
    assert loaded.logit_error("a_plain", step=0) <= LOGIT_TOLERANCE

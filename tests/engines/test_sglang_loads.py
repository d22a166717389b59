"""Converted drafters in SGLang's own draft class.

The drafters in tests/data were made by the speculators library, and its own model's logits over
states of the target are recorded beside them. Each drafter is converted with the command line and
loaded by the real class: every parameter must be filled, and the logits must be the trainer's.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest

from converter.rules.ids import solve
from tests import support

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
    sample_inputs,
    target_token_ids,
    trained_points,
)

pytestmark = pytest.mark.engines

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

#: Loadings that must be seen to be wrong, by release. See the end of this file.
TRAINERS_NAMES = ("0.5.9", "a_plain under the trainer's tensor names")
OTHER_ORDER = ("0.5.23", "a_plain fed with its states in another order")
LOST_FLAG = ("0.5.23", "d_fcnorm_normout without norm_output")


class Loader:
    """Converts drafters, and loads all of a release in one process of the engine."""

    def __init__(self, engines: Engines, scratch: Path) -> None:
        self._engines = engines
        self._workshop = Workshop(scratch)
        self.load_all = cache(self._load_all)

    def convert(self, release: str, drafter: str) -> tuple[Path, str | None]:
        return self._workshop.convert(drafter, f"sglang=={release}")

    def _load_all(self, release: str) -> dict[str, Loaded]:
        """The drafters of a release under their names, and its faulty loadings."""
        jobs = []
        for drafter in DRAFTERS[release]:
            folder, failure = self.convert(release, drafter)
            if failure is None:
                jobs.append(self._workshop.job(drafter, folder, sample_inputs(drafter)))
                jobs += self._faulty_jobs(release, drafter, folder)
        return collect(jobs, self._engines.load_with_sglang(release, jobs))

    def _faulty_jobs(self, release: str, drafter: str, folder: Path) -> list[Job]:
        job, copy = self._workshop.job, self._workshop.copy
        inputs = sample_inputs(drafter)
        if (release, drafter) == (TRAINERS_NAMES[0], "a_plain"):
            faulty = copy(folder, TRAINERS_NAMES[1])
            shutil.copy(support.DRAFTERS / drafter / "model.safetensors", faulty)
            return [job(TRAINERS_NAMES[1], faulty, inputs)]
        if (release, drafter) == (OTHER_ORDER[0], "a_plain"):
            return [job(OTHER_ORDER[1], folder, inputs_in_another_order(drafter))]
        if (release, drafter) == (LOST_FLAG[0], "d_fcnorm_normout"):
            faulty = copy(folder, LOST_FLAG[1])
            change_config(faulty, norm_output=None)
            return [job(LOST_FLAG[1], faulty, inputs)]
        return []


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

"""Drafters that SGLang's own class cannot compute, in the class of converter/sglang_plugin and in SGLang's own.

Converted with --allow-plugin, loaded by SGLang's loader through the variable of the launch line. All of a release runs
in one process; what must stop is damaged after its conversion.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from converter.pipeline import Report
from tests.support import DRAFTERS, NAMES, copy_of, errors, run

from .conftest import Engines
from .drafters import (
    LOGIT_TOLERANCE,
    Job,
    Loaded,
    Workshop,
    change_config,
    collect,
    rename_tensor,
    target_token_ids,
)
from .test_engine_forward import (
    SAME,
    STEPS,
    Tensors,
    computed_here,
    distance,
    tensors,
    train_embedding,
    without,
)

pytestmark = pytest.mark.engines

RELEASES = OLD, NEW = ("0.5.9", "0.5.23")
PLUGIN = "Eagle3ConvertForCausalLM"
STOCK = "LlamaForCausalLMEagle3"
TRAINED = "an embedding trained further"
WINDOWS = "two layers, one with a window of 16"
FOUR = "four states"


def window(config: dict[str, Any]) -> None:
    """In the second layer a window that shows on a text of this length."""
    layer = config["transformer_layer_config"]
    layer |= {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 16}


def four_points(config: dict[str, Any]) -> None:
    config["eagle_aux_hidden_state_layer_ids"] = [1, 2, 3, 5]


def a_fourth_block(found: Tensors) -> None:
    """In fc, for the state of layer 2."""
    first, *others = found["fc.weight"].chunk(3, dim=1)
    noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(0)) * first.float().std()
    found["fc.weight"] = torch.cat([first, noise.to(first.dtype), *others], dim=1)


# What each release serves with the plugin only, by the bundled drafter or what it is made of.
SERVED = {
    OLD: (
        "b_nbr",
        "c_nbfc",
        "d_fcnorm_normout",
        "e_2layers",
        "f_qwen3",
        "j_attnbias",
        "l_defaults",
        TRAINED,
        WINDOWS,
        FOUR,
    ),
    NEW: ("b_nbr", "f_qwen3", "j_attnbias", "l_defaults", TRAINED, WINDOWS),
}
# What the release's own class serves, and both must compute alike.
BOTH = {OLD: ("a_plain", "i_rope_headdim"), NEW: ("a_plain", "d_fcnorm_normout", "e_2layers", "k_embedgrad")}
# What stops SGLang's own class, if its name is written in the plugin's folder.
STOPS_STOCK = {(OLD, "e_2layers"), (OLD, WINDOWS), (OLD, FOUR)}

Edit = Callable[[Path], None]


def one_row_more(found: Tensors) -> None:
    """Of a tensor of which SGLang's own loader would take the first rows."""
    found[Q] = torch.cat([found[Q], found[Q][:1]])


Q = "midlayer.self_attn.q_proj.weight"
# How a folder of b_nbr is damaged, and what the plugin's message must say.
DAMAGED: dict[str, tuple[Edit, tuple[str, ...]]] = {
    "missing": (without("midlayer.hidden_norm.weight"), ("nothing: layers.0.hidden_norm.weight", "nowhere: none")),
    "no head": (without("lm_head.weight"), ("received nothing: lm_head.weight",)),
    "no map": (without("d2t"), ("received nothing: d2t",)),
    "extra": (
        lambda folder: rename_tensor(folder, "norm.weight", "last_norm.weight"),
        ("nowhere: last_norm.weight", "received nothing: norm.weight"),
    ),
    "misshapen": (tensors(one_row_more), (f"another shape: {Q} is [65, 128], expected [64, 128]",)),
}
# Ids that the target is given, when, and where the plugin sees what they made of it; b_nbr is trained on 1, 3, 5.
IDS: dict[str, tuple[list[int], str, str]] = {
    "right ids": ([0, 2, 4], "before", "at sharing"),
    "right ids, later": ([0, 2, 4], "after", "in the first pass"),
    "wrong ids": ([1, 3, 5], "before", ""),
    "wrong ids, later": ([1, 3, 5], "after", ""),
}


class Bench:
    """Every folder of a release, loaded with the plugin in the environment, in one process."""

    def __init__(self, engines: Engines, scratch: Path) -> None:
        self._engines, self._scratch = engines, scratch
        self._workshop = Workshop(scratch)
        self.converted = cache(self._converted)
        self.loaded = cache(self._loaded)
        self.ours = cache(lambda release, name: computed_here(*self.converted(release, name)))

    def _source(self, release: str, name: str) -> Path:
        folder = self._scratch / "in" / release / name.replace(" ", "-")
        if name == TRAINED:
            return copy_of("a_plain", folder, tensors=train_embedding)
        if name == FOUR:
            return copy_of("a_plain", folder, config=four_points, tensors=a_fourth_block)
        return copy_of("e_2layers", folder, config=window) if name == WINDOWS else DRAFTERS / name

    def _converted(self, release: str, name: str) -> tuple[Report, Path]:
        out = self._scratch / release / name.replace(" ", "-")
        out.parent.mkdir(exist_ok=True)
        report = run(self._source(release, name), out, f"sglang=={release}", allow_plugin=True)
        assert report.outcome == "converted", errors(report)
        return report, out

    def _loaded(self, release: str) -> dict[str, Loaded]:
        jobs: list[Job] = []
        for name in (*SERVED[release], *BOTH[release]):
            _, folder = self.converted(release, name)
            inputs = self.ours(release, name).inputs
            for label in (PLUGIN, STOCK):
                copy = self._workshop.copy(folder, f"{name} {label}")
                change_config(copy, architectures=[label])
                jobs.append(self._workshop.job(f"{name} {label}", copy, inputs))
        _, folder = self.converted(release, "b_nbr")
        inputs = self.ours(release, "b_nbr").inputs
        for name, (damage, _) in DAMAGED.items():
            copy = self._workshop.copy(folder, f"b_nbr {name}")
            damage(copy)
            jobs.append(self._workshop.job(name, copy, inputs))
        for name, (ids, when, _) in IDS.items():
            jobs.append(self._workshop.job(name, folder, inputs, target_ids=ids, ids_set=when))
        return collect(jobs, self._engines.load_with_plugin(release, jobs))


@pytest.fixture(scope="module")
def bench(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(engines, tmp_path_factory.mktemp("plugin"))


def cases(table: dict[str, tuple[str, ...]]) -> list[Any]:
    pairs = [(release, name) for release, names in table.items() for name in names]
    return [pytest.param(*pair, id="-".join(pair).replace(" ", "_")) for pair in pairs]


@pytest.mark.parametrize(("release", "name"), cases(SERVED))
def test_it_is_loaded_whole(bench: Bench, release: str, name: str) -> None:
    report, folder = bench.converted(release, name)
    [engine] = report.engines
    assert engine.plugin == "converter.sglang_plugin"
    assert json.loads((folder / "config.json").read_text())["architectures"] == [PLUGIN]
    result = bench.loaded(release)[f"{name} {PLUGIN}"].result
    assert result["error"] is None, result["error"]
    assert result["class"] == f"converter.sglang_plugin.drafter.{PLUGIN}"
    assert (result["unwritten"], result["partly_written"], result["dead_parameters"]) == ([], [], [])
    assert set(result["not_consumed"]) <= {"t2d"}
    assert (result["embedding"], result["head"]) == ("checkpoint" if name == TRAINED else "target", "checkpoint")
    if name in NAMES:
        assert result["target_token_ids"] == target_token_ids(name)


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize(("release", "name"), cases(SERVED))
def test_logits_are_the_trainers_and_those_computed_here(bench: Bench, release: str, name: str, step: int) -> None:
    loaded, ours = bench.loaded(release)[f"{name} {PLUGIN}"], bench.ours(release, name)
    assert ours.side is not None, ours.refusal
    assert distance(loaded, ours.logits, step) <= SAME
    if name in NAMES:
        assert loaded.logit_error(name, step) <= LOGIT_TOLERANCE
    elif not (name == WINDOWS and step):  # the window of an engine moves on with the steps (N109)
        assert distance(loaded, ours.trained, step) <= LOGIT_TOLERANCE


@pytest.mark.parametrize(("release", "name"), cases(SERVED))
def test_sglang_alone_is_silently_wrong_or_stops(bench: Bench, release: str, name: str) -> None:
    loaded = bench.loaded(release)[f"{name} {STOCK}"]
    if (release, name) in STOPS_STOCK:
        assert loaded.result["error"] is not None
        return
    assert loaded.result["error"] is None, loaded.result["error"]
    assert not distance(loaded, bench.ours(release, name).trained, step=1) <= 1e-2


@pytest.mark.parametrize(("release", "name"), cases(BOTH))
def test_what_sglang_serves_alone_has_the_same_bits_with_the_plugin(bench: Bench, release: str, name: str) -> None:
    report, folder = bench.converted(release, name)
    assert not report.engines[0].plugin  # allowed, and not needed
    assert json.loads((folder / "config.json").read_text())["architectures"] == [STOCK]
    plugged, stock = (bench.loaded(release)[f"{name} {label}"] for label in (PLUGIN, STOCK))
    assert plugged.result["class"] != stock.result["class"]
    assert plugged.result["forward_takes"] == stock.result["forward_takes"]
    for output in ("logits", "next_logits", "hidden_states"):
        assert np.array_equal(plugged.outputs[output], stock.outputs[output])


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("release", RELEASES)
def test_what_does_not_fit_stops_the_server(bench: Bench, release: str, name: str) -> None:
    result = bench.loaded(release)[name].result
    assert result["stage"] == "load_weights" and result["error"]["type"] == "ValueError"
    for words in DAMAGED[name][1]:
        assert words in result["error"]["message"]


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("release", RELEASES)
def test_ids_are_held_against_the_target_in_the_process(bench: Bench, release: str, name: str) -> None:
    result = bench.loaded(release)[name].result
    _, when, seen = IDS[name]
    if seen:
        assert result["error"] is None, result["error"]
        assert result["points_seen"] == seen
        return
    assert result["stage"] == ("sharing with the target" if when == "before" else "first pass")
    assert "hands out the states [2, 4, 6]" in result["error"]["message"]
    assert "trained on [1, 3, 5]" in result["error"]["message"]


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_else_of_this_project_is_imported_there(bench: Bench, release: str) -> None:
    modules = bench.loaded(release)[f"b_nbr {PLUGIN}"].result["converter_modules"]
    own = {f"converter.sglang_plugin{part}" for part in ("", ".adapters", ".drafter", ".target", ".wanted")}
    assert set(modules) == {"converter", "converter.version", *own}


@pytest.mark.parametrize("release", RELEASES)
def test_without_the_variable_sglang_stops(engines: Engines, bench: Bench, release: str, tmp_path: Path) -> None:
    _, folder = bench.converted(release, "b_nbr")
    job = Workshop(tmp_path).job("alone", folder, bench.ours(release, "b_nbr").inputs)
    error = engines.load_with_sglang(release, [job])["alone"]["error"]
    assert error is not None and PLUGIN in error["message"]

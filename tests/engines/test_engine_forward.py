"""This project's own forward of a converted folder, by an engine's rules, against that engine's own classes.

`--prove` and `--sample` believe what `converter.forward.sides.engine` computes of the files. Here it must give the
logits of the real draft class: of every drafter in tests/data, also of those that a release cannot serve and that
were let through with --allow, and of folders that were damaged after their conversion. What an engine does silently
wrong must come out wrong in the same way; of what it stops at or leaves to chance, nothing may be claimed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from converter.forward import sides
from converter.forward.evaluate import Side
from converter.forward.rope import NotComputable
from converter.forward.sample import read_sample
from converter.forward.sides import EngineFiles, Surroundings
from converter.pipeline import Report
from converter.proving import unwritten, written
from tests.support import DRAFTERS, SAMPLE, errors, run
from tests.teacher_forced import logits_of

from .conftest import Engines, Results
from .drafters import LOGIT_TOLERANCE, Job, Loaded, Workshop, change_config, collect, rename_tensor

pytestmark = pytest.mark.engines

ENGINES = OLD, NEW, VLLM = ("sglang==0.5.9", "sglang==0.5.23", "vllm==0.33.0")
STEPS = 2

#: Largest difference of logits between an engine's own class and what is computed here by its rules.
SAME = 1e-4

#: What a silent fault moves logits by at least.
WRONG_BY = 1e-2

# What an engine makes of a folder. Of the first four it computes something, and so must this project.
RIGHT = "as trained"
WRONG = "silently wrong"
LATER = "silently wrong from the second step on"
OTHER_IDS = "the right logits under other token ids"
UNKNOWN = "with something that the files do not say"
STOPS = "stops at start or while loading"
TARGET_STOPS = "the target's class stops"

Edit = Callable[[Path], None]
Tensors = dict[str, torch.Tensor]


def nothing(folder: Path) -> None:
    pass


@dataclass(frozen=True)
class Case:
    """A drafter of tests/data, and what each of ENGINES makes of it.

    allow    engine -> the codes that stop its conversion, which are let through
    trained  changes the trainer's checkpoint
    staged   changes the converted folder
    """

    drafter: str
    outcomes: tuple[str, str, str]
    allow: Mapping[str, str] = field(default_factory=dict)
    trained: Edit = nothing
    staged: Edit = nothing


def tensors(change: Callable[[Tensors], object]) -> Edit:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors"
        found = load_file(path)
        change(found)
        save_file(found, path, metadata={"format": "pt"})

    return edit


def without(*names: str) -> Edit:
    """Take tensors out, by any of their names."""
    return tensors(lambda found: [found.pop(name) for name in names if name in found])


def renamed(old: str, new: str) -> Edit:
    return lambda folder: rename_tensor(folder, old, new)


def config(**changes: Any) -> Edit:
    return lambda folder: change_config(folder, **changes)


def rope(kind: str, **parameters: Any) -> Edit:
    """Another rope than that of a_plain, in both spellings."""
    scaling = {"rope_type": kind, **parameters}
    return config(rope_scaling=scaling, rope_parameters={**scaling, "rope_theta": 10000.0})


def trainers_names(folder: Path) -> None:
    shutil.copy(DRAFTERS / "a_plain" / "model.safetensors", folder)


def train_embedding(found: Tensors) -> None:
    """As if training had moved every row of the embedding a little."""
    embedding = found["embed_tokens.weight"]
    noise = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(0))
    found["embed_tokens.weight"] = (embedding + 0.2 * embedding.float().std() * noise).to(embedding.dtype)


def other_ids(folder: Path) -> None:
    """Points 1, 2 and 4 instead of 1, 3 and 5, for SGLang (nested) and vLLM."""
    eagle_config = json.loads((folder / "config.json").read_text())["eagle_config"]
    if "eagle_aux_hidden_state_layer_ids" in eagle_config:
        eagle_config["eagle_aux_hidden_state_layer_ids"] = [0, 1, 3]
    change_config(folder, eagle_config=eagle_config, eagle_aux_hidden_state_layer_ids=[1, 2, 4])


def short_window(folder: Path) -> None:
    """A window that shows on a text of this length."""
    layer = json.loads((folder / "config.json").read_text())["transformer_layer_config"]
    layer |= {"layer_types": ["sliding_attention"], "sliding_window": 16}
    change_config(folder, transformer_layer_config=layer)


B_NBR = {OLD: "K103", NEW: "K103"}
D_FCNORM = {OLD: "K105 K106"}
J_ATTNBIAS = {OLD: "K108", NEW: "K108"}
SECOND_NORM = ("layers.1.hidden_norm.weight", "layers.1.input_layernorm.weight")
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

CASES = {
    "a_plain": Case("a_plain", (RIGHT, RIGHT, RIGHT)),
    "b_nbr": Case("b_nbr", (WRONG, WRONG, RIGHT), B_NBR),
    "c_nbfc": Case("c_nbfc", (WRONG, RIGHT, RIGHT), {OLD: "K104"}),
    "d_fcnorm_normout": Case("d_fcnorm_normout", (WRONG, RIGHT, RIGHT), D_FCNORM),
    "e_2layers": Case("e_2layers", (STOPS, RIGHT, RIGHT), {OLD: "K102"}),
    "f_qwen3": Case("f_qwen3", (WRONG, WRONG, RIGHT), {OLD: "K107", NEW: "K107"}),
    "g_aux024": Case("g_aux024", (TARGET_STOPS, RIGHT, RIGHT), {OLD: "K121"}),
    "h_fullvocab": Case("h_fullvocab", (RIGHT, RIGHT, RIGHT)),
    "i_rope_headdim": Case("i_rope_headdim", (RIGHT, RIGHT, RIGHT)),
    "j_attnbias": Case("j_attnbias", (WRONG, WRONG, RIGHT), J_ATTNBIAS),
    "k_embedgrad": Case("k_embedgrad", (RIGHT, RIGHT, RIGHT)),
    "l_defaults": Case("l_defaults", (WRONG, WRONG, RIGHT), {OLD: "K103 K104 K106 K110", NEW: "K103"}),
    # Trained otherwise. Engines let the window move on with the steps, the trainer does not.
    "a window of 16": Case("a_plain", (WRONG, LATER, LATER), {OLD: "K110"}, trained=short_window),
    "an embedding trained further": Case(
        "a_plain", (WRONG, WRONG, RIGHT), {OLD: "K131", NEW: "K131"}, trained=tensors(train_embedding)
    ),
    # Tensors of the converted folder.
    "the trainer's names": Case("a_plain", (UNKNOWN, RIGHT, RIGHT), staged=trainers_names),
    "no hidden_norm": Case("a_plain", (WRONG, WRONG, WRONG), staged=without("midlayer.hidden_norm.weight")),
    "no norm in layer 1": Case("e_2layers", (STOPS, WRONG, WRONG), {OLD: "K102"}, staged=without(*SECOND_NORM)),
    "no head": Case("a_plain", (UNKNOWN, UNKNOWN, UNKNOWN), staged=without("lm_head.weight")),
    "no map": Case("a_plain", (OTHER_IDS, OTHER_IDS, OTHER_IDS), staged=without("d2t")),
    "an unknown weight": Case("a_plain", (WRONG, WRONG, STOPS), staged=renamed("norm.weight", "last_norm.weight")),
    "an unknown bias": Case("a_plain", (WRONG, WRONG, WRONG), staged=renamed("norm.weight", "norm.bias")),
    # Its config.
    "no norm_output": Case("d_fcnorm_normout", (WRONG, LATER, LATER), D_FCNORM, staged=config(norm_output=None)),
    "no fc_norm": Case("d_fcnorm_normout", (WRONG, WRONG, STOPS), D_FCNORM, staged=config(fc_norm=None)),
    "no norm_before_fc": Case("c_nbfc", (WRONG, WRONG, WRONG), {OLD: "K104"}, staged=config(norm_before_fc=None)),
    "no norm_before_residual": Case("b_nbr", (WRONG, WRONG, WRONG), B_NBR, staged=config(norm_before_residual=None)),
    "no attention_bias": Case("j_attnbias", (WRONG, WRONG, WRONG), J_ATTNBIAS, staged=config(attention_bias=None)),
    "a tied head": Case("h_fullvocab", (WRONG, WRONG, RIGHT), staged=config(tie_word_embeddings=True)),
    "another eps": Case("a_plain", (WRONG, WRONG, WRONG), staged=config(rms_norm_eps=1e-2)),
    "gelu": Case("a_plain", (STOPS, STOPS, STOPS), staged=config(hidden_act="gelu")),
    "other ids": Case("a_plain", (WRONG, WRONG, WRONG), staged=other_ids),
    "rope_theta alone": Case("i_rope_headdim", (RIGHT, RIGHT, RIGHT), staged=config(rope_parameters=None)),
    "rope_parameters alone": Case(
        "i_rope_headdim", (WRONG, RIGHT, RIGHT), staged=config(rope_theta=None, rope_scaling=None)
    ),
    "no theta": Case(
        "i_rope_headdim",
        (WRONG, WRONG, WRONG),
        staged=config(rope_theta=None, rope_scaling=None, rope_parameters=None),
    ),
    "linear rope": Case("a_plain", (WRONG, WRONG, WRONG), staged=rope("linear", factor=4.0)),
    "llama3 rope": Case("a_plain", (WRONG, WRONG, WRONG), staged=rope("llama3", **LLAMA3)),
    "yarn": Case("a_plain", (WRONG, WRONG, WRONG), staged=rope("yarn", **YARN)),
    "yarn with mscale": Case(
        "a_plain", (UNKNOWN, WRONG, WRONG), staged=rope("yarn", **YARN, mscale=1.0, mscale_all_dim=0.5)
    ),
}


def outcome(engine: str, name: str) -> str:
    return CASES[name].outcomes[ENGINES.index(engine)]


def cases(*outcomes: str) -> list[tuple[str, str]]:
    """All pairs of engine and case with one of these outcomes."""
    return [(engine, name) for engine in ENGINES for name in CASES if outcome(engine, name) in outcomes]


COMPUTED = cases(RIGHT, WRONG, LATER, OTHER_IDS)


def parameters(values: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Test parameters with readable ids."""
    return [pytest.param(*value, id="-".join(map(str, value)).replace(" ", "_")) for value in values]


@dataclass(frozen=True)
class Ours:
    """What is computed here; no side and no logits of the engine where `refusal` says why not."""

    files: EngineFiles
    inputs: dict[str, np.ndarray]
    trained: list[torch.Tensor]
    side: Side | None = None
    logits: list[torch.Tensor] = field(default_factory=list)
    refusal: str = ""


def computed_here(report: Report, folder: Path) -> Ours:
    """What is computed here of the folder that a conversion wrote, on the first sequence of the sample."""
    assert report.drafter is not None and report.plan is not None and report.target_weights is not None
    [sequence] = read_sample(SAMPLE, report.drafter.spec).sequences[:1]
    around = Surroundings([sequence], report.target_weights.embedding, torch.device("cpu"), torch.float32)

    def states(points: Iterable[int]) -> torch.Tensor:
        return torch.cat([sequence.state(point) for point in points], dim=-1)

    def logits(side: Side) -> list[torch.Tensor]:
        embeds = side.embedding.rows(sequence, 0, len(sequence.tokens))
        return logits_of(side.model, embeds, states(side.points), STEPS)

    trainer = sides.reference(report.drafter, around)
    [files] = written(report.plan, folder, report.target)
    inputs = {
        "input_ids": sequence.tokens[1:].numpy(),
        "aux_hidden_states": states(files.spec.capture_points)[:-1].numpy(),
        "positions": np.arange(1, len(sequence.tokens)),
    }
    try:
        side = sides.engine(files, report.drafter, trainer, around)
    except NotComputable as refusal:
        return Ours(files, inputs, logits(trainer), refusal=str(refusal))
    return Ours(files, inputs, logits(trainer), side, logits(side))


class Bench:
    """Every case converted for every engine, computed here, and loaded by the engine in one process for each."""

    def __init__(self, engines: Engines, scratch: Path) -> None:
        self._engines = engines
        self._scratch = scratch
        self._workshop = Workshop(scratch)
        self.converted = cache(self._converted)
        self.ours = cache(self._ours)
        self.theirs = cache(self._theirs)
        self.captured = cache(self._captured)

    def _converted(self, engine: str, name: str) -> tuple[Report, Path]:
        case = CASES[name]
        source, out = (self._scratch / place / engine / name.replace(" ", "-") for place in ("in", "out"))
        shutil.copytree(DRAFTERS / case.drafter, source)
        case.trained(source)
        report = run(source, out, engine, allow=tuple(case.allow.get(engine, "").split()))
        assert report.outcome == "converted", errors(report)
        case.staged(out)
        return report, out

    def _ours(self, engine: str, name: str) -> Ours:
        return computed_here(*self.converted(engine, name))

    def _theirs(self, engine: str) -> dict[str, Loaded]:
        jobs: list[Job] = []
        for name in CASES:
            report, folder = self.converted(engine, name)
            assert report.plan is not None
            launch = dict(report.plan.launch)
            jobs.append(self._workshop.job(name, folder, self.ours(engine, name).inputs, launch=launch))
        kind, _, release = engine.partition("==")
        load = {"sglang": self._engines.load_with_sglang, "vllm": self._engines.load_with_vllm}[kind]
        return collect(jobs, load(release, jobs))

    def _captured(self, engine: str) -> Results:
        """What the target's class hands out, by the ids that the engine reads from the folders."""
        found = [loaded.result.get("aux_layer_ids") for loaded in self.theirs(engine).values()]
        jobs = [
            {"name": str(ids), "architecture": "llama", "ids": ids}
            for ids in {str(ids): ids for ids in found if ids is not None}.values()
        ]
        kind, _, release = engine.partition("==")
        capture = {"sglang": self._engines.capture_with_sglang, "vllm": self._engines.capture_with_vllm}[kind]
        return capture(release, jobs)

    def loaded(self, engine: str, name: str) -> Loaded:
        """Of the engine's class, which must have run."""
        loaded = self.theirs(engine)[name]
        assert loaded.result["error"] is None, loaded.result["error"]
        return loaded

    def fault(self, engine: str, name: str, step: int) -> float:
        """Between the logits of the engine's class and the trainer's: its own record, where it trained the drafter."""
        if CASES[name].trained is nothing:
            return self.loaded(engine, name).logit_error(CASES[name].drafter, step)
        return distance(self.loaded(engine, name), self.ours(engine, name).trained, step)


def distance(loaded: Loaded, logits: list[torch.Tensor], step: int) -> float:
    computed = loaded.outputs["logits" if step == 0 else "next_logits"]
    assert computed.shape == tuple(logits[step].shape)
    return float(np.abs(computed - logits[step].numpy()).max())


@pytest.fixture(scope="module")
def bench(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(engines, tmp_path_factory.mktemp("forward"))


@pytest.mark.parametrize(
    ("engine", "name", "step"),
    parameters([(*case, step) for case in COMPUTED for step in range(STEPS)]),
)
def test_logits_are_those_of_the_engine(bench: Bench, engine: str, name: str, step: int) -> None:
    ours = bench.ours(engine, name)
    assert ours.side is not None, ours.refusal
    assert distance(bench.loaded(engine, name), ours.logits, step) <= SAME


@pytest.mark.parametrize(("engine", "name"), parameters(COMPUTED))
def test_what_the_engine_computes(bench: Bench, engine: str, name: str) -> None:
    """Without this, the logits above could be equal for a reason other than the one that a case is there for."""
    first, second = (bench.fault(engine, name, step) for step in range(STEPS))
    expected = outcome(engine, name)
    if expected == WRONG:
        assert first > WRONG_BY
    else:
        assert first <= LOGIT_TOLERANCE
        assert second > WRONG_BY if expected == LATER else second <= LOGIT_TOLERANCE


@pytest.mark.parametrize(("engine", "name"), parameters(COMPUTED))
def test_draft_tokens_mean_what_they_mean_to_the_engine(bench: Bench, engine: str, name: str) -> None:
    side = bench.ours(engine, name).side
    assert side is not None
    identity = list(range(side.model.spec.draft_vocab_size))
    read = bench.loaded(engine, name).result["target_token_ids"]
    assert side.to_target.tolist() == (identity if read is None else read)
    if outcome(engine, name) == OTHER_IDS:
        assert side.to_target.tolist() == identity


@pytest.mark.parametrize(("engine", "name"), parameters(COMPUTED))
def test_states_are_those_that_the_target_hands_out(bench: Bench, engine: str, name: str) -> None:
    result = bench.captured(engine)[str(bench.loaded(engine, name).result["aux_layer_ids"])]
    assert result["error"] is None, result["error"]
    assert bench.ours(engine, name).files.spec.capture_points == tuple(result["points"])


@pytest.mark.parametrize(("engine", "name"), parameters(cases(UNKNOWN, STOPS, TARGET_STOPS)))
def test_nothing_is_claimed_of_what_is_not_known(bench: Bench, engine: str, name: str) -> None:
    ours = bench.ours(engine, name)
    assert ours.side is None
    assert ours.refusal


@pytest.mark.parametrize(("engine", "name"), parameters(cases(UNKNOWN, STOPS, TARGET_STOPS)))
def test_where_the_engine_stops(bench: Bench, engine: str, name: str) -> None:
    result = bench.theirs(engine)[name].result
    assert (result["error"] is not None) == (outcome(engine, name) == STOPS), result["error"]
    if outcome(engine, name) == TARGET_STOPS:
        assert bench.captured(engine)[str(result["aux_layer_ids"])]["error"] is not None


def test_a_broken_limit_is_known_before_anything_is_written(bench: Bench) -> None:
    report, _ = bench.converted(OLD, "e_2layers")
    assert report.drafter is not None
    assert unwritten(report.engines[0], report.drafter, report.target) is None

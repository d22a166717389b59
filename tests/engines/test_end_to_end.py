"""Every drafter of tests/data and each serving engine: the engine's own class computes what the trainer's checkpoint
means, or the conversion was refused before anything was written.

Nothing here goes by this project's picture of an engine. The reference is the forward pass of the *input*. The real
class loads the output; the states that it is fed are those that the real target class hands out for the ids that the
engine reads from the output. test_engine_forward.py compares the picture itself, faults included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from converter.forward import sides
from converter.forward.sample import read_sample
from converter.forward.sides import Surroundings
from converter.pipeline import Report
from tests.support import DRAFTERS, NAMES, SAMPLE, check, copy_of, errors, run
from tests.teacher_forced import logits_of
from tests.test_producers import DIALECTS, LOST, PRODUCERS, SAID, SHAPES, eagle_of, modelopt_of, torchspec_of

from .conftest import Engines, Results
from .drafters import Job, Loaded, Workshop, collect

pytestmark = pytest.mark.engines

ENGINES = ("sglang==0.5.9", "sglang==0.5.23", "vllm==0.33.0")
STEPS = 2

#: Largest difference of logits, which are of the order of 10, fp32 on both sides.
TOLERANCE = 1e-4

EQUAL = ""  # converted, and the real class computes the same; anything else is the codes that refuse it


@dataclass(frozen=True)
class Drafter:
    """A checkpoint, what has to be said for it to be read as what it is, and what becomes of it for ENGINES."""

    outcomes: tuple[str, str, str]
    folder: Path | None = None
    make: Callable[[Path], Path] | None = None
    said: Mapping[str, Any] = field(default_factory=dict)


def bundled(name: str, *outcomes: str) -> Drafter:
    return Drafter(outcomes, DRAFTERS / name)  # type: ignore[arg-type]


def produced(name: str) -> Drafter:
    """All carry the weights of a_plain, which every release can serve."""
    return Drafter((EQUAL, EQUAL, EQUAL), PRODUCERS / name, said=SAID.get(name, {}))


def backwards(folder: Path) -> Path:
    """a_plain with its states in another order, and fc to match."""

    def config(document: dict[str, Any]) -> None:
        document["eagle_aux_hidden_state_layer_ids"] = [5, 1, 3]

    def tensors(weights: dict[str, Any]) -> None:
        low, middle, high = weights["fc.weight"].chunk(3, dim=1)
        weights["fc.weight"] = torch.cat([high, low, middle], dim=1)

    return copy_of("a_plain", folder, config, tensors)


def deep(folder: Path) -> Path:
    rename = {"layers.1.input_layernorm": "midlayer.1.hidden_norm", "layers.": "midlayer."}
    return modelopt_of("e_2layers", folder, rename, {"architectures": ["LlamaForCausalLMEagle3Deep"]})


MATRIX = {
    "a_plain": bundled("a_plain", EQUAL, EQUAL, EQUAL),
    "b_nbr": bundled("b_nbr", "K103", "K103", EQUAL),
    "c_nbfc": bundled("c_nbfc", "K104", EQUAL, EQUAL),
    "d_fcnorm_normout": bundled("d_fcnorm_normout", "K105 K106", EQUAL, EQUAL),
    "e_2layers": bundled("e_2layers", "K102", EQUAL, EQUAL),
    "f_qwen3": bundled("f_qwen3", "K107", "K107", EQUAL),
    "g_aux024": bundled("g_aux024", "K121", EQUAL, EQUAL),
    "h_fullvocab": bundled("h_fullvocab", EQUAL, EQUAL, EQUAL),
    "i_rope_headdim": bundled("i_rope_headdim", EQUAL, EQUAL, EQUAL),
    "j_attnbias": bundled("j_attnbias", "K108", "K108", EQUAL),
    "k_embedgrad": bundled("k_embedgrad", EQUAL, EQUAL, EQUAL),
    "l_defaults": bundled("l_defaults", "K103 K104 K106 K110", "K103", EQUAL),
    **{name: produced(name) for name in DIALECTS},
    # Its converter lost the layer (T119), and what is left is served as it is.
    LOST: Drafter((EQUAL, EQUAL, EQUAL), PRODUCERS / LOST, said={"aux": (1, 3, 5), "allow": ("T119",)}),
    # What is in no package, imitated (test_producers.py), and an order that no fixture has.
    "eagle": Drafter((EQUAL, EQUAL, EQUAL), make=lambda folder: eagle_of(folder, {}), said={"aux": (1, 3, 5)}),
    "torchspec": Drafter(("K105 K106", EQUAL, EQUAL), make=lambda folder: torchspec_of(folder, "midlayer")),
    "megatron_deep": Drafter(("K102", EQUAL, EQUAL), make=deep),
    "backwards": Drafter((EQUAL, EQUAL, EQUAL), make=backwards),
}
CELLS = [(name, engine) for name in MATRIX for engine in ENGINES]


def codes(name: str, engine: str) -> list[str]:
    return MATRIX[name].outcomes[ENGINES.index(engine)].split()


CONVERTED = [cell for cell in CELLS if not codes(*cell)]
REFUSED = [cell for cell in CELLS if codes(*cell)]

#: Parameters that are there and enter nothing: the norm before a later layer has another name in each engine.
UNUSED = {
    (name, kind): {f"model.layers.1.{norm}.weight"}
    for name in ("e_2layers", "megatron_deep")
    for kind, norm in (("sglang", "input_layernorm"), ("vllm", "hidden_norm"))
}
EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True)
class Trained:
    """What the input computes: logits of each step, and what it was fed, its states in layer order."""

    points: tuple[int, ...]
    inputs: Mapping[str, np.ndarray]
    logits: list[torch.Tensor]
    target_ids: list[int]


class Bench:
    """Every drafter converted for every engine, and loaded where it was converted, in one process for each engine."""

    def __init__(self, engines: Engines, scratch: Path) -> None:
        self._engines = engines
        self._scratch = scratch
        self._workshop = Workshop(scratch)
        self.source = cache(self._source)
        self.converted = cache(self._converted)
        self.trained = cache(self._trained)
        self.loaded = cache(self._loaded)
        self.captured = cache(self._captured)

    def _source(self, name: str) -> Path:
        drafter = MATRIX[name]
        if drafter.folder is not None:
            return drafter.folder
        assert drafter.make is not None
        return drafter.make(self._scratch / f"in-{name}")

    def _converted(self, name: str, engine: str) -> tuple[Report, Path]:
        out = self._scratch / engine / name
        return run(self.source(name), out, engine, **MATRIX[name].said), out

    def _trained(self, name: str) -> Trained:
        report = check(self.source(name), **MATRIX[name].said)
        assert report.drafter is not None and report.target_weights is not None
        spec = report.drafter.spec
        [sequence] = read_sample(SAMPLE, spec).sequences[:1]
        around = Surroundings([sequence], report.target_weights.embedding, torch.device("cpu"), torch.float32)
        side = sides.reference(report.drafter, around)

        def states(points: tuple[int, ...]) -> torch.Tensor:
            return torch.cat([sequence.state(point) for point in points], dim=-1)

        embeds = side.embedding.rows(sequence, 0, len(sequence.tokens))
        ascending = tuple(sorted(spec.capture_points))
        inputs = {
            "input_ids": sequence.tokens[1:].numpy(),
            "aux_hidden_states": states(ascending)[:-1].numpy(),
            "positions": np.arange(1, len(sequence.tokens)),
        }
        logits = logits_of(side.model, embeds, states(spec.capture_points), STEPS)
        return Trained(ascending, inputs, logits, side.to_target.tolist())

    def _loaded(self, engine: str) -> dict[str, Loaded]:
        jobs: list[Job] = []
        for name, of in CONVERTED:
            report, folder = self.converted(name, of)
            if of == engine and report.plan is not None and folder.exists():
                launch = dict(report.plan.launch)
                jobs.append(self._workshop.job(name, folder, dict(self.trained(name).inputs), launch=launch))
        kind, _, release = engine.partition("==")
        load = {"sglang": self._engines.load_with_sglang, "vllm": self._engines.load_with_vllm}[kind]
        return collect(jobs, load(release, jobs))

    def _captured(self, engine: str) -> Results:
        """The points that the real target class hands out, by the ids that the engine reads."""
        ids = {str(it.result["aux_layer_ids"]): it.result["aux_layer_ids"] for it in self.loaded(engine).values()}
        jobs = [{"name": name, "architecture": "llama", "ids": value} for name, value in ids.items()]
        kind, _, release = engine.partition("==")
        capture = {"sglang": self._engines.capture_with_sglang, "vllm": self._engines.capture_with_vllm}[kind]
        return capture(release, jobs)

    def fed_otherwise(self, name: str, sglang: str, inputs: dict[str, np.ndarray]) -> Loaded:
        _, folder = self.converted(name, f"sglang=={sglang}")
        job = self._workshop.job(f"{name} otherwise", folder, inputs)
        return collect([job], self._engines.load_with_sglang(sglang, [job]))[job["name"]]

    def in_engine(self, name: str, engine: str) -> Loaded:
        """As the engine's class has it, converted and loaded without an error."""
        report, _ = self.converted(name, engine)
        assert report.outcome == "converted", errors(report)
        loaded = self.loaded(engine)[name]
        assert loaded.result["error"] is None, loaded.result["error"]
        return loaded


@pytest.fixture(scope="module")
def bench(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(engines, tmp_path_factory.mktemp("matrix"))


def test_every_drafter_is_in_the_matrix() -> None:
    """But those of other shapes, whose forward pass is not known here (test_other_shapes.py loads them)."""
    assert {*NAMES, *(path.name for path in PRODUCERS.iterdir())} - {*SHAPES} <= MATRIX.keys()


@pytest.mark.parametrize(("name", "engine"), REFUSED)
def test_it_is_refused_before_anything_is_written(bench: Bench, name: str, engine: str) -> None:
    report, out = bench.converted(name, engine)
    assert (report.outcome, errors(report)) == ("refused", codes(name, engine))
    assert not out.exists()


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize(("name", "engine"), CONVERTED)
def test_the_engine_computes_what_was_trained(bench: Bench, name: str, engine: str, step: int) -> None:
    computed = bench.in_engine(name, engine).outputs["logits" if step == 0 else "next_logits"]
    expected = bench.trained(name).logits[step].numpy()
    assert computed.shape == expected.shape
    assert float(np.abs(computed - expected).max()) <= TOLERANCE


@pytest.mark.parametrize(("name", "engine"), CONVERTED)
def test_the_target_hands_out_what_it_was_trained_on(bench: Bench, name: str, engine: str) -> None:
    ids = bench.in_engine(name, engine).result["aux_layer_ids"]
    captured = bench.captured(engine)[str(ids)]
    assert captured["error"] is None, captured["error"]
    assert tuple(captured["points"]) == bench.trained(name).points


@pytest.mark.parametrize(("name", "engine"), CONVERTED)
def test_draft_tokens_mean_what_they_meant(bench: Bench, name: str, engine: str) -> None:
    trained = bench.trained(name).target_ids
    read = bench.in_engine(name, engine).result["target_token_ids"]
    assert (list(range(len(trained))) if read is None else read) == trained


@pytest.mark.parametrize(("name", "engine"), CONVERTED)
def test_it_is_loaded_whole(bench: Bench, name: str, engine: str) -> None:
    """Every parameter is filled and every tensor read, but for an embedding that is the target's."""
    result = bench.in_engine(name, engine).result
    unused = UNUSED.get((name, engine.partition("==")[0]), set())
    replaced = {EMBEDDING} if result["embedding"] == "target" else set()
    assert set(result["dead_parameters"]) == unused
    assert set(result["unwritten"]) <= unused | replaced
    assert result["partly_written"] == []
    assert set(result["not_consumed"]) <= {"t2d"}


def test_states_in_the_trainer_s_order_would_be_noticed(bench: Bench) -> None:
    """Of a checkpoint whose points do not ascend; without this, the order could be of no account above."""
    trained = bench.trained("backwards")
    low, middle, high = np.split(trained.inputs["aux_hidden_states"], 3, axis=-1)
    fed = {**trained.inputs, "aux_hidden_states": np.concatenate([high, low, middle], axis=-1)}
    computed = bench.fed_otherwise("backwards", "0.5.23", fed).outputs["logits"]
    assert np.abs(computed - trained.logits[0].numpy()).max() > 1.0

"""The fifty drafters with two changes each (tests/faults/doubles.py), in the real classes of the engines.

Every folder that a conversion left behind is loaded, with and without a sample. The class's logits are held against
those that the trainer's own model gave before the changes: where they differ, something was said, unless it is of the
kind that nothing can tell; and the project's own forward, which tests/test_double_faults.py goes by, had said so too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch

from converter.forward.sample import read_sample
from converter.pipeline import Report
from converter.proving import written
from tests.faults.doubles import DOUBLES, SAME, SGLANG, VLLM, Double, Outcome, converted, differs, recorded, trained_ids
from tests.support import SAMPLE
from tests.test_double_faults import ON_SAMPLE, WITHOUT_SAMPLE

from .conftest import Engines
from .drafters import ROWS_RECORDED, Job, Loaded, Workshop, collect

pytestmark = pytest.mark.engines

RUNS = {"files": WITHOUT_SAMPLE, "sample": ON_SAMPLE}


@dataclass(frozen=True)
class Written:
    """A folder that was written, `wrong`: the engines that draft otherwise from it by the project's own forward."""

    double: Double
    proof: str
    outcome: Outcome
    report: Report
    folder: Path
    wrong: list[str]

    @property
    def hides(self) -> bool:
        """True where nothing was said but what is harmless."""
        return self.outcome.said <= self.double.harmless

    @property
    def may_hide(self) -> bool:
        return bool(self.double.shows & ({"nothing"} if self.proof == "sample" else {"sample", "nothing"}))


class Bench:
    """All conversions, and what each engine's class makes of what they wrote, in one process for each engine."""

    def __init__(self, engines: Engines, scratch: Path) -> None:
        self._engines = engines
        self._scratch = scratch
        self._workshop = Workshop(scratch)

    @cached_property
    def written(self) -> list[Written]:
        return list(self._written())

    def _written(self) -> Iterator[Written]:
        for double in DOUBLES:
            source = double.put_into(self._scratch / "in" / str(double.seed))
            for proof, options in RUNS.items():
                out = self._scratch / proof / str(double.seed)
                out.parent.mkdir(exist_ok=True)
                outcome = converted(double, source, out, **options)
                if outcome.converted and outcome.report is not None:
                    yield Written(double, proof, outcome, outcome.report, out, differs(double, outcome.report, out))

    def loaded(self, engine: str) -> list[tuple[Written, Loaded]]:
        served = [w for w in self.written if engine in w.double.healthy.engines]
        jobs = [self._job(w, engine) for w in served]
        kind, _, release = engine.partition("==")
        load = {"sglang": self._engines.load_with_sglang, "vllm": self._engines.load_with_vllm}[kind]
        results = collect(jobs, load(release, jobs))
        return [(w, results[job["name"]]) for w, job in zip(served, jobs, strict=True)]

    def _job(self, of: Written, engine: str) -> Job:
        """The first sequence, its states those that the engine takes by the ids of the folder."""
        assert of.report.plan is not None and of.report.drafter is not None
        [sequence] = read_sample(SAMPLE, of.report.drafter.spec).sequences[:1]
        files = written(of.report.plan, of.folder, of.report.target)
        [points] = [f.spec.capture_points for f in files if f.engine == engine.replace("==", " ")]
        inputs = {
            "input_ids": sequence.tokens[1:].numpy(),
            "aux_hidden_states": torch.cat([sequence.state(p) for p in points], dim=-1)[:-1].numpy(),
            "positions": np.arange(1, len(sequence.tokens)),
        }
        return self._workshop.job(f"{of.proof} {of.double.seed}", of.folder, inputs, launch=dict(of.report.plan.launch))


def drafts_as_trained(of: Written, loaded: Loaded) -> bool:
    """Whether the class names the trained tokens by the recorded logits, steps 0 and 1."""
    name = of.double.healthy.recorded
    ids = loaded.result["target_token_ids"]
    trained = trained_ids(name).tolist()
    if (list(range(len(trained))) if ids is None else ids) != trained:
        return False
    computed = (loaded.outputs["logits"], loaded.outputs["next_logits"][::ROWS_RECORDED])
    expected = [recorded(name)[f"s0.draft_logits_step{step}"].numpy() for step in range(2)]
    return all(
        a.shape == b.shape and float(np.abs(a - b).max()) <= SAME for a, b in zip(computed, expected, strict=True)
    )


@pytest.fixture(scope="module")
def bench(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(engines, tmp_path_factory.mktemp("doubles"))


@pytest.mark.parametrize("engine", [SGLANG, VLLM])
def test_no_pass_is_contradicted_by_the_real_class(bench: Bench, engine: str) -> None:
    seen = {True: 0, False: 0}
    for of, loaded in bench.loaded(engine):
        what = f"{of.proof}: {of.double.name}"
        assert loaded.result["error"] is None, (what, loaded.result["error"])
        right = drafts_as_trained(of, loaded)
        seen[right] += 1
        assert right or not of.hides or of.may_hide, what
        assert right is (engine.replace("==", " ") not in of.wrong), what
        if of.double.shows == {"harmless"}:
            assert right, what
    assert min(seen.values()) >= 3, seen

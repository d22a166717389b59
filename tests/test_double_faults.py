"""Fifty drafters with two changes each (tests/faults/doubles.py): a finding, or the forward pass that was trained.

What is not promised, since nobody could: that changed *values* of a weight are found where names, shapes and dtypes
stay (permuted rows, a norm doubled), or another number that the forward pass takes from the config and nothing else
bears out (eps, rope's scaling, a window, how many heads share the rows). The drafter that lies there is then the
drafter, and the engine computes it as it is. A sample shows such a change where another wiring undoes it, where it
leaves nothing of the drafter, or where the target's own rows say otherwise; beyond that only the accuracy that training
logged does. `shows` of each change says which it is, and is held to it here.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.doubles import DOUBLES, MUTATIONS, Double, Mutation, Outcome, accuracy, converted, differs
from tests.support import SAMPLE, TARGET, copy_of, errors, run

WITHOUT_SAMPLE = {"target": TARGET / "config.json"}
ON_SAMPLE = {"target": TARGET, "sample": SAMPLE, "steps": 2, "positions": 320}


def hidden(double: Double, outcome: Outcome, out: Path) -> bool:
    """Whether OUT was written, nothing was said but what is harmless, and an engine computes otherwise than trained."""
    assert outcome.converted is out.exists()
    if outcome.report is None or not outcome.converted:
        assert outcome.errors
        return False
    wrong = differs(double, outcome.report, out)
    if double.shows == {"harmless"}:
        assert not wrong and outcome.said <= double.harmless
    return bool(wrong) and outcome.said <= double.harmless


@pytest.mark.parametrize("double", DOUBLES, ids=[d.name for d in DOUBLES])
def test_two_changes_are_said_or_change_nothing(double: Double, tmp_path: Path) -> None:
    source = double.put_into(tmp_path / "in")
    before = {p.name: p.read_bytes() for p in source.iterdir()}
    plain = converted(double, source, tmp_path / "plain", **WITHOUT_SAMPLE)
    if hidden(double, plain, tmp_path / "plain"):
        assert double.shows & {"sample", "nothing"}
        assert plain.report is not None and plain.report.proof is None  # so the last line says NOT PROVED
    # What is refused for its files is refused with a sample too, but for a map that the target's head gives back.
    if plain.converted or all(code.startswith("V") for code in plain.errors):
        sampled = converted(double, source, tmp_path / "out", **ON_SAMPLE)
        assert "nothing" in double.shows or not hidden(double, sampled, tmp_path / "out")
        if double.shows == {"harmless"}:
            assert sampled.report is not None and sampled.report.proof is not None
            assert sampled.report.proof.level == "anchored"
    else:
        assert double.shows != {"harmless"}, plain.said
    assert {p.name: p.read_bytes() for p in source.iterdir()} == before


UNTOLD = [m for m in MUTATIONS if m.name in ("rows of a matrix permuted", "another eps")]


@pytest.mark.parametrize("mutation", UNTOLD, ids=[m.name for m in UNTOLD])
def test_the_accuracy_that_training_logged_tells_what_nothing_else_does(mutation: Mutation, tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in")
    mutation.apply(source, random.Random(4))
    logged = accuracy("a_plain") - 0.01
    report = run(source, tmp_path / "out", "vllm==0.33.0", sample=SAMPLE, steps=1, min_accuracy=logged)
    assert errors(report) == ["N101"]


def test_every_change_is_made_and_every_kind_of_pair() -> None:
    assert {m.name for d in DOUBLES for m in (d.first, d.second)} == {m.name for m in MUTATIONS}
    assert {frozenset(d.shows) for d in DOUBLES} >= {frozenset({"harmless"}), frozenset({"sample"})}

"""Both readings of d2t, and what is made of maps as people have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from safetensors.torch import load_file

from converter.drafter.vocab import FORMS, Form, decide, read_both_ways
from converter.pipeline import Report
from tests.support import DRAFTERS, TARGET, codes, copy_of, errors
from tests.support import run as run_with_target


@st.composite
def maps(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Distinct ascending target ids of a reduced vocabulary, and the target's size."""
    vocab = draw(st.integers(8, 400))
    count = draw(st.integers(2, vocab - 1))
    ids = draw(st.permutations(range(vocab)))[:count]
    return np.array(sorted(ids), dtype=np.int64), vocab


def mark(ids: np.ndarray, vocab: int) -> np.ndarray:
    t2d = np.zeros(vocab, dtype=bool)
    t2d[ids] = True
    return t2d


def store(ids: np.ndarray, form: Form) -> np.ndarray:
    return ids - np.arange(len(ids)) if form == "offsets" else ids


@given(maps(), st.sampled_from(FORMS), st.sampled_from(["<i4", "<i8"]))
def test_with_t2d_the_stored_form_is_found(drawn: tuple[np.ndarray, int], form: Form, dtype: str) -> None:
    ids, vocab = drawn
    assume(store(ids, "offsets").any())  # the first ids in order are V203, in either form
    found, findings = decide(store(ids, form).astype(dtype), mark(ids, vocab), vocab, len(ids), "offsets")
    if np.array_equal(store(ids, "offsets"), ids):
        return
    readings = read_both_ways(store(ids, form), mark(ids, vocab), vocab)
    if all(r.fits for r in readings.values()):
        return
    assert found is not None
    assert np.array_equal(found.ids, ids)
    assert found.source == form
    assert [f.code for f in findings] == ([] if form == "offsets" else ["V201"])


@given(maps(), st.sampled_from(FORMS))
def test_never_a_map_out_of_range_or_with_duplicates(drawn: tuple[np.ndarray, int], form: Form) -> None:
    ids, vocab = drawn
    found, findings = decide(store(ids, form), None, vocab, len(ids), "offsets")
    if found is None or findings:
        return
    assert len(set(found.ids.tolist())) == len(found.ids)
    assert 0 <= found.ids.min() <= found.ids.max() < vocab


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20)
    | st.lists(st.integers(0, 20), min_size=1, max_size=20, unique=True),
    st.integers(21, 60),
    st.none() | st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_any_numbers_give_a_map_or_an_error(values: list[int], vocab: int, marks: list[bool] | None) -> None:
    t2d = None if marks is None else np.array(marks[:vocab])
    found, findings = decide(np.array(values), t2d, vocab, len(values), "offsets")
    if not any(f.severity == "error" for f in findings):
        assert found is not None
        assert len(np.unique(found.ids)) == len(values)
        assert 0 <= found.ids.min() <= found.ids.max() < vocab
        if t2d is not None:
            assert set(found.ids.tolist()) == set(np.flatnonzero(t2d).tolist())


@given(maps())
def test_without_d2t_the_map_comes_from_t2d(drawn: tuple[np.ndarray, int]) -> None:
    ids, vocab = drawn
    found, findings = decide(None, mark(ids, vocab), vocab, len(ids), "offsets")
    assert found is not None
    assert np.array_equal(found.ids, ids)
    assert [f.code for f in findings] == ["V202"]
    assert decide(None, None, vocab, len(ids), "offsets")[1][0].code == "V204"


def run(source: Path, out: Path, **options: Any) -> Report:
    """Convert without the target's weights, from which a lost map could be recovered."""
    return run_with_target(source, out, target=TARGET / "config.json", **options)


# --- the same on copies of a real drafter -----------------------------------------------------------------


def d2t_of(folder: Path) -> torch.Tensor:
    return load_file(folder / "model.safetensors")["d2t"]


def convert_with(tmp_path: Path, **tensors: torch.Tensor | None):  # type: ignore[no-untyped-def]
    def edit(weights: dict) -> None:  # type: ignore[type-arg]
        for name, value in tensors.items():
            weights.pop(name, None)
            if value is not None:
                weights[name] = value.contiguous()

    return run(copy_of("a_plain", tmp_path / "in", tensors=edit), tmp_path / "out")


TRUE = d2t_of(DRAFTERS / "a_plain")
IDS = TRUE + torch.arange(384)
MARKS = load_file(DRAFTERS / "a_plain" / "model.safetensors")["t2d"]


@pytest.mark.parametrize(
    ("d2t", "t2d", "code"),
    [
        (IDS, MARKS, "V201"),
        (IDS.int(), MARKS, "V201"),
        (TRUE.int(), MARKS, None),
        (TRUE, MARKS.to(torch.uint8), None),
        (TRUE, MARKS.long(), None),
        (TRUE, None, None),
        (IDS, None, "V201"),
        (None, MARKS, "V202"),
    ],
    ids=["ids", "int32 ids", "int32", "uint8 t2d", "int64 t2d", "no t2d", "ids, no t2d", "no d2t"],
)
def test_a_map_that_can_be_told_is_repaired(
    d2t: torch.Tensor | None, t2d: torch.Tensor | None, code: str | None, tmp_path: Path
) -> None:
    report = convert_with(tmp_path, d2t=d2t, t2d=t2d)
    assert report.outcome == "converted"
    assert codes(report) == ([code] if code else [])
    written = d2t_of(tmp_path / "out")
    assert written.dtype == torch.int64
    assert torch.equal(written, TRUE)


SHIFTED = torch.cat([TRUE[1:], TRUE[-1:]])
TWICE = torch.cat([TRUE[:-1], TRUE[-2:-1] - 1])
FAR = torch.cat([TRUE[:-1], torch.tensor([10_000])])


@pytest.mark.parametrize(
    ("d2t", "t2d", "code"),
    [
        (torch.zeros(384, dtype=torch.int64), None, "V203"),
        (None, ~MARKS, "V204"),
        (TRUE, MARKS.roll(1), "V208"),
        (SHIFTED, MARKS, "V208"),
        (TWICE, None, "V208"),
        (FAR, None, "V208"),
        (TRUE[:, None], MARKS, "V209"),
    ],
    ids=[
        "zeros, no t2d", "t2d of another size", "t2d contradicts", "off by one entry", "duplicate", "out of range",
        "two dimensions",
    ],
)  # fmt: skip
def test_a_map_that_cannot_be_told_is_refused(
    d2t: torch.Tensor | None, t2d: torch.Tensor | None, code: str, tmp_path: Path
) -> None:
    assert errors(convert_with(tmp_path, d2t=d2t, t2d=t2d)) == [code]
    assert not (tmp_path / "out").exists()


def _half_vocabulary(tmp_path: Path, d2t: torch.Tensor) -> Path:
    """128 of 512 ids with d2t = 0, 1, 2, ...: as ids 0..127, as offsets 0, 2, 4, ..."""

    def tensors(weights: dict) -> None:  # type: ignore[type-arg]
        weights["d2t"] = d2t.clone()
        weights["lm_head.weight"] = weights["lm_head.weight"][:128].clone()
        del weights["t2d"]

    def config(document: dict) -> None:  # type: ignore[type-arg]
        document["draft_vocab_size"] = 128

    return copy_of("a_plain", tmp_path / "in", config, tensors)


def test_an_ambiguous_map_is_read_as_the_dialect_writes_it_when_allowed(tmp_path: Path) -> None:
    source = _half_vocabulary(tmp_path, torch.arange(128))
    report = run(source, tmp_path / "out", allow=("V207",))
    assert report.outcome == "converted"
    assert torch.equal(d2t_of(tmp_path / "out"), torch.arange(128))


def test_a_full_vocabulary_needs_no_map(tmp_path: Path) -> None:
    def add(weights: dict) -> None:  # type: ignore[type-arg]
        weights["d2t"] = torch.zeros(512, dtype=torch.int64)
        weights["t2d"] = torch.ones(512, dtype=torch.bool)

    report = run(copy_of("h_fullvocab", tmp_path / "in", tensors=add), tmp_path / "out")
    assert report.outcome == "converted"
    assert report.findings == []
    assert report.plan is not None and set(report.plan.dropped) == {"d2t", "t2d"}
    assert "d2t" not in load_file(tmp_path / "out" / "model.safetensors")


def test_a_permutation_of_the_full_vocabulary_is_kept(tmp_path: Path) -> None:
    offsets = torch.arange(512).flip(0) - torch.arange(512)

    def add(weights: dict) -> None:  # type: ignore[type-arg]
        weights["d2t"] = offsets

    report = run(copy_of("h_fullvocab", tmp_path / "in", tensors=add), tmp_path / "out")
    assert report.outcome == "converted"
    assert torch.equal(d2t_of(tmp_path / "out"), offsets)


def test_head_rows_that_do_not_fit_the_map(tmp_path: Path) -> None:
    def cut(weights: dict) -> None:  # type: ignore[type-arg]
        weights["lm_head.weight"] = weights["lm_head.weight"][:380].clone()

    assert errors(run(copy_of("a_plain", tmp_path / "in", tensors=cut), tmp_path / "out")) == ["T104"]


# --- the target's head rows: speculators 0.5 and later freeze the head --------------------------------------------


@pytest.mark.parametrize(
    ("d2t", "t2d"),
    [
        (torch.zeros(384, dtype=torch.int64), MARKS),
        (torch.zeros(384, dtype=torch.int64), torch.zeros(512, dtype=torch.bool)),
        (None, None),
        (TRUE[:-1], MARKS),
        (TRUE, MARKS[:-1]),
        (TRUE, MARKS.roll(1)),
        (TRUE.float(), MARKS),
    ],
    ids=["zeros", "both zeros", "no map", "d2t too short", "t2d too short", "t2d contradicts", "floats"],
)
def test_a_lost_map_is_recovered_from_the_head(
    d2t: torch.Tensor | None, t2d: torch.Tensor | None, tmp_path: Path
) -> None:
    def edit(weights: dict) -> None:  # type: ignore[type-arg]
        for name, value in (("d2t", d2t), ("t2d", t2d)):
            weights.pop(name)
            if value is not None:
                weights[name] = value.contiguous()

    report = run_with_target(copy_of("a_plain", tmp_path / "in", tensors=edit), tmp_path / "out")
    assert report.outcome == "converted"
    assert codes(report) == ["V211"]
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(written["d2t"], TRUE)
    assert t2d is None or torch.equal(written["t2d"], MARKS)


def test_a_map_of_another_run_is_found_out(tmp_path: Path) -> None:
    """In range, without duplicates, agreeing with its t2d: only the head's rows tell."""
    ids = torch.cat([torch.arange(0, 300), torch.arange(400, 484)])
    marks = torch.zeros(512, dtype=torch.bool)
    marks[ids] = True

    def edit(weights: dict) -> None:  # type: ignore[type-arg]
        weights["d2t"], weights["t2d"] = ids - torch.arange(384), marks

    source = copy_of("a_plain", tmp_path / "in", tensors=edit)
    assert codes(run(source, tmp_path / "out")) == []
    assert errors(run_with_target(source, tmp_path / "out2")) == ["V210"]


def test_a_head_that_older_releases_trained_is_not_accused(tmp_path: Path) -> None:
    def edit(weights: dict) -> None:  # type: ignore[type-arg]
        weights["lm_head.weight"] = (weights["lm_head.weight"].float() * 1.01).bfloat16()

    def age(version: str):  # type: ignore[no-untyped-def]
        return lambda config: config.update(speculators_version=version)

    old = copy_of("a_plain", tmp_path / "old", age("0.4.0.1"), edit)
    new = copy_of("a_plain", tmp_path / "new", age("0.9.0"), edit)
    assert codes(run_with_target(old, tmp_path / "out")) == []
    assert errors(run_with_target(new, tmp_path / "out2")) == ["V210"]


@pytest.mark.parametrize("name", ["a_plain", "e_2layers", "h_fullvocab", "k_embedgrad"])
def test_healthy_drafters_agree_with_their_target(name: str, tmp_path: Path) -> None:
    report = run_with_target(DRAFTERS / name, tmp_path / "out")
    assert report.findings == []
    assert report.drafter is not None
    assert report.drafter.embedding == "target's"

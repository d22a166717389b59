"""Tensor name patterns in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.drafter.layout import expected_tensors
from converter.rules import loading
from converter.rules.names import canonical_name, match, translate, translate_back, wrapper_of
from converter.rules.releases import all_releases
from tests.test_forward import drafter

TABLE = {"mid.{i}.x": "layers.{i}.x", "later.{i+}.y": "layers.{i+}.y", "plain": "other"}


@given(st.integers(0, 999_999))
def test_there_and_back(i: int) -> None:
    assert translate(TABLE, f"mid.{i}.x") == f"layers.{i}.x"
    assert translate_back(TABLE, f"layers.{i}.x") == [f"mid.{i}.x"]
    assert translate(TABLE, f"later.{i}.y") == (f"layers.{i}.y" if i else None)


@given(st.from_regex(r"\Aa\.[0-9²٣-]{0,3}\.bb?\n?\Z") | st.text(max_size=30))
def test_a_pattern_fits_its_own_form_and_no_other(name: str) -> None:
    found = match("a.{i}.b", name)
    assert found == next(({"i": str(i)} for i in range(1000) if name == f"a.{i}.b"), None)


@pytest.mark.parametrize("name", ["mid.01.x", "mid..x", "mid.-1.x", "mid.1.xx", "amid.1.x", "mid.1.x\n", "mid.٣.x"])
def test_what_fits_nothing(name: str) -> None:
    assert translate(TABLE, name) is None


def test_dots_are_no_wildcards() -> None:
    assert match("a.b", "aXb") is None


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_every_written_name_reads_back_as_what_it_is(release: str) -> None:
    [engine] = [e for e in all_releases("sglang") if e.release == release]
    names = {c: engine.names_for(c) for c in [*expected_tensors(drafter("d_fcnorm_normout").spec), "d2t"]}
    written = {canonical: name for canonical, name in names.items() if name is not None}
    assert {"d2t", "fc.weight", "norm.weight"} <= written.keys()
    assert {name: translate(engine.rules["tensors"], name) for name in written.values()} == {
        name: canonical for canonical, name in written.items()
    }


def test_no_two_tensors_share_a_name() -> None:
    for engine in all_releases("sglang"):
        spec = drafter("e_2layers").spec
        names = [engine.names_for(c) for c in expected_tensors(spec)]
        given_names = [n for n in names if n is not None]
        assert len(given_names) == len(set(given_names))


def test_canonical_names_of_the_dialect_are_its_own() -> None:
    for theirs, canonical in loading.load("dialects", "speculators")["tensors"].items():
        assert theirs == canonical


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        ([], ""),
        (["fc.weight", "module.norm.weight"], ""),
        (["module.fc.weight", "module.norm.weight"], "module."),
        (["_orig_mod.module.fc.weight"], "_orig_mod.module."),
        (["model.fc.weight", "model.model.norm.weight"], "model."),  # the second is no wrapper of all
    ],
)
def test_what_wrappers_put_before_every_name(names: list[str], prefix: str) -> None:
    assert wrapper_of(names) == prefix


def test_scales_are_called_as_their_weight_is() -> None:
    table = {"mid.q.weight": "layers.0.q.weight"}
    assert canonical_name(table, "mid.q.weight") == "layers.0.q.weight"
    assert canonical_name(table, "mid.q.weight_scale") == "layers.0.q.weight_scale"
    assert canonical_name(table, "mid.q.input_scale") == "layers.0.q.input_scale"
    assert canonical_name(table, "mid.k.weight_scale") is None

"""Id rules forwards, and finding ids for capture points."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.rules.ids import RULES, points_of, solve
from converter.rules.targets import target_rule

POINTS = st.sets(st.integers(0, 62), min_size=1, max_size=5).map(lambda s: tuple(sorted(s)))


@given(st.sampled_from(sorted(RULES)), POINTS, st.integers(0, 8) | st.none())
def test_a_solution_gives_exactly_the_points(rule: str, points: tuple[int, ...], beyond: int | None) -> None:
    layers = None if beyond is None else points[-1] + beyond
    ids = solve(rule, points, layers)
    if ids is None:
        return
    # Where the number of layers is unknown, the ids must be right for every target that has the points.
    for count in [layers] if layers is not None else range(points[-1], points[-1] + 4):
        assert count is not None
        found = points_of(rule, ids, count)
        assert found is not None
        assert sorted(found) == list(points)


@given(st.permutations([1, 5, 9]))
def test_the_order_of_the_points_does_not_matter(points: list[int]) -> None:
    assert solve("plus_one", points, 12) == (0, 4, 8)


def brute(rule: str, points: tuple[int, ...], layers: int) -> bool:
    """Whether any list of ids gives the points."""
    values = range(-1, layers + 1)
    return any(
        sorted(RULES[rule](ids, layers)) == sorted(points) for ids in itertools.product(values, repeat=len(points))
    )


@pytest.mark.parametrize("rule", sorted(RULES))
def test_where_there_is_a_solution_it_is_found(rule: str) -> None:
    for count in (1, 2, 3):
        for points in itertools.combinations(range(6), count):
            assert (solve(rule, points, 5) is not None) == brute(rule, points, 5), (rule, points)


def test_deepseek() -> None:
    """Ids are literal unless the first listed is 1, so 1, 30, 58 needs another first (run on 0.5.23)."""
    rule = "plus_one_if_first_is_one"
    assert solve(rule, (1, 30, 58), 61) == (30, 1, 58)
    assert solve(rule, (2, 30, 58), 61) == (1, 29, 57)
    assert solve(rule, (0, 30, 58), 61) == (0, 30, 58)
    assert solve(rule, (1,), 61) is None
    assert points_of(rule, (4, 1, 5), None) == (4, 1, 5)


def test_gpt_oss() -> None:
    """Run on SGLang 0.5.23 with 6 layers: ids -1, 2, 5 give points 0, 3, 6; ids 0, 2, 6 give 0, 2, 6."""
    rule = "literal_if_max_is_last"
    assert points_of(rule, (-1, 2, 5), 6) == (0, 3, 6)
    assert points_of(rule, (0, 2, 6), 6) == (0, 2, 6)
    assert points_of(rule, (1, 17, 32), None) is None
    assert solve(rule, (0, 3, 6), 6) == (-1, 2, 5)


@pytest.mark.parametrize("points", [(), (3, 3), (-1, 2)])
def test_no_solution_for_what_is_no_set_of_points(points: tuple[int, ...]) -> None:
    assert solve("plus_one", points, None) is None


@pytest.mark.parametrize("rule", ["ids_ignored", "unknown"])
def test_rules_that_take_no_ids(rule: str) -> None:
    assert solve(rule, (2, 3), 8) is None
    assert points_of(rule, (2, 3), 8) is None


@pytest.mark.parametrize(
    ("architecture", "release", "id_rule", "embedding"),
    [
        ("LlamaForCausalLM", "0.5.9", "plus_one", "crash"),
        ("LlamaForCausalLM", "0.5.21", "plus_one", "crash"),
        ("LlamaForCausalLM", "0.5.22", "plus_one", "works"),
        ("DeepseekV3ForCausalLM", "0.5.12", "plus_one", "crash"),
        ("DeepseekV3ForCausalLM", "0.5.13", "plus_one_if_first_is_one", "crash"),
        ("DeepseekV3ForCausalLM", "0.5.14", "plus_one_if_first_is_one", "works"),
        ("KimiK25ForConditionalGeneration", "0.5.23", "plus_one_if_first_is_one", "works"),
        ("Qwen3ForCausalLM", "0.5.9", "plus_one", "works"),
        ("GptOssForCausalLM", "0.5.16", "plus_one", "crash"),
        ("GptOssForCausalLM", "0.5.17", "literal_if_max_is_last", "works"),
    ],
)
def test_target_rows(architecture: str, release: str, id_rule: str, embedding: str) -> None:
    rule = target_rule("sglang", release, architecture)
    assert rule is not None
    assert (rule.id_rule, rule.embedding) == (id_rule, embedding)


def test_classes_that_are_no_targets() -> None:
    assert target_rule("sglang", "0.5.9", "KimiK25ForConditionalGeneration") is None
    assert target_rule("sglang", "0.5.23", "NoSuchModel") is None


def test_rows_of_one_class_do_not_overlap() -> None:
    from converter.rules import loading
    from converter.rules.loading import known_releases
    from converter.rules.targets import _rows

    for architecture, rows in _rows("sglang", loading.state()).items():
        for release in known_releases("sglang"):
            covering = [r for r in rows if loading.covers(r["releases"], release)]
            assert len(covering) <= 1, (architecture, release)


def test_a_rule_that_goes_by_the_last_layer_needs_to_know_it() -> None:
    assert points_of("literal_if_max_is_last", [1, 3, 6], 6) == (1, 3, 6)
    assert points_of("literal_if_max_is_last", [1, 3, 5], 6) == (2, 4, 6)
    assert points_of("literal_if_max_is_last", [1, 3, 5], None) is None
    assert points_of("plus_one", [1, 3, 5], None) == (2, 4, 6)
    assert points_of("ids_ignored", [1, 3, 5], 6) is None

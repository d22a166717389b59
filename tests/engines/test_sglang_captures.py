"""What the ids in a converted drafter make SGLang's own target classes capture.

The real setter and the real forward pass of each class are run with the ids that the converter
solves for, and the states that come out are compared with those of the transformers library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from converter.rules.ids import solve

from .conftest import Engines, Results

pytestmark = pytest.mark.engines

LAYERS = 6


@dataclass(frozen=True)
class Target:
    """A class of target in one release: the rule by which it reads ids, and what it can capture."""

    release: str
    architecture: str
    rule: str
    #: What becomes of point 0 and of point LAYERS: "captured", "missing" or a type of error.
    embedding: str
    last: str

    def __str__(self) -> str:
        return f"{self.release}-{self.architecture}"

    def points(self) -> list[tuple[int, ...]]:
        """Sets of points that the converter must be able to reach."""
        chosen: list[tuple[int, ...]] = [(2, 3, 5), (1, 3, 5), (1, 2, 5), (2, 4), (1, 2, 3, 4)]
        if self.embedding == "captured":
            chosen += [(0, 2, 4), (0, 1, 5)]
        if self.last == "captured":
            chosen += [(0, 3, 6), (2, 4, 6)]
        return chosen


TARGETS = (
    Target("0.5.23", "llama", "plus_one", "captured", "missing"),
    Target("0.5.23", "qwen3", "plus_one", "captured", "missing"),
    Target("0.5.23", "deepseek", "plus_one_if_first_is_one", "captured", "missing"),
    Target("0.5.23", "gpt_oss", "literal_if_max_is_last", "captured", "captured"),
    Target("0.5.9", "llama", "plus_one", "TypeError", "missing"),
    Target("0.5.9", "qwen3", "plus_one", "captured", "missing"),
    Target("0.5.9", "deepseek", "plus_one", "TypeError", "missing"),
    Target("0.5.9", "gpt_oss", "plus_one", "TypeError", "missing"),
)

#: Ids that a converter should not write, or only knowing what a class makes of them.
SPECIAL = {
    "0.5.9 embedding": ("0.5.9", "llama", [-1, 1, 3]),
    "0.5.9 last": ("0.5.9", "llama", [1, 3, 5]),
    "0.5.23 last": ("0.5.23", "llama", [1, 3, 5]),
    "descending": ("0.5.23", "llama", [4, 2, 0]),
    "deepseek last": ("0.5.23", "deepseek", [2, 4, 6]),
    "deepseek first is one": ("0.5.23", "deepseek", [1, 2, 4]),
    "deepseek other is one": ("0.5.23", "deepseek", [2, 1, 4]),
}


@pytest.fixture(scope="module")
def captured(engines: Engines) -> Results:
    """The results of all jobs of this file, run with one process for each release."""
    jobs: dict[str, list[dict[str, Any]]] = {}

    def add(release: str, name: str, architecture: str, ids: list[int]) -> None:
        job = {"name": name, "architecture": architecture, "ids": ids}
        jobs.setdefault(release, []).append(job)

    for target in TARGETS:
        for points in target.points():
            ids = solve(target.rule, points, LAYERS)
            if ids is not None:
                add(target.release, f"{target} {points}", target.architecture, list(ids))
    for name, (release, architecture, ids) in SPECIAL.items():
        add(release, name, architecture, ids)
    return {
        name: result
        for release, listed in jobs.items()
        for name, result in engines.capture_with_sglang(release, listed).items()
    }


@pytest.mark.parametrize(
    ("target", "points"),
    [
        pytest.param(target, points, id=f"{target}-{'.'.join(map(str, points))}")
        for target in TARGETS
        for points in target.points()
    ],
)
def test_solved_ids_capture_the_points_in_ascending_order(
    captured: Results, target: Target, points: tuple[int, ...]
) -> None:
    assert solve(target.rule, points, LAYERS) is not None
    result = captured[f"{target} {points}"]
    assert result["error"] is None, result["error"]
    assert result["points"] == list(points)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_each_point_alone(captured: Results, target: Target) -> None:
    """Every point between embedding and last layer can be captured; those two by class."""
    expected = {str(point): "captured" for point in range(LAYERS + 1)}
    expected["0"] = target.embedding
    expected[str(LAYERS)] = target.last
    seen = captured[f"{target} {target.points()[0]}"]["single_points"]
    # An error reads "TypeError: what happened".
    assert {point: outcome.partition(":")[0] for point, outcome in seen.items()} == expected


def test_llama_of_0_5_9_fails_on_the_embedding(captured: Results) -> None:
    result = captured["0.5.9 embedding"]
    assert (result["stage"], result["error"]["type"]) == ("forward", "TypeError")


@pytest.mark.parametrize("name", ["0.5.9 last", "0.5.23 last"])
def test_llama_leaves_the_last_layer_out_without_a_word(captured: Results, name: str) -> None:
    assert captured[name]["error"] is None
    assert captured[name]["points"] == [2, 4]


def test_states_come_in_ascending_order_whatever_the_order_of_ids(captured: Results) -> None:
    assert captured["descending"]["points"] == [1, 3, 5]


def test_deepseek_refuses_the_last_layer_beside_others(captured: Results) -> None:
    error = captured["deepseek last"]["error"]
    assert (error["type"], error["message"]) == (
        "RuntimeError",
        "captured 2 of 3 aux hidden states",
    )


def test_deepseek_reads_the_ids_by_the_first_of_them(captured: Results) -> None:
    assert captured["deepseek first is one"]["points"] == [2, 3, 5]
    assert captured["deepseek other is one"]["points"] == [1, 2, 4]

"""What the ids in a converted drafter make vLLM's own target classes capture.

As test_sglang_captures.py: the real setter and the real forward pass of each class are run with the
ids that the converter solves for, and the states that come out are compared with those of the
transformers library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from converter.rules.ids import solve

from .conftest import Engines, Results

pytestmark = pytest.mark.engines

VLLM = "0.33.0"
LAYERS = 6
RULE = "literal"


@dataclass(frozen=True)
class Target:
    """A class of target, and what becomes of point 0: "captured" or a type of error."""

    architecture: str
    embedding: str

    def points(self) -> list[tuple[int, ...]]:
        """Sets of points that the converter must be able to reach."""
        chosen: list[tuple[int, ...]] = [(2, 3, 5), (1, 3, 5), (1, 2, 5), (2, 4), (1, 2, 3, 4), (2, 4, 6)]
        if self.embedding == "captured":
            chosen += [(0, 2, 4), (0, 1, 5), (0, 3, 6)]
        return chosen


TARGETS = (
    Target("llama", "captured"),
    Target("qwen3", "captured"),
    Target("deepseek", "TypeError"),
    Target("gpt_oss", "captured"),
)

#: Ids that a converter should not write, or only knowing what a class makes of them.
SPECIAL: dict[str, tuple[str, list[int] | None]] = {
    "descending": ("llama", [5, 3, 1]),
    "deepseek descending": ("deepseek", [5, 3, 1]),
    "deepseek embedding": ("deepseek", [0, 2, 4]),
    "beyond the last": ("llama", [3, 5, 7]),
    "below the embedding": ("llama", [-1, 1, 3]),
    "default": ("llama", None),
}


#: Points with which every class is run with norms that overwrite their inputs.
IN_PLACE = (2, 3, 5)
IN_PLACE_EMBEDDING = (0, 2, 4)


@pytest.fixture(scope="module")
def captured(engines: Engines) -> Results:
    """The results of all jobs of this file, run in one process."""
    jobs: list[dict[str, Any]] = []
    for target in TARGETS:
        for points in target.points():
            ids = solve(RULE, points, LAYERS)
            if ids is not None:
                job = {"name": f"{target.architecture} {points}", "architecture": target.architecture, "ids": list(ids)}
                jobs.append(job)
                if points in (IN_PLACE, IN_PLACE_EMBEDDING):
                    jobs.append({**job, "name": f"{job['name']} in place", "in_place": True})
    for name, (architecture, special) in SPECIAL.items():
        jobs.append({"name": name, "architecture": architecture, "ids": special})
    return engines.capture_with_vllm(VLLM, jobs)


@pytest.mark.parametrize(
    ("architecture", "points"),
    [
        pytest.param(target.architecture, points, id=f"{target.architecture}-{'.'.join(map(str, points))}")
        for target in TARGETS
        for points in target.points()
    ],
)
def test_solved_ids_capture_the_points_in_ascending_order(
    captured: Results, architecture: str, points: tuple[int, ...]
) -> None:
    assert solve(RULE, points, LAYERS) is not None
    result = captured[f"{architecture} {points}"]
    assert result["error"] is None, result["error"]
    assert result["points"] == list(points)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.architecture)
def test_each_point_alone(captured: Results, target: Target) -> None:
    """Every point can be captured, but for the embedding in one class."""
    expected = {str(point): "captured" for point in range(LAYERS + 1)}
    expected["0"] = target.embedding
    seen = captured[f"{target.architecture} {target.points()[0]}"]["single_points"]
    # An error reads "TypeError: what happened".
    assert {point: outcome.partition(":")[0] for point, outcome in seen.items()} == expected


def test_deepseek_fails_on_the_embedding(captured: Results) -> None:
    result = captured["deepseek embedding"]
    assert (result["stage"], result["error"]["type"]) == ("forward", "TypeError")


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.architecture)
def test_norms_that_overwrite_their_inputs_spoil_no_inner_point(captured: Results, target: Target) -> None:
    assert captured[f"{target.architecture} {IN_PLACE} in place"]["points"] == list(IN_PLACE)


@pytest.mark.parametrize("architecture", [t.architecture for t in TARGETS if t.embedding == "captured"])
def test_norms_that_overwrite_their_inputs_spoil_the_embedding(captured: Results, architecture: str) -> None:
    """What is handed over is no copy. This is --enforce-eager; a compiled model makes new tensors."""
    points = captured[f"{architecture} {IN_PLACE_EMBEDDING} in place"]["points"]
    assert points[0] != 0
    assert points[1:] == list(IN_PLACE_EMBEDDING[1:])


@pytest.mark.parametrize("name", ["descending", "deepseek descending"])
def test_states_come_in_ascending_order_whatever_the_order_of_ids(captured: Results, name: str) -> None:
    assert captured[name]["points"] == [1, 3, 5]


@pytest.mark.parametrize(("name", "points"), [("beyond the last", [3, 5]), ("below the embedding", [1, 3])])
def test_ids_of_no_point_are_passed_over_without_a_word(captured: Results, name: str, points: list[int]) -> None:
    assert captured[name]["error"] is None
    assert captured[name]["points"] == points


def test_the_default_is_two_points_where_two_of_its_three_fall_together(captured: Results) -> None:
    """2, half and 3 before the last of six layers: 2, 3 and 3."""
    assert captured["default"]["points"] == [2, 3]

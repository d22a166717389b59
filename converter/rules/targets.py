"""What each release does with each target class: id rule, default points, which points it can capture."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

from converter.rules import loading

ANY = "*"  # a row for every class that has none of its own

Capture = Literal["works", "crash", "error", "silently_missing", "wrong_value", "never_captured", "unknown"]


@dataclass(frozen=True)
class TargetRule:
    """What a release does with a target class: a row of `mappings/engines/ENGINE.targets.json`, of that release.

    id_rule                  what layer ids mean (`rules/ids.py`)
    default_points           name of the points that it captures where there are no ids (`behaviours.POINTS`)
    embedding, inner, last   what becomes of point 0, points 1..L-1 and point L
    detail                   how it fails, where it does; or, behind "embedding:", when that is captured rightly
    source                   where in the release's code that stands
    """

    architecture: str
    id_rule: str
    default_points: str
    embedding: Capture
    inner: Capture
    last: Capture
    detail: str
    source: str

    def how(self, point: int, layers: int | None) -> str:
        """The detail, where it is of this capture point or of all; "" where it is of another."""
        about = {"embedding": point == 0, "last layer": point == layers, "layers": point > 0}
        return self.detail if about.get(self.detail.partition(":")[0], True) else ""

    def capture(self, point: int, layers: int | None) -> Capture:
        """What becomes of a capture point; of an unknown number of layers, any but 0 is an inner one."""
        if point == 0:
            return self.embedding
        return self.last if layers is not None and point == layers else self.inner


@cache
def _built_in(engine: str) -> list[dict[str, Any]]:
    file = loading.rules_folder("engines") / f"{engine}.targets.json"
    rows: list[dict[str, Any]] = json.loads(file.read_bytes())["targets"] if file.is_file() else []
    return rows


@lru_cache(maxsize=64)
def _rows(engine: str, state: int) -> dict[str, list[dict[str, Any]]]:
    """Rows by class, of one state of the rules (loading.state); those that the user added (`targets` of an engine file)
    come first and win.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in [*loading.load("engines", engine).get("targets", ()), *_built_in(engine)]:
        rows.setdefault(row["architecture"], []).append(row)
    return rows


def target_rule(engine: str, release: str, architecture: str) -> TargetRule | None:
    """The row for a target class in a release, or None where the engine cannot use it as a target."""
    return _rule(engine, release, architecture, loading.state())


@lru_cache(maxsize=16384)
def _rule(engine: str, release: str, architecture: str, state: int) -> TargetRule | None:
    table = _rows(engine, state)
    for row in (*table.get(architecture, ()), *(table.get(ANY, ()) if architecture else ())):
        if loading.covers(row["releases"], release):
            told = {key: value for key, value in row.items() if key not in ("releases", "architecture")}
            return TargetRule(architecture, **told)
    return None


def architectures(engine: str, release: str) -> list[str]:
    """Every class that the release can use as a target; "*" among them where others are not ruled out."""
    table = _rows(engine, loading.state())
    own = {a for a, rows in table.items() if any(loading.covers(row["releases"], release) for row in rows)}
    return sorted(table if ANY in own else own)


def capturing_releases(
    engine: str, releases: list[str], architecture: str, point: int, layers: int | None
) -> list[str]:
    """The releases, of those given, in which that target class can capture `point`."""
    rules = [(r, target_rule(engine, r, architecture)) for r in releases]
    return [r for r, rule in rules if rule and rule.capture(point, layers) == "works"]

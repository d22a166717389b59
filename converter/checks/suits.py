"""For which other known releases an output is right as it is, and for which not, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converter.checks.engine import NEEDS_FLAGS, compare, faults, span
from converter.drafter.drafter import Embedding
from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.rules.engine import all_releases


@dataclass(frozen=True)
class Suits:
    """Of one engine: the releases for which the output is right, and the codes that speak against the others."""

    engine: str
    right: tuple[str, ...]
    wrong: Mapping[tuple[str, ...], tuple[str, ...]]

    def as_json(self) -> dict[str, Any]:
        wrong = [{"codes": list(codes), "releases": list(releases)} for codes, releases in self.wrong.items()]
        return {"engine": self.engine, "right": list(self.right), "wrong": wrong}

    def words(self) -> str:
        """`vllm 0.18.0 to 0.33.0`; "" where none is right."""
        return f"{self.engine} {span(self.engine, self.right)}" if self.right else ""


def suits(
    engine: str,
    spec: DrafterSpec,
    config: Mapping[str, Any],
    names: Sequence[str],
    target: Target,
    embedding: Embedding,
) -> Suits:
    """Read config and tensor names by the rules of every known release; launch options are each release's own."""
    right: list[str] = []
    wrong: dict[tuple[str, ...], list[str]] = {}
    for release in all_releases(engine):
        findings = faults(release, spec, target, embedding)
        findings += compare(release, spec, config, names, target, release.launch_options(spec))
        codes = tuple(sorted({f.code for f in findings if f.severity == "error" or f.code == NEEDS_FLAGS}))
        if codes:
            wrong.setdefault(codes, []).append(release.release)
        else:
            right.append(release.release)
    return Suits(engine, tuple(right), {codes: tuple(releases) for codes, releases in wrong.items()})

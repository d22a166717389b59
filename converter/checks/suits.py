"""For which other known releases an output is right as it is, and for which not, and why."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from converter.checks.engine import compare, serves
from converter.checks.obstacles import CODES, FLAGGED, OTHER, faults
from converter.drafter.drafter import Embedding
from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.findings import CONVERT, Finding
from converter.rules import loading
from converter.rules.loading import known_releases
from converter.rules.releases import all_releases, plugin_for, span


@dataclass(frozen=True)
class Suits:
    """Of one engine: the releases for which the output is right, and the codes that speak against the others."""

    engine: str
    right: tuple[str, ...]
    wrong: Mapping[tuple[str, ...], tuple[str, ...]]

    def as_json(self) -> dict[str, Any]:
        wrong = [{"codes": list(codes), "releases": list(releases)} for codes, releases in self.wrong.items()]
        return {"engine": self.engine, "right": list(self.right), "wrong": wrong, "unverified": self.unverified}

    @property
    def unverified(self) -> bool:
        """True where no release of the engine was ever run."""
        return not loading.load("engines", self.engine)["proved"]

    def words(self) -> str:
        """`vllm 0.18.0 to 0.33.0`; "" where none is right."""
        perhaps = " (unverified)" if self.unverified else ""
        return f"{self.engine} {span(self.engine, self.right)}{perhaps}" if self.right else ""


def suits(
    engine: str,
    spec: DrafterSpec,
    config: Mapping[str, Any],
    names: Sequence[str],
    target: Target,
    embedding: Embedding,
) -> Suits:
    """Read config and tensor names by the rules of every known release; launch options are each release's own."""
    if target.layers is None:
        return Suits(engine, (), {})  # what depends on an unknown depth is unknown, never "right"
    right: list[str] = []
    wrong: dict[tuple[str, ...], list[str]] = {}
    judged: dict[Hashable, tuple[str, ...]] = {}
    plugin = plugin_for(config)
    for known in all_releases(engine):
        treatment = known.treatment(target)
        if treatment not in judged:
            release = known.serving(spec)
            if plugin and release.takes_plugin:
                release = release.with_plugin()
            findings = faults(release, spec, target, embedding)
            findings += compare(release, spec, config, names, target, release.launch_options(spec))
            judged[treatment] = tuple(sorted({f.code for f in findings if f.severity == "error" or f.code in FLAGGED}))
        codes = judged[treatment]
        if codes:
            wrong.setdefault(codes, []).append(known.release)
        else:
            right.append(known.release)
    return Suits(engine, tuple(right), {codes: tuple(releases) for codes, releases in wrong.items()})


def where_it_works(spec: DrafterSpec, target: Target, embedding: Embedding) -> tuple[str, ...]:
    """Known releases of every engine that can serve the whole drafter, and what to type; a line each, plugins last."""
    alone, with_plugin = [], []
    for engine in loading.names("engines"):
        good: list[str] = []
        mended: list[str] = []
        judged: dict[Hashable, list[str] | None] = {}
        for release in all_releases(engine):
            treatment = release.treatment(target)
            if treatment not in judged:
                served = release.serving(spec)
                plugged = served.plugged(spec)
                by_itself = serves(served, spec, target, embedding)
                by_plugin = not by_itself and plugged is not None and serves(plugged, spec, target, embedding)
                judged[treatment] = good if by_itself else mended if by_plugin else None
            those = judged[treatment]
            if those is not None:
                those.append(release.release)
        if good:
            alone.append(_works_in(engine, good))
        if mended:
            with_plugin.append(_works_in(engine, mended, " with a plugin", " --allow-plugin"))
    return (*alone, *with_plugin) or ("no known release of any engine can serve this drafter as it was trained",)


def _works_in(engine: str, releases: Sequence[str], how: str = "", option: str = "") -> str:
    choice = engine if releases[-1] == known_releases(engine)[-1] else f"{engine}=={releases[-1]}"
    rules = loading.load("engines", engine)
    perhaps = "" if rules["proved"] else " (unverified)"
    where = f"{rules['title']} {span(engine, releases)}{how}{perhaps}"
    return f"works in {where}:  {CONVERT} --engine {choice}{option}"


def with_fixes(findings: Sequence[Finding], spec: DrafterSpec, target: Target, embedding: Embedding) -> list[Finding]:
    """The findings, those about what an engine cannot do with where the whole drafter works."""
    about = {*CODES.values(), OTHER, *FLAGGED, "K121", "K122", "K123", "K124", "K131"}
    if not any(f.code in about for f in findings):
        return list(findings)
    fixes = where_it_works(spec, target, embedding)
    return [replace(f, fix=fixes) if f.code in about and not f.fix else f for f in findings]

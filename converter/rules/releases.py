"""Which engine releases are known, and which of them a requirement or a config names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from converter.errors import UsageError
from converter.rules import loading
from converter.rules.engine import EngineRelease, draft_class
from converter.rules.loading import known_releases

_NAME = re.compile(r"[A-Za-z][\w.-]*")
_EXPECTED = (
    "--engine {!r}: expected NAME, NAME==RELEASE or NAME>=RELEASE, such as sglang==0.5.23; for several engines give "
    "the option several times"
)


def resolve(requirement: str) -> list[EngineRelease]:
    """`sglang` (the newest known), `sglang==0.5.9`, or a range `sglang>=0.5.12` (every known release in it).

    Raises UsageError: unknown engine, older than known, or a range that holds no known release.
    """
    if _NAME.fullmatch(requirement):
        return [_release(requirement, known_releases(requirement)[-1])]
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import Version

    try:
        parsed = Requirement(requirement)
    except InvalidRequirement as problem:
        raise UsageError(_EXPECTED.format(requirement)) from problem
    if parsed.url or parsed.marker or parsed.extras:
        raise UsageError(_EXPECTED.format(requirement))
    known = known_releases(parsed.name)
    if not parsed.specifier:
        return [_release(parsed.name, known[-1])]
    within = [r for r in known if parsed.specifier.contains(r, prereleases=True)]
    if within:
        return [_release(parsed.name, r) for r in within]
    exact = [s.version for s in parsed.specifier if s.operator == "==" and not s.version.endswith(".*")]
    if exact and Version(exact[0]) > Version(known[-1]):
        return [replace(_release(parsed.name, known[-1]), release=exact[0], newer_than_known=True, proved=False)]
    raise UsageError(
        f"--engine {requirement}: no such release is known; {parsed.name} is known from {known[0]} to {known[-1]}"
        f"{_nearest(exact, known)}"
    )


def _nearest(wanted: Sequence[str], known: Sequence[str]) -> str:
    from packaging.version import Version

    if not wanted or Version(wanted[0]) < Version(known[0]):
        return ""
    before = [r for r in known if Version(r) < Version(wanted[0])]
    return f", among them {' and '.join([before[-1], known[known.index(before[-1]) + 1]])}"


def _release(name: str, release: str) -> EngineRelease:
    return _merged(name, release, loading.state())


@lru_cache(maxsize=512)
def _merged(name: str, release: str, state: int) -> EngineRelease:
    """By one state of the rules (loading.state)."""
    document = loading.load("engines", name)
    rules = _rules(name, loading.blocks_for(document, release), state)
    return EngineRelease(name, document["title"], release, rules, release in document["proved"])


@lru_cache(maxsize=512)
def _rules(name: str, blocks: tuple[int, ...], state: int) -> Mapping[str, Any]:
    """One mapping for all releases that have the same rules."""
    return loading.with_blocks(loading.load("engines", name), blocks)


def all_releases(name: str) -> list[EngineRelease]:
    """Every known release of an engine, oldest first. Raises UsageError where the engine is unknown."""
    return [_release(name, release) for release in known_releases(name)]


def plugin_for(config: Mapping[str, Any]) -> str:
    """The package whose draft class a config names; "" where it names none of a plugin that is known here."""
    named = draft_class(config)
    for engine in map(_newest, loading.names("engines")):
        if engine.takes_plugin and named in engine.rules["plugin"]["changes"]["draft_classes"]["names"]:
            return str(engine.rules["plugin"]["package"])
    return ""


def _newest(name: str) -> EngineRelease:
    return _release(name, known_releases(name)[-1])


def span(engine: str, releases: Sequence[str]) -> str:
    """`0.5.17 to 0.5.23` for a run of known releases; several where there are gaps."""
    known = known_releases(engine)
    runs: list[list[str]] = []
    for release in releases:
        if runs and known.index(release) == known.index(runs[-1][-1]) + 1:
            runs[-1].append(release)
        else:
            runs.append([release])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)

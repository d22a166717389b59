"""Which releases serve a drafter only with a plugin's draft class in place of their own."""

from __future__ import annotations

from collections.abc import Sequence

from converter.checks.engine import examine
from converter.drafter.drafter import Drafter, Embedding
from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.findings import Finding, error, note
from converter.rules.engine import EngineRelease
from converter.rules.releases import span


def with_plugins(
    engines: Sequence[EngineRelease], drafter: Drafter, target: Target
) -> tuple[list[EngineRelease], list[Finding]]:
    """The releases as they serve the drafter where plugins are allowed, and what is to be said of it.

    One class is named in one folder: where a release of an engine needs the plugin, all that take it have it.
    """
    spec = drafter.spec
    needing = {e.name for e in engines if mends(e, spec, target, drafter.embedding)}
    chosen = [e.with_plugin() if e.name in needing and e.takes_plugin else e for e in engines]
    findings: list[Finding] = []
    for name in dict.fromkeys(e.name for e in engines if e.takes_plugin):
        served = [e for e in chosen if e.name == name and e.plugin]
        findings.append(_serves(served) if served else _not_needed([e for e in engines if e.name == name]))
        if served and drafter.quantised:
            findings.append(_quantised(served))
    return chosen, findings


def mends(engine: EngineRelease, spec: DrafterSpec, target: Target, embedding: Embedding) -> bool:
    """Whether the plugin takes away an error that stands in the release's way, and brings none."""
    plugged = engine.plugged(spec)
    if plugged is None:
        return False
    return _errors(plugged, spec, target, embedding) < _errors(engine, spec, target, embedding)


def _errors(engine: EngineRelease, spec: DrafterSpec, target: Target, embedding: Embedding) -> set[str]:
    findings = examine(engine, spec.ascending(), target, embedding).findings
    return {f"{f.code} {f.message}" for f in findings if f.severity == "error"}


def _named(engines: Sequence[EngineRelease]) -> str:
    first, *more = engines
    if not more or any(e.newer_than_known for e in engines):
        return ", ".join(map(str, engines))
    return f"{first.name} {span(first.name, [e.release for e in engines])}"


def _serves(engines: Sequence[EngineRelease]) -> Finding:
    first = engines[0]
    plugin = first.rules["plugin"]
    return note(
        "K160",
        f"{_named(engines)} serves this drafter with the plugin {first.plugin}, not with its own draft class",
        where="--allow-plugin",
        why=f"without the package, or the launch line's variable, {first.title} stops at start; the plugin was run on "
        "a CPU, without kernels and CUDA graphs",
        fix=(f"where {first.title} runs: {plugin['install']}; then check the served acceptance (docs/engines.md)",),
    )


def _not_needed(engines: Sequence[EngineRelease]) -> Finding:
    return note(
        "K162",
        f"--allow-plugin changes nothing for {_named(engines)}",
        where="--allow-plugin",
        why="the release's own draft class is written for: it computes this drafter, or the plugin cannot either",
    )


def _quantised(engines: Sequence[EngineRelease]) -> Finding:
    return error(
        "K161",
        f"the plugin {engines[0].plugin} takes no quantised drafter ({_named(engines)})",
        where="quantization_config",
        why="it holds every tensor against the shape that it has unquantised",
        fix=("convert the drafter as it was before it was quantised",),
    )

"""What an engine release would make of a drafter: write it in the release's form, read that form back by the
release's own rules, and compare. A difference is something that the engine would do silently wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from converter.checks.captures import no_ids
from converter.checks.obstacles import CODES, FLAGGED, OTHER, faults
from converter.drafter.drafter import Embedding
from converter.drafter.layout import Expected, expected_tensors
from converter.drafter.spec import DrafterSpec, differences, shown_value
from converter.drafter.target import Target
from converter.findings import Finding, error, some_of
from converter.rules.engine import EngineRelease, EngineView
from converter.rules.ids import NEEDS_LAYERS
from converter.rules.releases import plugin_for
from converter.rules.written import ConfigEntry, nested, write_config


@dataclass(frozen=True)
class Examination:
    """What one release needs and what stands in the way.

    config     every key to write; layer_ids are in there where the target is known
    launch     launch options that carry a part of the wiring
    layer_ids  None where no list of ids reaches the capture points, or the target is unknown
    findings   of `faults` and `compare`, and K123
    """

    config: tuple[ConfigEntry, ...]
    launch: Mapping[str, Any]
    layer_ids: tuple[int, ...] | None
    findings: tuple[Finding, ...]


def examine(engine: EngineRelease, spec: DrafterSpec, target: Target, embedding: Embedding = "unknown") -> Examination:
    """Lower `spec` (capture points ascending) for one release and compare with what the release reads back."""
    return _examine(engine, spec, target, embedding, faults(engine, spec, target, embedding))


def serves(engine: EngineRelease, spec: DrafterSpec, target: Target, embedding: Embedding) -> bool:
    """Whether one release can serve the whole drafter; most that cannot are told before anything is lowered."""
    found = faults(engine, spec, target, embedding)
    return not _speaks_against(found) and not _speaks_against(_examine(engine, spec, target, embedding, found).findings)


def _speaks_against(findings: Iterable[Finding]) -> bool:
    return any(f.severity == "error" or f.code in FLAGGED for f in findings)


def _examine(
    engine: EngineRelease, spec: DrafterSpec, target: Target, embedding: Embedding, before: Sequence[Finding]
) -> Examination:
    findings = list(before)
    ids = engine.layer_ids(spec, target)
    rule = engine.target(target.architecture)
    if rule is not None and ids is None:
        findings.append(no_ids(engine, rule, spec, target))
    config = write_config(engine, spec, ids if ids is not None else spec.capture_points)
    launch = engine.launch_options(spec)
    names = _names(engine, spec, embedding)
    findings += compare(engine, spec, nested(config), names, target, launch, skip_points=ids is None)
    return Examination(tuple(config), launch, ids, tuple(findings))


def would_see(engine: EngineRelease, spec: DrafterSpec, target: Target) -> EngineView | None:
    """What the release makes of `spec` (capture points ascending) in its own form; None where it stops instead."""
    if any(engine.broken_limit(spec, attribute) for attribute in engine.limits):
        return None
    ids = engine.layer_ids(spec, target)
    config = nested(write_config(engine, spec, ids if ids is not None else spec.capture_points))
    names, launch = _names(engine, spec), engine.launch_options(spec)
    return engine.view(config, names, target if ids is not None else replace(target, architecture=""), launch)


def compare(
    engine: EngineRelease,
    spec: DrafterSpec,
    config: Mapping[str, Any],
    names: Sequence[str],
    target: Target,
    launch: Mapping[str, Any],
    skip_points: bool = False,
) -> list[Finding]:
    """What the release reads out of config, tensor names and launch options, against what was trained.

    skip_points  the ids in the config reach no points that could be compared
    """
    plugin = plugin_for(config)
    if plugin not in ("", engine.plugin):
        return [_plugin_class(engine, plugin)]
    rule = engine.target(target.architecture)
    skip_points = skip_points or (target.layers is None and rule is not None and rule.id_rule in NEEDS_LAYERS)
    # Without a class that gives the ids their meaning, they are read as what they were written as.
    view = engine.view(config, names, replace(target, architecture="") if skip_points else target, launch)
    if view.spec is None and skip_points:
        return []  # the points are not known, which is said elsewhere
    if view.spec is None:
        return [error(OTHER, f"{engine} could not read the config written for it", where="config.json")]
    differing = [d for d in differences(spec, view.spec) if not (skip_points and d == "capture_points")]
    # One finding for a code that several fields share; those that have no code of their own are told each.
    shown = {CODES.get(field, field): field for field in reversed(differing)}
    findings = [_not_honoured(engine, spec, field, view.spec) for field in shown.values()]
    own = expected_tensors(spec)
    expected = expected_tensors(view.spec) | own
    # What only the release's own reading of the config asks for follows from a field that differs.
    every = dict.fromkeys((*view.ignored, *(n for n in view.missing if n in own or n == "d2t")))
    lost = [n for n in every if not _explained(n, engine, spec, expected, differing)]
    if lost:
        findings.append(
            error(
                OTHER,
                f"{engine} would leave {len(lost)} tensor{'s' if len(lost) > 1 else ''} of the drafter unloaded",
                where=some_of(lost),
            )
        )
    return findings


def _names(engine: EngineRelease, spec: DrafterSpec, embedding: Embedding = "unknown") -> list[str]:
    """Of the tensors that would be written: all that the spec implies, less the embedding of a drafter without one."""
    there = [c for c, expected in expected_tensors(spec).items() if not (expected.optional and embedding == "absent")]
    names = [engine.names_for(canonical) or canonical for canonical in there]
    return names + (["d2t", "t2d"] if spec.draft_vocab_size != spec.vocab_size else [])


def _explained(
    name: str, engine: EngineRelease, spec: DrafterSpec, tensors: Mapping[str, Expected], differing: Sequence[str]
) -> bool:
    """True where the tensor (by written or canonical name) belongs to a feature, a layer or a vocabulary that the
    release is already said not to honour."""
    if name == "d2t":
        return _broken(engine, spec, "reduced_vocabulary")
    broken = _broken(engine, spec, "num_hidden_layers")
    for canonical, expected in tensors.items():
        if name in (canonical, engine.names_for(canonical)):
            later_layer = canonical.startswith("layers.") and not canonical.startswith("layers.0.")
            return expected.feature in differing or (later_layer and broken)
    return False


def _broken(engine: EngineRelease, spec: DrafterSpec, limit: str) -> bool:
    return limit in engine.limits and engine.broken_limit(spec, limit)


def _not_honoured(engine: EngineRelease, spec: DrafterSpec, field: str, view: DrafterSpec) -> Finding:
    value, seen = getattr(spec, field), getattr(view, field)
    return error(
        CODES.get(field, OTHER),
        f"{field} is {shown_value(value)}; {engine} computes {shown_value(seen)}",
        where=spec.origin_of(field),
        found=shown_value(value),
        expected=shown_value(seen),
        why=engine.consequence(field),
    )


def _plugin_class(engine: EngineRelease, plugin: str) -> Finding:
    return error(
        "K163",
        f"{engine} has no draft class of the name in this config: it is that of the plugin {plugin}",
        where="architectures",
        why="it stops at start",
    )

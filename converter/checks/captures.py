"""Which states of the target a release hands out, and whether they are those that feed the drafter."""

from __future__ import annotations

from collections.abc import Mapping

from converter.drafter.points import describe_point, describe_points
from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.findings import Finding, error, warning
from converter.rules.engine import EngineRelease
from converter.rules.ids import IGNORED
from converter.rules.loading import known_releases
from converter.rules.releases import span
from converter.rules.targets import TargetRule, architectures, capturing_releases

CAPTURE_FAILS: Mapping[str, str] = {
    "crash": "the engine stops at the first request",
    "error": "the engine stops at the first request, saying why",
    "silently_missing": "the state is left out without a word and fc gets too few",
    "wrong_value": "the engine hands out another value under that name without a word",
    "never_captured": "this target class never hands out any state",
    "unknown": "nobody has verified what this target class hands out",
}


def no_target(engine: EngineRelease, target: Target) -> Finding:
    """K120: the target's class is not known, or the release cannot use it as a target."""
    if not target.architecture:
        return error(
            "K120",
            "the target's class is not known, so neither are the ids that select its layers",
            where="config.json",
            why="engines number layers differently for different target classes",
            fix=("--target FOLDER (or its config.json), or --target-arch LlamaForCausalLM",),
        )
    classes = architectures(engine.name, engine.release)
    near = [a for a in classes if a[:6].lower() == target.architecture[:6].lower()]
    return error(
        "K120",
        f"{engine} has no EAGLE-3 support for the target class {target.architecture}",
        where=target.where,
        expected=f"one of {len(classes)} classes" + (f", e.g. {', '.join(near[:4])}" if near else ""),
        why="it stops at start, or never hands out a state of this class",
        fix=(f"all classes: eagle3 engines list {engine.requirement}",),
    )


def check_captures(engine: EngineRelease, rule: TargetRule, spec: DrafterSpec, target: Target) -> list[Finding]:
    """K121 embedding, K122 last layer or K124 another one that the target class does not hand out as trained; K126 an
    embedding that it hands out rightly in some configurations only.
    """
    findings = []
    for point in spec.capture_points:
        capture, how = rule.capture(point, target.layers), rule.how(point, target.layers)
        if capture == "works":
            if point == 0 and rule.detail.startswith("embedding:"):
                findings.append(_captured_with_care(engine, rule))
            continue
        last = target.layers is not None and point == target.layers
        code = "K121" if point == 0 else "K122" if last else "K124"
        name = "the embedding" if point == 0 else f"the last layer ({point})" if last else describe_point(point)
        findings.append(
            error(
                code,
                f"{engine} cannot capture {name} of {target.architecture}",
                where=spec.origin_of("capture_points"),
                found=f"the drafter takes {describe_points(spec.capture_points)}",
                expected=f"a release that can: {capture_table(engine.name, target.architecture, point, target.layers)}",
                why=CAPTURE_FAILS[capture] + (f" ({how})" if how else ""),
            )
        )
    return findings


def _captured_with_care(engine: EngineRelease, rule: TargetRule) -> Finding:
    return warning(
        "K126",
        f"{engine} captures the embedding of {rule.architecture} rightly only in some configurations",
        where=rule.source.split(";")[0],
        why=rule.detail.removeprefix("embedding: "),
        fix=("hold the acceptance length that the server logs against the sample's (docs/metrics.md)",),
    )


def capture_table(engine: str, architecture: str, point: int, layers: int | None) -> str:
    """Which known releases can capture the point for this target class, in words."""
    known = known_releases(engine)
    good = capturing_releases(engine, known, architecture, point, layers)
    return f"{engine} {span(engine, good)}" if good else f"none of {engine} {span(engine, known)}"


def check_injected(engine: EngineRelease, spec: DrafterSpec, target: Target) -> list[Finding]:
    """K146 where image features are added to a state that the drafter is fed with."""
    rule = engine.rules.get("injected_features")
    early = tuple(p for p in spec.capture_points if 0 < p <= target.injected)
    if rule is None or target.architecture not in rule["classes"] or not early:
        return []
    return [
        warning(
            "K146",
            f"{engine} hands out {describe_points(early)} of {target.architecture} "
            f"{rule['captured']} image features are added",
            where=spec.origin_of("capture_points"),
            found=f"features of images go to the output of its first {target.injected} layers",
            expected=f"a drafter that was trained on states captured {rule['captured']} that",
            why="trainers capture before or after, and the files do not say which; if it was the other, the drafter is "
            "fed with other states wherever there is an image. Text alone is not concerned",
            fix=(f"train on points past layer {target.injected}, or measure on chats with images",),
        )
    ]


def no_ids(engine: EngineRelease, rule: TargetRule, spec: DrafterSpec, target: Target) -> Finding:
    """K123: no list of ids makes the release capture the drafter's points."""
    if rule.id_rule == IGNORED:
        own = engine.default_points(target)
        return error(
            "K123",
            f"{engine} reads no layer ids; of {rule.architecture} it captures {rule.default_points} and nothing else",
            where=spec.origin_of("capture_points"),
            found=describe_points(spec.capture_points),
            expected=describe_points(own) if own else "the target's number of layers (--target FOLDER) to compare",
            why="it would feed other states than those trained on",
        )
    return error(
        "K123",
        f"no list of ids makes {engine} capture {describe_points(spec.capture_points)} of {target.architecture}",
        where=spec.origin_of("capture_points"),
        found=f"id rule {rule.id_rule}",
        why=f"it would feed {rule.default_points} or other states than those trained on",
    )

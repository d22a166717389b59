"""What an engine release would make of a drafter: write it in the release's form, read that form back by the
release's own rules, and compare. A difference is something that the engine would do silently wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from converter.drafter.drafter import Embedding
from converter.drafter.layout import Expected, expected_tensors
from converter.drafter.points import describe_point, describe_points
from converter.drafter.spec import DrafterSpec, Latent, Origin, differences
from converter.drafter.target import Target
from converter.findings import Finding, error, some_of, warning
from converter.rules.engine import (
    STANDINGS,
    ConfigEntry,
    EngineRelease,
    EngineView,
    all_releases,
    known_releases,
    nested,
    plugin_for,
)
from converter.rules.ids import IGNORED, NEEDS_LAYERS
from converter.rules.targets import TargetRule, architectures, capturing_releases

# Spec attribute -> code of the finding that an engine does not honour or accept it.
CODES: Mapping[str, str] = {
    "num_hidden_layers": "K102",
    "norm_before_residual": "K103",
    "norm_before_fc": "K104",
    "fc_norm": "K105",
    "norm_output": "K106",
    "qk_norm": "K107",
    "qkv_bias": "K108",
    "o_bias": "K108",
    "mlp_bias": "K109",
    "layer_windows": "K110",
    "num_points": "K111",
    "takes_embedding": "K121",
    "rope": "K112",
    "rope.kind": "K112",
    "rope.names": "K112",
    "hidden_act": "K113",
    "fc_is_square": "K114",
    "mixed_windows": "K110",
    "reduced_vocabulary": "K116",
    "capture_points": "K125",
    "mask_token_id": "K140",
    "latent": "K141",
    "latent.compressed_q": "K144",
    "equal_widths": "K143",
}
# Attribute that follows from a field -> that field, which says where the value came from.
_FROM: Mapping[str, str] = {
    "num_points": "capture_points",
    "takes_embedding": "capture_points",
    "fc_is_square": "capture_points",
    "equal_widths": "target_hidden_size",
    "reduced_vocabulary": "draft_vocab_size",
    "mixed_windows": "layer_windows",
}
# What a value of an attribute means that no config names so.
_MEANS: Mapping[tuple[str, bool], str] = {
    ("takes_embedding", True): "the drafter is fed the target's embedding",
    ("fc_is_square", True): "the states that feed the drafter are together as wide as it is",
    ("mixed_windows", True): "some layers of the drafter have a sliding window and others have none",
    ("reduced_vocabulary", True): "the drafter has a part of the target's vocabulary",
    ("reduced_vocabulary", False): "the drafter has the target's whole vocabulary",
    ("equal_widths", False): "the drafter is not as wide as the target",
}
OTHER = "K190"
NEEDS_FLAGS = "K127"
FOR_SHAPE = "K164"
FLAGGED = frozenset({NEEDS_FLAGS, FOR_SHAPE})  # a folder with one of these is right only as its launch line has it

CAPTURE_FAILS = {
    "crash": "the engine stops at the first request",
    "error": "the engine stops at the first request, saying why",
    "silently_missing": "the state is left out without a word and fc gets too few",
    "wrong_value": "the engine hands out another value under that name without a word",
    "never_captured": "this target class never hands out any state",
    "unknown": "nobody has verified what this target class hands out",
}


@dataclass(frozen=True)
class Examination:
    """What one release needs and what stands in the way.

    config     every key to write; layer_ids are in there where the target is known
    launch     launch options that carry a part of the wiring
    layer_ids  None where no list of ids reaches the capture points, or the target is unknown
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
        findings.append(_no_ids(engine, rule, spec, target))
    config = engine.write_config(spec, ids if ids is not None else spec.capture_points)
    launch = engine.launch_options(spec)
    names = _names(engine, spec, embedding)
    findings += compare(engine, spec, nested(config), names, target, launch, skip_points=ids is None)
    return Examination(tuple(config), launch, ids, tuple(findings))


def would_see(engine: EngineRelease, spec: DrafterSpec, target: Target) -> EngineView | None:
    """What the release makes of `spec` (capture points ascending) in its own form; None where it stops instead."""
    if any(engine.broken_limit(spec, attribute) for attribute in engine.limits):
        return None
    ids = engine.layer_ids(spec, target)
    config = nested(engine.write_config(spec, ids if ids is not None else spec.capture_points))
    names, launch = _names(engine, spec), engine.launch_options(spec)
    return engine.view(config, names, target if ids is not None else replace(target, architecture=""), launch)


def faults(engine: EngineRelease, spec: DrafterSpec, target: Target, embedding: Embedding) -> list[Finding]:
    """What stands in the way in one release whatever is written: the target's class, limits, what it replaces."""
    findings: list[Finding] = []
    if engine.newer_than_known:
        findings.append(_newer(engine))
    if engine.standing == "unverified":
        findings.append(_unverified(engine))
    rule = engine.target(target.architecture)
    if rule is None:
        findings.append(_no_target(engine, target))
    else:
        findings += _captures(engine, rule, spec, target)
        if engine.needs_flags(spec, target):
            findings.append(_needs_flags(engine, spec))
    findings += [_flags_for_shape(engine, rule) for rule in engine.flag_rules(spec)]
    if embedding == "trained" and engine.replaces_embedding(spec):
        findings.append(_embedding_replaced(engine))
    served = engine.rules.get("served_dtype", {}).get(spec.dtype)
    if served:
        findings.append(_served_dtype(engine, spec, served))
    limit = target.max_position_embeddings if "context_limit" in engine.rules else None
    if limit is not None and spec.max_position_embeddings < limit:
        findings.append(_short_context(engine, spec, limit))
    findings += _injected(engine, spec, target)
    if "cache_widths" in engine.rules and target.cache_width not in (None, spec.cache_width):
        findings.append(_other_cache(engine, spec, target))
    return findings + [_limit(engine, spec, a) for a in engine.limits if engine.broken_limit(spec, a)]


def compare(
    engine: EngineRelease,
    spec: DrafterSpec,
    config: Mapping[str, Any],
    names: Sequence[str],
    target: Target,
    launch: Mapping[str, Any],
    skip_points: bool = False,
) -> list[Finding]:
    """What the release reads out of config, tensor names and launch options, against what was trained."""
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
    codes = {CODES.get(field, OTHER): field for field in reversed(differing)}  # one finding a code
    findings = [_not_honoured(engine, spec, field, view.spec) for field in codes.values()]
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


# --- findings ---------------------------------------------------------------------------------------------


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


def _newer(engine: EngineRelease) -> Finding:
    newest = known_releases(engine.name)[-1]
    return warning(
        "K101",
        f"{engine.title} {engine.release} is newer than the rules; those of {newest} were used",
        where=f"--engine {engine.requirement}",
        why="a release may change what it loads; nothing here has seen this one",
    )


def _unverified(engine: EngineRelease) -> Finding:
    return warning(
        "K133",
        f"{engine} is {STANDINGS[engine.standing]}",
        where=f"mappings/engines/{engine.name}.yaml",
        why="a proof shows what follows from these rules, not what this engine computes",
        fix=("compare the served acceptance length with the sample's before relying on it",),
    )


def _not_honoured(engine: EngineRelease, spec: DrafterSpec, field: str, view: DrafterSpec) -> Finding:
    value, seen = getattr(spec, field), getattr(view, field)
    return error(
        CODES.get(field, OTHER),
        f"{field} is {shown_value(value)}; {engine} computes {shown_value(seen)}",
        where=_origin(spec.origins.get(field)),
        found=shown_value(value),
        expected=shown_value(seen),
        why=engine.consequence(field),
    )


def shown_value(value: Any) -> str:
    """A value of a spec field in a message."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Latent):
        return ", ".join(f"{f.name} {shown_value(getattr(value, f.name))}" for f in fields(value))
    if isinstance(value, frozenset):
        return ", ".join(sorted(value)) or "nothing"
    if isinstance(value, tuple):
        return "[" + ", ".join("full" if v is None else str(v) for v in value) + "]"
    return str(value)


def _plugin_class(engine: EngineRelease, plugin: str) -> Finding:
    return error(
        "K163",
        f"{engine} has no draft class of the name in this config: it is that of the plugin {plugin}",
        where="architectures",
        why="it stops at start",
    )


def _origin(origin: Origin | None) -> str:
    return f"{origin.where or 'the input'} ({origin.how})" if origin else ""


def _limit(engine: EngineRelease, spec: DrafterSpec, attribute: str) -> Finding:
    limit = engine.limits[attribute]
    value: Any = spec
    for part in attribute.split("."):
        value = getattr(value, part)
    allowed = {
        "equals": lambda v: f"exactly {shown_value(v)}",
        "none_of": lambda v: "none of " + ", ".join(v),
        "one_of": lambda v: "one of " + ", ".join(map(str, v)),
    }
    [kind] = allowed.keys() & limit.keys()
    means = _MEANS.get((attribute, value), "") if isinstance(value, bool) else ""
    subject = "the number of states that feed the drafter" if attribute == "num_points" else attribute
    return error(
        CODES.get(attribute, OTHER),
        f"{means}; {engine} takes no such drafter"
        if means
        else f"{subject} is {shown_value(value)}; {engine} takes {allowed[kind](limit[kind])}",
        where=_origin(spec.origins.get(_FROM.get(attribute, attribute.partition(".")[0]))),
        found="" if means else shown_value(value),
        expected="" if means else allowed[kind](limit[kind]),
        why=limit["otherwise"],
    )


def _needs_flags(engine: EngineRelease, spec: DrafterSpec) -> Finding:
    rule = engine.rules["other_points"]
    return warning(
        NEEDS_FLAGS,
        f"{engine} feeds {describe_points(spec.capture_points)} only with {' '.join(rule['flags'])}",
        where=rule["source"].split(";")[0],
        why=rule["otherwise"],
    )


def _flags_for_shape(engine: EngineRelease, rule: Mapping[str, Any]) -> Finding:
    return warning(
        FOR_SHAPE,
        f"{engine} serves a drafter of this shape only with {' '.join(rule['flags'])}",
        where=rule["source"].split(";")[0],
        why=rule["otherwise"],
    )


def _embedding_replaced(engine: EngineRelease) -> Finding:
    return error(
        "K131",
        f"{engine} replaces the drafter's embedding by the target's, from which it was trained further",
        where="embed_tokens.weight",
        why="the drafter would read its tokens through another embedding than it was trained with",
    )


def _served_dtype(engine: EngineRelease, spec: DrafterSpec, served: str) -> Finding:
    return warning(
        "K115",
        f"{engine} serves a {spec.dtype} drafter as {served} unless told otherwise",
        where=_origin(spec.origins.get("dtype")),
        why=f"whatever the target's dtype is; values beyond {served}'s range become infinite",
        fix=("launch with --dtype bfloat16, or save the drafter as bfloat16",),
    )


def _short_context(engine: EngineRelease, spec: DrafterSpec, limit: int) -> Finding:
    return warning(
        "C214",
        f"the drafter's context limit is {spec.max_position_embeddings:,} tokens, the target's {limit:,}",
        where=_origin(spec.origins.get("max_position_embeddings")),
        why=f"past {spec.max_position_embeddings:,} tokens acceptance may fall below what drafting costs; "
        + engine.rules["context_limit"]["otherwise"],
    )


def _injected(engine: EngineRelease, spec: DrafterSpec, target: Target) -> list[Finding]:
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
            where=_origin(spec.origins.get("capture_points")),
            found=f"features of images go to the output of its first {target.injected} layers",
            expected=f"a drafter that was trained on states captured {rule['captured']} that",
            why="trainers capture before or after, and the files do not say which; if it was the other, the drafter is "
            "fed with other states wherever there is an image. Text alone is not concerned",
            fix=(f"train on points past layer {target.injected}, or measure on chats with images",),
        )
    ]


def _other_cache(engine: EngineRelease, spec: DrafterSpec, target: Target) -> Finding:
    heads = f"{spec.num_key_value_heads} heads x {spec.head_dim}"
    return warning(
        "K147",
        f"{engine} takes a drafter only if it caches as much for a token and layer as the target",
        where=_origin(spec.origins.get("num_key_value_heads")),
        found=f"{spec.cache_width:,} values: " + ("one latent" if spec.latent else f"keys and values of {heads}"),
        expected=f"{target.cache_width:,}, as the target's layers",
        why=engine.rules["cache_widths"]["otherwise"],
        fix=(f"serve with a release that groups layers by size: {_without(engine, 'cache_widths')}",),
    )


def _without(engine: EngineRelease, rule: str) -> str:
    """The known releases that have no such rule."""
    return span(engine.name, [e.release for e in all_releases(engine.name) if rule not in e.rules])


def _no_target(engine: EngineRelease, target: Target) -> Finding:
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


def _captures(engine: EngineRelease, rule: TargetRule, spec: DrafterSpec, target: Target) -> list[Finding]:
    """Whether the target class can hand out each capture point."""
    findings = []
    for point in spec.capture_points:
        capture = rule.capture(point, target.layers)
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
                where=_origin(spec.origins.get("capture_points")),
                found=f"the drafter takes {describe_points(spec.capture_points)}",
                expected=f"a release that can: {capture_table(engine.name, target.architecture, point, target.layers)}",
                why=CAPTURE_FAILS[capture] + (f" ({rule.detail})" if rule.detail else ""),
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


def _no_ids(engine: EngineRelease, rule: TargetRule, spec: DrafterSpec, target: Target) -> Finding:
    if rule.id_rule == IGNORED:
        own = engine.default_points(target)
        return error(
            "K123",
            f"{engine} reads no layer ids; of {rule.architecture} it captures {rule.default_points} and nothing else",
            where=_origin(spec.origins.get("capture_points")),
            found=describe_points(spec.capture_points),
            expected=describe_points(own) if own else "the target's number of layers (--target FOLDER) to compare",
            why="it would feed other states than those trained on",
        )
    return error(
        "K123",
        f"no list of ids makes {engine} capture {describe_points(spec.capture_points)} of {target.architecture}",
        where=_origin(spec.origins.get("capture_points")),
        found=f"id rule {rule.id_rule}",
        why=f"it would feed {rule.default_points} or other states than those trained on",
    )


__all__ = ["Examination", "compare", "examine", "shown_value", "span"]

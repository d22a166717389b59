"""What stands in a release's way whatever is written for it: limits, what it replaces, and what it needs beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from converter.checks.captures import check_captures, check_injected, no_target
from converter.drafter.drafter import Embedding
from converter.drafter.points import describe_points
from converter.drafter.spec import DrafterSpec, shown_value
from converter.drafter.target import Target
from converter.findings import Finding, error, warning
from converter.rules.engine import STANDINGS, EngineRelease
from converter.rules.loading import known_releases
from converter.rules.releases import all_releases, span

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
OTHER = "K190"  # what has no code of its own
NEEDS_FLAGS = "K127"
FOR_SHAPE = "K164"
FLAGGED = frozenset({NEEDS_FLAGS, FOR_SHAPE})  # a folder with one of these is right only as its launch line has it


def faults(engine: EngineRelease, spec: DrafterSpec, target: Target, embedding: Embedding) -> list[Finding]:
    """What stands in the way of one release whatever is written for it: K101 and K133 rules that may not be its own,
    K120 to K122, K124, K126 and K146 the target's class, K127 and K164 flags that it needs, K131 an embedding that it
    replaces, K115 the dtype, C214 the context, K147 the cache, and the code in `CODES` of each limit that is broken.
    """
    findings: list[Finding] = []
    if engine.newer_than_known:
        findings.append(_newer(engine))
    if engine.standing == "unverified":
        findings.append(_unverified(engine))
    rule = engine.target(target.architecture)
    if rule is None:
        findings.append(no_target(engine, target))
    else:
        findings += check_captures(engine, rule, spec, target)
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
    findings += check_injected(engine, spec, target)
    if "cache_widths" in engine.rules and target.cache_width not in (None, spec.cache_width):
        findings.append(_other_cache(engine, spec, target))
    return findings + [_limit(engine, spec, a) for a in engine.limits if engine.broken_limit(spec, a)]


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


def _limit(engine: EngineRelease, spec: DrafterSpec, attribute: str) -> Finding:
    limit, value = engine.limits[attribute], spec.value_of(attribute)
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
        where=spec.origin_of(_FROM.get(attribute, attribute.partition(".")[0])),
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
        where=spec.origin_of("dtype"),
        why=f"whatever the target's dtype is; values beyond {served}'s range become infinite",
        fix=("launch with --dtype bfloat16, or save the drafter as bfloat16",),
    )


def _short_context(engine: EngineRelease, spec: DrafterSpec, limit: int) -> Finding:
    return warning(
        "C214",
        f"the drafter's context limit is {spec.max_position_embeddings:,} tokens, the target's {limit:,}",
        where=spec.origin_of("max_position_embeddings"),
        why=f"past {spec.max_position_embeddings:,} tokens acceptance may fall below what drafting costs; "
        + engine.rules["context_limit"]["otherwise"],
    )


def _other_cache(engine: EngineRelease, spec: DrafterSpec, target: Target) -> Finding:
    heads = f"{spec.num_key_value_heads} heads x {spec.head_dim}"
    return warning(
        "K147",
        f"{engine} takes a drafter only if it caches as much for a token and layer as the target",
        where=spec.origin_of("num_key_value_heads"),
        found=f"{spec.cache_width:,} values: " + ("one latent" if spec.latent else f"keys and values of {heads}"),
        expected=f"{target.cache_width:,}, as the target's layers",
        why=engine.rules["cache_widths"]["otherwise"],
        fix=(f"serve with a release that groups layers by size: {_without(engine, 'cache_widths')}",),
    )


def _without(engine: EngineRelease, rule: str) -> str:
    """The known releases that have no such rule."""
    return span(engine.name, [e.release for e in all_releases(engine.name) if rule not in e.rules])

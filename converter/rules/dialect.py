"""A dialect: how drafters of one trainer look on disk, and reading them into the canonical drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from converter.checkpoint.reader import Checkpoint
from converter.drafter.drafter import Provenance
from converter.drafter.spec import NORM_FLAGS, DrafterSpec, Origin, Rope
from converter.drafter.target import Target
from converter.drafter.vocab import Form
from converter.findings import Finding, error, note, quoted, warning
from converter.rules import loading
from converter.rules.conditions import shows
from converter.rules.fields import IdMeaning, derived_dtype, lookup, read_spec
from converter.rules.fused import UNSPLIT, Fused, fused_modules, fused_tensor, split
from converter.rules.names import canonical_name, first_match, wrapper_of


@dataclass(frozen=True)
class Dialect:
    """name, title   "speculators", and as people write it
    release       of the trainer that wrote the checkpoint, "" where it does not say
    rules         the merged rules of that release (schemas/dialect.schema.json)
    """

    name: str
    title: str
    release: str
    rules: Mapping[str, Any]

    @property
    def map_form(self) -> Form:
        """How its trainer stores d2t."""
        form: Form = self.rules["vocabulary_map"]
        return form


@dataclass(frozen=True)
class DialectReading:
    """What a dialect's rules make of a checkpoint; `spec` is None where findings say why.

    checkpoint   with its fused tensors cut into their parts
    tensors   canonical name -> name in the checkpoint
    dropped   tensor -> why no engine needs it
    carried   config keys that go over as they are: last part of the key -> value
    findings       what reading the spec and the tensors' names showed
    stated_ids     the layer ids as written
    other_meaning  the id rule by which they may be meant instead, and why; None where nothing says so
    unlike         what the trainer computed and no engine does (a name in forward/unlike.py), and the finding that says
                   so where no sample shows what it costs
    """

    spec: DrafterSpec | None
    provenance: Provenance
    checkpoint: Checkpoint
    tensors: Mapping[str, str]
    dropped: Mapping[str, str]
    carried: Mapping[str, Any]
    findings: tuple[Finding, ...]
    stated_ids: tuple[int, ...] | None
    other_meaning: tuple[str, str] | None = None
    unlike: tuple[str, Finding] | None = None


def read(
    dialect: Dialect,
    config: Mapping[str, Any],
    checkpoint: Checkpoint,
    target: Target,
    points: Sequence[int] | None = None,
    given: Mapping[str, Any] | None = None,
    launch: Mapping[str, Any] | None = None,
) -> DialectReading:
    """Read spec, tensor names and provenance; `points` (from --aux) and fields `given` (--set) outrank the config.

    launch  what an engine, whose form this is, is told beside the config: value by option
    Every tensor is mapped, dropped for a stated reason, or reported; of config keys `check_stated` says so.
    """
    rules = dialect.rules
    fields = {**(given or {}), **({"capture_points": tuple(points)} if points is not None else {})}
    meaning = id_meaning(dialect, target)
    tensors: dict[str, str] = {}
    dropped: dict[str, str] = {}
    findings: list[Finding] = []
    prefix = wrapper_of(list(checkpoint.tensors))
    if prefix:
        findings.append(_unwrapped(prefix, len(checkpoint.tensors)))
    bare = [name.removeprefix(prefix) for name in checkpoint.tensors]
    table = fused_modules(rules)
    fused: list[Fused] = []
    for name, own in zip(checkpoint.tensors, bare, strict=True):
        found = fused_tensor(table, name, own)
        if found is not None:
            fused.append(found)
            continue
        canonical = canonical_name(rules["tensors"], own)
        drop = first_match(rules.get("drop", {}), own)
        if canonical is not None and canonical not in tensors:
            tensors[canonical] = name
        elif drop is not None:
            dropped[name] = rules["drop"][drop]
        else:
            findings.append(_unknown_tensor(dialect, name, tensors.get(canonical or "")))
    derived = derived_dtype(checkpoint, tensors.get("fc.weight"))
    reading = read_spec(config, rules["fields"], meaning, given=fields, derived=derived, launch=launch)
    spec = reading.spec
    plain = fields.get("rope_scaling") == "none"
    if spec is not None and (plain or "rope_theta" in fields):
        rope = Rope(spec.rope.theta) if plain else spec.rope
        origins = {**spec.origins, "rope": Origin("given", "on the command line")}
        spec = replace(spec, rope=replace(rope, theta=fields.get("rope_theta", rope.theta)), origins=origins)
    cautions = _cautions(dialect, config, fields, bare)
    findings += [*reading.findings, *(f for computed, f in cautions if not computed)]
    findings += _release_known(dialect, config)
    twice = _stated_twice(dialect, config, meaning, fields)
    findings += twice.findings
    if spec is not None and fused:
        checkpoint, tensors, faults = split(fused, spec, checkpoint, tensors)
        findings += faults
        spec = None if any(f.code in UNSPLIT for f in faults) else spec
    facts = {key: lookup(config, path) for key, path in rules.get("provenance", {}).items()}
    present = {key: lookup(config, key) for key in rules.get("carry", ())}
    carried = {key.rpartition(".")[2]: value for key, value in present.items() if value is not None}
    provenance = _provenance(dialect, facts)
    other = None if twice.agree or spec is None else _other_meaning(rules["ids"], spec.origins["capture_points"].where)
    unlike = next((caution for caution in cautions if caution[0]), None)
    return DialectReading(
        spec, provenance, checkpoint, tensors, dropped, carried, tuple(findings), reading.ids, other, unlike
    )


def id_meaning(dialect: Dialect, target: Target) -> IdMeaning:
    """What decides the capture points that a dialect's ids stand for in this target."""
    ids = dialect.rules["ids"]
    return IdMeaning(ids["rule"], target.layers, ids.get("default"), ids.get("under"))


def stated_points(dialect: Dialect, config: Mapping[str, Any], target: Target) -> tuple[int, ...] | None:
    """The points that the config states, also where --aux replaces them; None where it states none, or ids that do not
    decide.
    """
    meaning = id_meaning(dialect, target)
    for key in dialect.rules["fields"]["capture_points"].get("keys", ()):
        ids = lookup(config, key)
        if _are_ids(ids):
            return meaning.points(key, ids)
    return None


def _other_meaning(ids: Mapping[str, Any], key: str) -> tuple[str, str] | None:
    """Of ids that stand under `key`: the rule by which they may be meant instead, and why."""
    if "perhaps" not in ids:
        return None
    rule = ids["rule"] if key in ids.get("under", {}) else ids["perhaps"]["rule"]
    return rule, ids["perhaps"]["why"]


@dataclass(frozen=True)
class _Twice:
    """agree   ids stand under two keys, in the numbering of each, and name the same layers: their meaning is told"""

    findings: tuple[Finding, ...]
    agree: bool


def _stated_twice(dialect: Dialect, config: Mapping[str, Any], meaning: IdMeaning, given: Mapping[str, Any]) -> _Twice:
    """C226 for a field that two keys state differently, where the user has not said which."""
    findings = []
    agree = False
    for name, rule in dialect.rules["fields"].items():
        present = [(key, value) for key in rule.get("keys", ()) if (value := lookup(config, key)) is not None]
        if len(present) < 2 or name in given:
            continue
        (first, one), (second, other) = present[:2]
        if one == other:
            continue
        if rule.get("how") == "ids" and _points(meaning, first, one) == _points(meaning, second, other) is not None:
            agree = True
        else:
            findings.append(_differ(name, (first, one), (second, other)))
    return _Twice(tuple(findings), agree)


def _points(meaning: IdMeaning, key: str, ids: Any) -> tuple[int, ...] | None:
    return meaning.points(key, ids) if _are_ids(ids) else None


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(i) is int for i in value)


def _differ(name: str, used: tuple[str, Any], other: tuple[str, Any]) -> Finding:
    option = "--aux POINTS" if name == "capture_points" else f"--set {name}=VALUE"
    return warning(
        "C226",
        f"{used[0]} and {other[0]} do not say the same; the first is used",
        where=other[0],
        found=quoted(other[1]),
        expected=quoted(used[1]),
        why="engines read one or the other, so a server may have run it either way",
        fix=(f"say which is right: {option}",) if name in (*NORM_FLAGS, "capture_points") else (),
    )


def _unwrapped(prefix: str, count: int) -> Finding:
    return note(
        "T108",
        f"all {count} tensor names began with {prefix}, which was cut off",
        where=prefix,
        why="a training wrapper puts it there; no engine knows the names with it",
    )


def _release_known(dialect: Dialect, config: Mapping[str, Any]) -> list[Finding]:
    """C208 where the input names a release that the rules were not read from."""
    key = dialect.rules.get("release", {}).get("key", "")
    stated = lookup(config, key) if key else None
    if stated is None or (dialect.release and loading.covers(dialect.rules.get("known", ""), dialect.release)):
        return []
    return [
        warning(
            "C208",
            f"{dialect.title} {stated!s:.40} is no release that these rules know; the newest known were used",
            where=key,
            expected=dialect.rules.get("known", ""),
            why="a release may write other defaults or another meaning under the same keys",
        )
    ]


_CAUTIONS = {"lost": "C206", "meaning": "C215", "unlike": "C216"}


def _cautions(
    dialect: Dialect, config: Mapping[str, Any], given: Mapping[str, Any], names: list[str]
) -> list[tuple[str, Finding]]:
    """Known faults of the releases that wrote such a checkpoint, which nothing in it shows; none about a field that the
    user has set. Each with the name of what the trainer computed otherwise, where that can be measured, or "".
    """
    release = dialect.rules.get("release", {}).get("key", "config.json")
    return [
        (
            caution.get("computed", ""),
            warning(
                _CAUTIONS[caution.get("kind", "lost")],
                caution["message"],
                where=caution.get("where", release),
                why=caution["why"],
                fix=tuple(caution.get("fix", ())),
            ),
        )
        for caution in dialect.rules.get("cautions", ())
        if caution.get("unless_set") not in given
        and all(shows(c, config, names) for c in caution["when"])
        and not any(shows(c, config, names) for c in caution.get("unless", ()))
    ]


def _provenance(dialect: Dialect, facts: Mapping[str, Any]) -> Provenance:
    architectures = facts.get("target_architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    name = facts.get("target_name")
    return Provenance(
        dialect=dialect.name,
        release=dialect.release,
        target_name=name if isinstance(name, str) else "",
        target_architecture=first if isinstance(first, str) else "",
        speculative_tokens=_speculative_tokens(facts.get("proposals")),
        embedding_trained=facts.get("embedding_trained") not in (None, False),  # of another type: perhaps
    )


def _speculative_tokens(proposals: Any) -> int | None:
    if not isinstance(proposals, list) or not proposals or not isinstance(proposals[0], Mapping):
        return None
    tokens = proposals[0].get("speculative_tokens")
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and 0 < tokens < 1000 else None


def _unknown_tensor(dialect: Dialect, name: str, twin: str | None) -> Finding:
    if twin:
        return error(
            "T102",
            f"{name} and {twin} are the same tensor under two names",
            where=name,
            expected="one of them",
            fix=("remove the stale one from the checkpoint",),
        )
    return error(
        "T101",
        f"{name} is no tensor that {dialect.title} drafters have",
        where=name,
        why="it may carry a trained part of the drafter that no engine would load",
        fix=(f"if it is only a training leftover, convert without it: --allow T101  (it is dropped: {name})",),
    )

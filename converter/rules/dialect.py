"""A dialect: how drafters of one trainer look on disk, and reading them into the canonical drafter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from converter.checkpoint.reader import Checkpoint
from converter.drafter.drafter import Provenance
from converter.drafter.points import NAME_THEM
from converter.drafter.quantised import companion_of, weight_of
from converter.drafter.spec import NORM_FLAGS, DrafterSpec, Origin, Rope
from converter.drafter.target import Target
from converter.drafter.vocab import Form
from converter.errors import UsageError
from converter.findings import Finding, error, note, some_of, warning
from converter.rules import loading
from converter.rules.fields import IdMeaning, derived_dtype, keys_read, leaves, lookup, read_spec
from converter.rules.fused import UNSPLIT, Fused, fused_modules, fused_tensor, split
from converter.rules.names import first_match, match, translate


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
        form: Form = self.rules["vocabulary_map"]
        return form


@dataclass(frozen=True)
class Recognition:
    """`dialect` is None where no rule fits, or where `refusal` says why one that fits cannot be converted."""

    dialect: Dialect | None
    refusal: Finding | None


def recognise(config: Mapping[str, Any], tensors: Iterable[str], forced: str = "") -> Recognition:
    """Find the dialect of a checkpoint, or say what else it is; `forced` names it (--dialect) and outranks its marks.

    Dialects are asked in the order of mappings/recognition.yaml, those that are not listed there (the user's) first.
    Raises UsageError where no dialect is called `forced`.
    """
    if forced:
        return Recognition(_of(_document(forced), config), None)
    names = list(tensors)
    documents = [loading.load("dialects", name) for name in in_order()]
    for document in documents:
        for other in document.get("refuse", ()):
            if _shows(other, config, ()):
                return Recognition(None, _refused(document["title"], other, config))
    others = loading.load("", "others")
    for form in others["forms"]:
        if _all_hold(form["all"], config, names):
            return Recognition(None, _unconverted(form))
    bare = [name.removeprefix(wrapper_of(names)) for name in names]
    for document in documents:
        if any(_marked(mark, config, bare) for mark in document["recognise"]):
            return Recognition(_of(document, config), None)
    for kind in others["kinds"]:
        if _all_hold(kind["all"], config, names):
            return Recognition(None, _something_else(kind["title"]))
    return Recognition(None, None)


def may_be_drafter(config: Mapping[str, Any], tensors: Iterable[str]) -> bool:
    """Whether a checkpoint is, or was meant to be, an EAGLE-3 drafter: of a dialect, of a form that is not converted,
    by its tensors alone, or by its config alone, which is all there is where no tensor's name is known.
    """
    names = list(tensors)
    recognition = recognise(config, names)
    if recognition.refusal is not None:
        return recognition.refusal.code == "F116"
    if recognition.dialect is not None or _whose_tensors(names):
        return True
    documents = [loading.load("dialects", name) for name in in_order()]
    return any(_marked_by_config(mark, config) for document in documents for mark in document["recognise"])


def _marked_by_config(mark: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether the config shows something of a mark, and lacks nothing that only a config can show."""
    groups = [group["any"] for group in mark["all"] if "any" in group] if "all" in mark else [[mark]]
    shown = [any(_shows(condition, config, ()) for condition in group) for group in groups]
    open_ = [any("tensor" in condition for condition in group) for group in groups]
    return any(shown) and all(s or o for s, o in zip(shown, open_, strict=True))


def unrecognised(config: Mapping[str, Any], tensors: Iterable[str], file: Path) -> Finding:
    """F112 of a checkpoint that `recognise` knows nothing of; `file` is its config.json."""
    keys = ", ".join(sorted(config)[:6])
    fitting = _whose_tensors(tensors)
    named = config.get("architectures")
    if fitting and isinstance(named, list) and named:
        return error(
            "F112",
            f"the tensors are an EAGLE-3 drafter's, the class {named[0]!s:.60} in config.json is no known trainer's",
            where=f"architectures in {file}",
            expected="the class that its trainer writes",
            why="a target's class, or an engine's, does not tell what the layer ids and flags mean",
            fix=tuple(f"if it is a drafter of {title}: --dialect {name}" for name, title in fitting.items()),
        )
    return error(
        "F112",
        "the config is of no dialect that is known here",
        where=str(file),
        found=f"keys {keys}, ..." if keys else "an empty config",
        expected="a drafter of " + ", ".join(loading.load("dialects", n)["title"] for n in loading.names("dialects")),
        fix=("if its trainer writes one of these forms, say which: --dialect NAME",),
    )


def in_order() -> list[str]:
    listed: list[str] = [row["dialect"] for row in loading.load("", "recognition")["order"]]
    return [name for name in loading.names("dialects") if name not in listed] + listed


def _document(name: str) -> Mapping[str, Any]:
    known = loading.names("dialects")
    if name not in known:
        raise UsageError(f"--dialect {name}: expected one of {', '.join(known)}")
    return loading.load("dialects", name)


def marks_of(dialect: Dialect, config: Mapping[str, Any], tensors: Iterable[str]) -> list[str]:
    """The marks by which the files are this dialect's, in words; empty where they bear none (--dialect)."""
    names = list(tensors)
    bare = [name.removeprefix(wrapper_of(names)) for name in names]
    mark = next((m for m in dialect.rules["recognise"] if _marked(m, config, bare)), None)
    if mark is None:
        return []
    groups = [g["any"] for g in mark["all"] if "any" in g] if "all" in mark else [[mark]]
    shown = (next(c for c in group if _shows(c, config, bare)) for group in groups)
    return list(dict.fromkeys(_mark_words(c, config) for c in shown))


def _mark_words(condition: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    if "tensor" in condition:
        return str(condition["tensor"])
    value = lookup(config, condition["key"])
    value = value[0] if isinstance(value, list) and value else value
    if value is None:
        return f"no {condition['key']}"
    return f"{condition['key']}" + (f" = {value}" if isinstance(value, str | int | float) else "")


def _marked(mark: Mapping[str, Any], config: Mapping[str, Any], names: Sequence[str]) -> bool:
    """One way to tell a dialect: a condition, or groups of them that must all hold."""
    return _all_hold(mark["all"], config, names) if "all" in mark else _shows(mark, config, names)


def _all_hold(groups: Sequence[Mapping[str, Any]], config: Mapping[str, Any], names: Sequence[str]) -> bool:
    return all(_holds(group, config, names) for group in groups)


def _holds(group: Mapping[str, Any], config: Mapping[str, Any], names: Sequence[str]) -> bool:
    [(quantifier, conditions)] = group.items()
    met = any(_shows(condition, config, names) for condition in conditions)
    return met if quantifier == "any" else not met


def _shows(condition: Mapping[str, Any], config: Mapping[str, Any], names: Sequence[str]) -> bool:
    if "tensor" in condition:
        return any(match(condition["tensor"], name) is not None for name in names)
    if "module" in condition:
        return any(f".{condition['module']}." in f".{name}" for name in names)
    value = lookup(config, condition["key"])
    if isinstance(value, list) and value:
        value = value[0]
    if condition.get("absent"):
        return value is None
    if "equals" in condition:
        return type(value) is type(condition["equals"]) and bool(value == condition["equals"])
    if "one_of" in condition:
        return value in condition["one_of"]
    return value is not None and ("none_of" not in condition or value not in condition["none_of"])


def _unconverted(form: Mapping[str, Any]) -> Finding:
    return error("F116", f"this is {form['title']}, which is not converted", where="config.json and tensor names",
                 why=form["why"], fix=tuple(form.get("fix", ())))  # fmt: skip


_GIVE_ANOTHER = ("give the folder of an EAGLE-3 drafter; of which trainers: eagle3 dialects",)


def _something_else(title: str) -> Finding:
    return error(
        "F112",
        f"this is no EAGLE-3 drafter but {title}",
        where="config.json and tensor names",
        expected="an EAGLE-3 drafter",
        fix=_GIVE_ANOTHER,
    )


def _of(document: Mapping[str, Any], config: Mapping[str, Any]) -> Dialect:
    stated = lookup(config, document["release"]["key"]) if "release" in document else None
    release = stated if isinstance(stated, str) and _is_release(stated) else ""
    rules = loading.for_release(document, release or None, lambda condition: _shows(condition, config, ()))
    return Dialect(document["dialect"], document["title"], release, rules)


def _is_release(text: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _refused(title: str, condition: Mapping[str, Any], config: Mapping[str, Any]) -> Finding:
    return error(
        "F112",
        f"this is no EAGLE-3 drafter: {condition['why']}",
        where=f"{condition['key']} in config.json",
        found=str(lookup(config, condition["key"])),
        expected=f"an EAGLE-3 drafter of {title}",
        fix=_GIVE_ANOTHER,
    )


@dataclass(frozen=True)
class DialectReading:
    """What a dialect's rules make of a checkpoint; `spec` is None where findings say why.

    checkpoint   with its fused tensors cut into their parts
    tensors   canonical name -> name in the checkpoint
    dropped   tensor -> why no engine needs it
    carried   config keys that go over as they are: last part of the key -> value
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
    Every tensor and config key is mapped, dropped for a stated reason, or reported.
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
        canonical = _canonical(rules["tensors"], own)
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
    if spec is not None and "rope_theta" in fields:
        origins = {**spec.origins, "rope": Origin("given", "on the command line")}
        spec = replace(spec, rope=replace(spec.rope, theta=fields["rope_theta"]), origins=origins)
    if spec is not None and fields.get("rope_scaling") == "none":
        origins = {**spec.origins, "rope": Origin("given", "on the command line")}
        spec = replace(spec, rope=Rope(spec.rope.theta), origins=origins)
    cautions = _cautions(dialect, config, fields, bare)
    unread = _unread_ids(dialect, config, spec, bare)
    said = {f.where for f in unread}
    findings += [*reading.findings, *unread, *(f for f in _unknown_keys(dialect, config) if f.where not in said)]
    findings += [
        *_miscounted(config, spec),
        *_tied(config, spec, tensors),
        *(f for computed, f in cautions if not computed),
    ]
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
    ids = dialect.rules["ids"]
    return IdMeaning(ids["rule"], target.layers, ids.get("default"), ids.get("under"))


def stated_points(dialect: Dialect, config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The points that the config states, also where --aux replaces them."""
    for key in dialect.rules["fields"]["capture_points"].get("keys", ()):
        ids = lookup(config, key)
        if isinstance(ids, list) and all(isinstance(i, int) for i in ids):
            return id_meaning(dialect, Target()).points(key, ids)
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


# Keys in which engines look for the number of states before they count the ids (vllm 0.33.0 models/llama_eagle3.py
# :210-217, qwen3_eagle3.py:201-210; sglang 0.5.23 models/llama_eagle3.py:149-154). What is written has the right one.
_COUNTS = ("num_aux_hidden_states", "num_aux_layers")


def _miscounted(config: Mapping[str, Any], spec: DrafterSpec | None) -> list[Finding]:
    """C226 where the config states another number of captured states than it names."""
    if spec is None or spec.origins["capture_points"].how != "stated":
        return []
    where = spec.origins["capture_points"].where
    return [
        warning(
            "C226",
            f"{key} and {where} do not say the same; the ids are used",
            where=key,
            found=f"{lookup(config, key)!r:.40} captured states",
            expected=f"{spec.num_points}, as many as {where} has",
            why="engines build fc for the number under this key, and feed it the states of the ids",
            fix=(f"set {key} to {spec.num_points}, or leave it out",),
        )
        for key in leaves(config)
        if key.rpartition(".")[2] in _COUNTS and lookup(config, key) not in (None, spec.num_points)
    ]


def _unread_ids(
    dialect: Dialect, config: Mapping[str, Any], spec: DrafterSpec | None, names: Sequence[str]
) -> list[Finding]:
    """A111 where the config names layers under a key in which this trainer writes none, so they are passed over."""
    if spec is None or spec.origins["capture_points"].how != "default" or not dialect.rules["recognise"]:
        return []  # an engine that is read as a dialect has no marks, and its default is what was asked for
    known = keys_read(dialect.rules["fields"])
    passed = [key for key in leaves(config) if key.endswith(_IDS) and key not in known and lookup(config, key)]
    if not passed:
        return []
    ids = lookup(config, passed[0])
    return [
        error(
            "A111",
            f"{passed[0]} names layers, and {dialect.title} drafters have none there",
            where=passed[0],
            found=repr(ids)[:120],
            expected=f"no ids: {dialect.title} takes the capture points {dialect.rules['ids'].get('default', '')}",
            why="somebody else wrote them, and they mean other layers by who it was; unread, wrong states are fed",
            fix=(
                NAME_THEM,
                *(
                    f"or have it read as a drafter of {title}: --dialect {name}"
                    for name, title in _whose_tensors(names).items()
                    if passed[0] in keys_read(_document(name)["fields"])
                ),
            ),
        )
    ]


_IDS = "aux_hidden_state_layer_ids"


def _whose_tensors(names: Iterable[str]) -> dict[str, str]:
    """Dialects, name -> title, whose tables speak of every tensor, fc among them."""
    own = list(names)
    bare = [name.removeprefix(wrapper_of(own)) for name in own]
    documents = [_document(name) for name in loading.names("dialects")] if "fc.weight" in bare else []
    return {
        rules["dialect"]: rules["title"]
        for rules in documents
        if all(_canonical(rules["tensors"], n) or first_match(rules.get("drop", {}), n) for n in bare)
    }


def _tied(config: Mapping[str, Any], spec: DrafterSpec | None, tensors: Mapping[str, str]) -> list[Finding]:
    """C244 where the config ties the head to the embedding and the checkpoint has a head of its own."""
    if spec is None or spec.tie_word_embeddings or config.get("tie_word_embeddings") is not True:
        return []
    if "lm_head.weight" not in tensors:
        return []
    return [
        note(
            "C244",
            "tie_word_embeddings is true though the drafter has a head of its own; false is written",
            where="tie_word_embeddings",
            found=f"{tensors['lm_head.weight']} with a row for each of {spec.draft_vocab_size:,} draft tokens",
            expected="false",
            why="served as it lies there, an engine that reads the key takes the embedding for the head",
        )
    ]


def _points(meaning: IdMeaning, key: str, ids: Any) -> tuple[int, ...] | None:
    whole = isinstance(ids, list) and all(type(i) is int for i in ids)
    return meaning.points(key, ids) if whole else None


def _differ(name: str, used: tuple[str, Any], other: tuple[str, Any]) -> Finding:
    option = "--aux POINTS" if name == "capture_points" else f"--set {name}=VALUE"
    return warning(
        "C226",
        f"{used[0]} and {other[0]} do not say the same; the first is used",
        where=other[0],
        found=repr(other[1])[:120],
        expected=repr(used[1])[:120],
        why="engines read one or the other, so a server may have run it either way",
        fix=(f"say which is right: {option}",) if name in (*NORM_FLAGS, "capture_points") else (),
    )


def _canonical(table: Mapping[str, str], name: str) -> str | None:
    """What a tensor is; the scales of a quantised weight follow their weight."""
    weight = weight_of(name)
    if weight is None:
        return translate(table, name)
    canonical = translate(table, weight)
    return None if canonical is None else companion_of(name, canonical)


# What training wrappers put before every name: DistributedDataParallel, torch.compile, trainers' own modules.
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "draft_model.", "model.")


def wrapper_of(names: Sequence[str]) -> str:
    """The prefix that every tensor bears, "" where there is none: cutting one off some names would corrupt them."""
    prefix = ""
    while names:
        found = next((w for w in _WRAPPERS if all(n.startswith(prefix + w) for n in names)), None)
        if found is None:
            return prefix
        prefix += found
    return prefix


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
        and all(_shows(c, config, names) for c in caution["when"])
        and not any(_shows(c, config, names) for c in caution.get("unless", ()))
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


_MOST_UNKNOWN = 100  # keys that have a finding of their own


def _unknown_keys(dialect: Dialect, config: Mapping[str, Any]) -> list[Finding]:
    rules = dialect.rules
    known = {mark["key"] for mark in rules["recognise"] if "key" in mark}
    known |= {*rules.get("ignore", {}), *rules.get("provenance", {}).values(), *rules.get("carry", ())}
    known |= {rules["release"]["key"]} if "release" in rules else set()
    known |= keys_read(rules["fields"])
    known |= {key for key in leaves(config) if key.rpartition(".")[2] in _COUNTS}
    why = "if it changes what the drafter computes, the engine will not know"
    # Neither it nor what it lies in.
    unknown = [leaf for leaf in leaves(config) if known.isdisjoint(accumulate(leaf.split("."), "{}.{}".format))]
    findings = [
        warning(
            "C204",
            f"config key {leaf} is not known to the {dialect.title} rules; it is not carried over",
            where=leaf,
            found=repr(lookup(config, leaf))[:120],
            why=why,
        )
        for leaf in unknown[:_MOST_UNKNOWN]
    ]
    if len(unknown) > _MOST_UNKNOWN:
        more = len(unknown) - _MOST_UNKNOWN
        findings.append(
            warning(
                "C204",
                f"{more:,} more config keys are not known to the {dialect.title} rules; they are not carried over",
                where="config.json",
                found=some_of(unknown[_MOST_UNKNOWN:]),
                why=why,
            )
        )
    return findings

"""What was read out of a package, held against the rules of a release."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from converter.drafter.spec import NORM_FLAGS
from converter.errors import UsageError
from converter.rules import loading
from converter.rules.ids import WITHOUT_IDS
from converter.rules.loading import known_releases
from converter.rules.targets import TargetRule, architectures, target_rule
from converter.upkeep.config_keys import COMPUTED, REQUIRED, Read
from converter.upkeep.digest import digest_of
from converter.upkeep.drafts import DraftReading
from converter.upkeep.reading import IDS, Reading
from converter.upkeep.source import CannotTell, Class
from converter.upkeep.targets import UNTOLD, TargetReading

Kind = Literal["same", "open", "new", "gone", "changed", "cannot tell"]
DIFFERENT: tuple[Kind, ...] = ("new", "gone", "changed", "cannot tell")

_ROPE_KEYS = {"rope_flat": ("rope_theta", "rope_scaling"), "rope_parameters_first": ("rope_parameters",)}
_CONTAINERS = frozenset({"self_attn", "mlp", "attn"})  # parts of names in a layer that hold modules and no weights


@dataclass(frozen=True)
class Entry:
    """One thing that the mapping states or the package holds.

    kind      same; open: the mapping does not say either; new: in the package and not in the mapping; gone: the other
              way round; changed; cannot tell: look at `place`
    area      draft class, config key, tensor name, limit, ids or target class
    mapping   what the mapping says, "" for nothing; package: what was read
    note      what else helps to judge it
    """

    kind: Kind
    area: str
    name: str
    mapping: str
    package: str
    place: str
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """`against` is the release whose rules were compared: that of the package, or the newest known before it."""

    reading: Reading
    engine: str
    against: str
    entries: tuple[Entry, ...]

    @property
    def release(self) -> str:
        return self.reading.package.release

    @property
    def different(self) -> tuple[Entry, ...]:
        return tuple(e for e in self.entries if e.kind in DIFFERENT)


def nearest_known(engine: str, release: str) -> str:
    """The release itself where it is known, else the newest known before it. Raises UsageError: older than all."""
    from packaging.version import InvalidVersion, Version

    known = known_releases(engine)
    try:
        before = [r for r in known if Version(r) <= Version(release)]
    except InvalidVersion as problem:
        raise UsageError(f"{engine} {release}: this is no release number") from problem
    if not before:
        raise UsageError(f"{engine} {release} is older than all that is known; the first is {known[0]}")
    return max(before, key=Version)


def written_architectures(engine: str, against: str) -> tuple[str, ...]:
    """The draft classes that the rules of a release write into a config."""
    rule = loading.for_release(loading.load("engines", engine), against)["write"]["architectures"]
    values = [rule[key] for key in ("value", "then", "else") if key in rule]
    return tuple(dict.fromkeys(name for value in values for name in value))


def compare(engine: str, against: str, reading: Reading) -> Comparison:
    """Every entry, in the order of areas."""
    rules = loading.for_release(loading.load("engines", engine), against)
    looked_at: Mapping[str, Any] = rules.get("package", {})
    entries = [
        *_draft_classes(engine, against, reading, looked_at),
        *_unread(reading),
        *_config(rules, reading, looked_at),
        *_names(rules, reading, looked_at),
        *_limits(rules, reading),
        *_ids(engine, against, rules, reading, looked_at),
        *_targets(engine, against, reading, looked_at),
    ]
    return Comparison(reading, engine, against, tuple(_read_by_hand(e, reading, looked_at) for e in entries))


# --- draft classes --------------------------------------------------------------------------------------------


def _draft_classes(engine: str, against: str, reading: Reading, looked_at: Mapping[str, Any]) -> Iterator[Entry]:
    area = "draft class"
    written = written_architectures(engine, against)
    other = looked_at.get("draft_architectures", {})
    for name, cls in sorted(reading.names.drafts.items()):
        if name in written or name in other:
            yield Entry("same", area, name, "written" if name in written else other[name], cls.name, cls.place)
        else:
            yield Entry("new", area, name, "", cls.name, cls.place, "a draft class that the rules do not name")
    for name in written:
        if name not in reading.names.drafts:
            yield Entry("gone", area, name, "written into config.json", "", "", "the package has no such draft class")


def _unread(reading: Reading) -> Iterator[Entry]:
    for name, fact in sorted(reading.names.unread.items()):
        yield Entry("cannot tell", "class", name, "", "", fact.place, fact.why)


# --- config keys ----------------------------------------------------------------------------------------------


def _config(rules: Mapping[str, Any], reading: Reading, looked_at: Mapping[str, Any]) -> Iterator[Entry]:
    area = "config key"
    read: dict[str, Read] = {}
    for draft in reading.drafts.values():
        for key, how in draft.config.items():
            read.setdefault(key, how)
    stated = _stated_keys(rules)
    written = {path: rule.get("field", rule.get("when", "")) for path, rule in rules["write"].items()}
    ignored = looked_at.get("config_keys", {})
    for key, how in sorted(read.items()):
        field = stated.get(key) or written.get(key)
        rule = rules["read"].get(field, {})
        if key not in stated and key in written and "fixed" in rule:
            fixed = f"{field} is fixed at {_shown(rule['fixed'])}"
            yield Entry("changed", area, key, fixed, f"read, default {_shown(how.default)}", how.place)
        elif key in stated:
            yield _default(area, key, rule, how)
        elif key in written or key in ignored:
            yield Entry("same", area, key, ignored.get(key, "written"), "read", how.place)
        else:
            yield Entry("new", area, key, "", f"read, default {_shown(how.default)}", how.place)
    for key, field in sorted(stated.items()):
        if field == "capture_points":
            continue
        without = [name for name, draft in reading.drafts.items() if key not in draft.config]
        if field in NORM_FLAGS and without and key in read:
            first = next(iter(without))
            yield Entry("gone", area, key, f"read as {field}", "", reading.names.drafts[first].place, f"not by {first}")
        elif key not in read and not _elsewhere(key, reading):
            places = [reading.names.drafts[n].place for n in reading.drafts]
            yield Entry("gone", area, key, f"read as {field}", "", ", ".join(places), "no draft class reads it")


def _stated_keys(rules: Mapping[str, Any]) -> dict[str, str]:
    """Config key -> the field that the rules read from it."""
    stated: dict[str, str] = {}
    for field, rule in rules["read"].items():
        keys = list(_ROPE_KEYS.get(rule.get("how"), ()) if rule.get("keys") == [""] else rule.get("keys", ()))
        for key in (k for k in keys if k):
            stated.setdefault(key, field)
    return stated


def _default(area: str, key: str, rule: Mapping[str, Any], how: Read) -> Entry:
    """A key that both read: what an absent one means."""
    expected = rule.get("default")
    literal = isinstance(expected, bool | int | float | str) and how.default not in (REQUIRED, COMPUTED)
    if literal and (how.default or False) != (expected or False):
        told = f"default {_shown(expected)}"
        return Entry("changed", area, key, told, f"default {_shown(how.default)}", how.place)
    return Entry("same", area, key, "read", "read", how.place)


def _elsewhere(key: str, reading: Reading) -> bool:
    import re

    return re.search(rf"\b{re.escape(key.rpartition('.')[2])}\b", reading.elsewhere) is not None


def _shown(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)


# --- tensor names ---------------------------------------------------------------------------------------------


def _names(rules: Mapping[str, Any], reading: Reading, looked_at: Mapping[str, Any]) -> Iterator[Entry]:
    area = "tensor name"
    draft = _all(reading.drafts.values())
    mapped = [*rules["tensors"], *rules["ignored_tensors"]]
    ignored = looked_at.get("tensor_names", {})
    inner = {new.split(".")[0] for new, _ in draft.renames.values()}
    roots = {r: p for r, p in draft.roots.items() if r not in inner or r in _roots(mapped) or r == "layers"}
    roots.update({old.split(".")[0]: place for old, (_, place) in draft.renames.items()})
    roots.update({name.strip("."): place for name, place in draft.special.items() if name not in draft.leaves})
    stacks = {whole for whole, _ in draft.stacked.values()}
    leaves = {leaf: p for leaf, p in draft.leaves.items() if leaf not in _CONTAINERS | stacks}
    leaves.update({part: place for part, (whole, place) in draft.stacked.items() if whole in draft.leaves})
    for stated, found, what in ((_roots(mapped), roots, ""), (_leaves(mapped), leaves, "in a layer: ")):
        for name in sorted(stated | found.keys()):
            if name in stated and name in found:
                yield Entry("same", area, what + name, "loaded", "loaded", found[name])
            elif name in found and name in ignored:
                yield Entry("same", area, what + name, ignored[name], "loaded", found[name])
            elif name in found:
                yield Entry("new", area, what + name, "", "loaded", found[name])
            else:
                places = ", ".join(reading.names.drafts[n].place for n in reading.drafts)
                yield Entry("gone", area, what + name, "loaded", "", places, "no module or rename of that name")
    for old, (new, place) in sorted(draft.renames.items()):
        if old == "midlayer" and new != "layers.0":
            yield Entry("changed", area, f"rename of {old}", "layers.0", new, place)


def _all(drafts: Iterable[DraftReading]) -> DraftReading:
    every = DraftReading()
    for draft in drafts:
        for part in ("roots", "leaves", "renames", "stacked", "special"):
            getattr(every, part).update(getattr(draft, part))
    return every


def _roots(names: Sequence[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def _leaves(names: Sequence[str]) -> set[str]:
    return {name.split(".")[-2] for name in names if name.split(".")[0] in ("midlayer", "layers")}


# --- limits and ids -------------------------------------------------------------------------------------------


def _limits(rules: Mapping[str, Any], reading: Reading) -> Iterator[Entry]:
    for name in ("num_hidden_layers", "num_points", "hidden_act"):
        rule = rules.get("limits", {}).get(name, {})
        expected = str(rule["equals"]) if "equals" in rule else ", ".join(map(str, rule.get("one_of", ())))
        for architecture, draft in reading.drafts.items():
            fact = draft.limits[name]
            kind: Kind = "same" if fact.value == expected else "changed"
            kind = "cannot tell" if fact.value == UNTOLD else kind
            yield Entry(
                kind, "limit", f"{name} of {architecture}", expected or "any", fact.value or "any", fact.place, fact.why
            )


def _ids(
    engine: str, against: str, rules: Mapping[str, Any], reading: Reading, looked_at: Mapping[str, Any]
) -> Iterator[Entry]:
    rows = [target_rule(engine, against, a) for a in architectures(engine, against)]
    reads_ids = any(row is not None and row.id_rule not in WITHOUT_IDS for row in rows)
    expected = set(rules["read"]["capture_points"].get("keys", ())) if reads_ids else set()
    ignored = looked_at.get("config_keys", {})
    for key in sorted(expected | reading.ids.keys()):
        if key in expected and key in reading.ids:
            yield Entry("same", "ids", key, "read", "read", reading.ids[key].place)
        elif key in reading.ids and key in ignored:
            yield Entry("same", "ids", key, ignored[key], "read", reading.ids[key].place)
        elif key in reading.ids:
            yield Entry("new", "ids", key, "", "read", reading.ids[key].place, "another key from which ids are read")
        else:
            yield Entry("gone", "ids", key, "read", "", "", "ids are read from no such key")
    for place in reading.ids_unread:
        yield Entry("cannot tell", "ids", IDS, "", "", place, "the key is named, and no read of it is recognised")


# --- target classes -------------------------------------------------------------------------------------------


def _targets(engine: str, against: str, reading: Reading, looked_at: Mapping[str, Any]) -> Iterator[Entry]:
    known = set(architectures(engine, against))
    ignored = looked_at.get("target_classes", {})
    for architecture, target in sorted(reading.targets.items()):
        row = target_rule(engine, against, architecture)
        if row is not None:
            yield from _one_target(row, target)
        elif architecture in ignored:
            yield Entry("same", "target class", architecture, ignored[architecture], "", target.id_rule.place)
        elif _could_be_served(architecture, reading):
            told = ", ".join(f"{column} {fact.value}" for column, fact in target.facts.items())
            untold = next((f for f in target.facts.values() if f.value == UNTOLD), None)
            note = f"{untold.why} ({untold.place})" if untold is not None else ""
            yield Entry("new", "target class", architecture, "", told, target.id_rule.place, note)
    for architecture in sorted(known - reading.targets.keys() - reading.names.unread.keys()):
        row = target_rule(engine, against, architecture)
        yield Entry("gone", "target class", architecture, row.id_rule if row else "", "", "", "no such target class")


def _could_be_served(architecture: str, reading: Reading) -> bool:
    """By the release's own list of model types, where it has one: what a class is called tells its type nearly."""
    if architecture.endswith("Model"):
        return False  # without a head; compared only where the mapping names it
    families = [f.replace("_", "") for f in reading.names.families]
    return not families or any(f in architecture.lower() for f in families)


def _one_target(row: TargetRule, target: TargetReading) -> Iterator[Entry]:
    never = all(f.value in ("error", "never_captured") for f in (target.embedding, target.inner, target.last))
    unread = row.id_rule == "unknown" or {row.embedding, row.inner, row.last} == {"unknown"}
    for column, fact in target.facts.items():
        expected = getattr(row, column)
        kind: Kind = "same" if fact.value == expected else "changed"
        if kind == "changed" and (expected == "unknown" or unread):
            kind = "open"  # nobody vouches for the value, and reading alone does not settle it
        elif fact.value == UNTOLD:
            # Where nothing is ever handed out, ids and default points mean nothing.
            kind = "same" if never and column in ("id_rule", "default_points") else "cannot tell"
        yield Entry(kind, "target class", f"{row.architecture} {column}", expected, fact.value, fact.place, fact.why)


# --- what somebody has read -----------------------------------------------------------------------------------


def _read_by_hand(entry: Entry, reading: Reading, looked_at: Mapping[str, Any]) -> Entry:
    """What cannot be told is the same as in the mapping if somebody read just this code and wrote down its digest."""
    if entry.kind != "cannot tell":
        return entry
    found = _class_at(reading, entry.place)
    if found is None:
        return entry
    key, digest = f"{reading.source.short(found.module.path)} {found.name}", digest_of(found)
    if digest in looked_at.get("read_by_hand", {}).get(key, ()):
        return Entry(
            "same", entry.area, entry.name, entry.mapping, "read by hand", entry.place, f"{key} is as it was read"
        )
    told = f"{entry.note}; once read by hand, add to package.read_by_hand: {{{key!r}: [{digest}]}}"
    return Entry(entry.kind, entry.area, entry.name, entry.mapping, entry.package, entry.place, told)


def _class_at(reading: Reading, place: str) -> Class | None:
    path, _, line = place.rpartition(":")
    try:
        module = reading.source.module(reading.source.prefix + path)
    except CannotTell:
        return None
    for cls in module.classes if module is not None and line.isdigit() else ():
        if cls.node.lineno <= int(line) <= (cls.node.end_lineno or 0):
            return cls
    return None

"""An engine release: what it loads from a drafter folder, what it computes, and how to start it.

The same rules serve both directions: `write_config` and `names_for` put a drafter into the form that the release
loads, `view` says what the release makes of files in that form. Whatever differs between the two is what
the engine would silently do wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any, Literal

from converter.drafter.layout import expected_tensors
from converter.drafter.points import describe_point
from converter.drafter.quantised import companion_of, weight_of
from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.errors import UsageError
from converter.rules import ids as id_rules
from converter.rules import loading
from converter.rules.behaviours import EMBEDDINGS, LAUNCH, POINTS, WRITERS
from converter.rules.fields import IdMeaning, SpecReading, has_field, lay_flat, lookup, read_spec
from converter.rules.names import first_match, translate, translate_back
from converter.rules.targets import TargetRule, target_rule

_NAME = re.compile(r"[A-Za-z][\w.-]*")
_EXPECTED = (
    "--engine {!r}: expected NAME, NAME==RELEASE or NAME>=RELEASE, such as sglang==0.5.23; for several engines give "
    "the option several times"
)


Standing = Literal["run", "read", "unverified"]

# How far the rules of a release go, in the words of every report.
STANDINGS: Mapping[Standing, str] = {
    "run": "its own classes were run",
    "read": "rules read from source",
    "unverified": "unverified: rules read from source, never run here",
}


@dataclass(frozen=True)
class ConfigEntry:
    """One key of the config to write: `path` is dotted, `origin` says which field or rule it comes from."""

    path: str
    value: Any
    origin: str


@dataclass(frozen=True)
class EngineView:
    """What a release makes of a folder.

    spec       None where it could not even be read
    received   canonical name -> name in the folder, for parameters that get a value
    missing    parameters that keep their initial value
    ignored    names in the folder that go nowhere
    """

    spec: DrafterSpec | None
    received: Mapping[str, str]
    missing: tuple[str, ...]
    ignored: tuple[str, ...]


@dataclass(frozen=True)
class EngineRelease:
    """One release of an engine with its merged rules (schemas/engine.schema.json).

    plugin   the package whose draft class serves in place of the release's own; "" for its own
    facts    what the input says of its making, by the names that write rules use (`fact`); of dialects' forms alone
    """

    name: str
    title: str
    release: str
    rules: Mapping[str, Any]
    proved: bool
    newer_than_known: bool = False
    plugin: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name} {self.release}"

    @property
    def requirement(self) -> str:
        """As `--engine` takes it."""
        return f"{self.name}=={self.release}"

    @property
    def standing(self) -> Standing:
        """`unverified` where no release of the engine was ever run, not even another one."""
        if self.proved:
            return "run"
        return "read" if loading.load("engines", self.name)["proved"] else "unverified"

    def serving(self, spec: DrafterSpec) -> EngineRelease:
        """This release with the rules that it has for drafters of this kind (`variants`)."""
        rules = self.rules
        for rare, changes in rules.get("variants", {}).items():
            if getattr(spec, rare) is not None:
                rules = loading.with_changes(rules, changes)
        return self if rules is self.rules else replace(self, rules=rules)

    @property
    def takes_plugin(self) -> bool:
        """Whether there is a plugin for this release, and it is not the one that serves already."""
        return "plugin" in self.rules and not self.plugin

    def with_plugin(self) -> EngineRelease:
        """This release with the plugin's draft class in place of its own."""
        return replace(self, rules=self._plugin_rules, plugin=self.rules["plugin"]["package"])

    @cached_property
    def _plugin_rules(self) -> Mapping[str, Any]:
        return loading.with_changes(self.rules, self.rules["plugin"]["changes"])

    def plugged(self, spec: DrafterSpec) -> EngineRelease | None:
        """This release with its plugin; None where it takes none, or none for drafters of this kind (`variants`)."""
        rare = any(getattr(spec, field) is not None for field in self.rules.get("variants", ()))
        return self.with_plugin() if self.takes_plugin and not rare else None

    def serving_config(self, config: Mapping[str, Any]) -> EngineRelease:
        """This release with the rules that it has for drafters of the kind that a config in its own form describes: it
        holds the field, by the variant's own rule, or names the variant's class, or the plugin's.
        """
        rules, named = self.rules, _draft_class(config)
        if self.takes_plugin and named in rules["plugin"]["changes"]["draft_classes"]["names"]:
            return self.with_plugin()
        for rare, changes in rules.get("variants", {}).items():
            changed = loading.with_changes(rules, changes)
            own = changes.get("write", {}).get("architectures", {}).get("value", ())
            if named in own or has_field(config, rare, changed["read"].get(rare, {})):
                rules = changed
        return self if rules is self.rules else replace(self, rules=rules)

    @property
    def points_at_launch(self) -> bool:
        """Whether the capture points are named where the drafter is launched, and not in the folder."""
        return "launch" in self.rules["read"]["capture_points"]

    def target(self, architecture: str) -> TargetRule | None:
        return target_rule(self.name, self.release, architecture)

    def treatment(self, target: Target) -> tuple[int, TargetRule | None]:
        """The same for releases of this engine that treat every drafter of this target alike (while both are held)."""
        return id(self.rules), self.target(target.architecture)

    def layer_ids(self, spec: DrafterSpec, target: Target) -> tuple[int, ...] | None:
        """The ids that make this release capture the spec's points in `target`; None where none do.

        Where a release reads no ids, its own points are reached by any list: the one for the first release that
        reads any is written, so that one folder serves both.
        """
        rule = self.target(target.architecture)
        if rule is None:
            return None
        if rule.id_rule == id_rules.IGNORED:
            if self.default_points(target) != tuple(sorted(spec.capture_points)):
                return None
            reading = self.releases_reading_ids(target.architecture)
            later = target_rule(self.name, reading[0], target.architecture) if reading else None
            return id_rules.solve(later.id_rule if later else "literal", spec.capture_points, target.layers)
        return id_rules.solve(rule.id_rule, spec.capture_points, target.layers)

    def releases_reading_ids(self, architecture: str) -> list[str]:
        """Known releases in which ids select the layers of that target class."""
        rules = [(r, target_rule(self.name, r, architecture)) for r in known_releases(self.name)]
        return [r for r, rule in rules if rule is not None and rule.id_rule not in id_rules.WITHOUT_IDS]

    def default_points(self, target: Target) -> tuple[int, ...] | None:
        """The points that this release captures where it has no ids; None for an unknown class or depth."""
        rule = self.target(target.architecture)
        if rule is None or target.layers is None:
            return None
        return tuple(sorted(set(POINTS[rule.default_points](target.layers))))

    def needs_flags(self, spec: DrafterSpec, target: Target) -> bool:
        """True where other points than the default hold only with `other_points.flags` on the command line."""
        return "other_points" in self.rules and self.default_points(target) != tuple(sorted(spec.capture_points))

    def flag_rules(self, spec: DrafterSpec) -> list[Mapping[str, Any]]:
        """Of `needs_flags`, the rules whose flags this drafter needs on the command line."""
        rules = self.rules.get("needs_flags", {})
        return [rule for attribute, rule in rules.items() if getattr(spec, attribute) != rule["unless_equals"]]

    def names_for(self, canonical: str) -> str | None:
        """The name under which this release loads a canonical tensor; None where it does not.

        The scales of a quantised weight go with their weight.
        """
        weight = weight_of(canonical)
        names = self._written_as(weight or canonical)
        if not names:
            return None
        return names[0] if weight is None else companion_of(canonical, names[0])

    def replaces_embedding(self, spec: DrafterSpec) -> bool:
        """True where the release runs the drafter with the target's embedding even if it has its own."""
        return EMBEDDINGS[self.rules["embedding"]](spec.target_hidden_size, spec.hidden_size)

    @property
    def never_quantised(self) -> tuple[str, ...]:
        """Canonical weights that this release builds in full precision whatever the config says."""
        return tuple(self.rules.get("never_quantised", ()))

    def write_config(self, spec: DrafterSpec, layer_ids: tuple[int, ...]) -> list[ConfigEntry]:
        entries = []
        for path, rule in self.rules["write"].items():
            if "value" in rule:
                entries.append(ConfigEntry(path, rule["value"], f"{self.name} rules"))
                continue
            if "when" in rule:
                chosen = rule.get("then" if getattr(spec, rule["when"]) else "else")
                if chosen is not None:
                    entries.append(ConfigEntry(path, chosen, rule["when"]))
                continue
            origin = rule.get("field") or rule["fact"]
            if "fact" in rule:
                value = self.facts.get(origin)
                value = rule.get("else") if value is None else value
            else:
                value = layer_ids if origin == "layer_ids" else getattr(spec, origin)
            if "unless_equals" in rule and value == getattr(spec, rule["unless_equals"]):
                continue
            written = None if value is None else WRITERS[rule.get("how", "plain")](value)
            if written is not None:
                entries.append(ConfigEntry(path, written, origin))
        return entries

    def launch_options(self, spec: DrafterSpec) -> dict[str, Any]:
        """What carries what the config cannot: option, or word of the launch templates -> value."""
        options = {}
        for name, rule in self.rules["read"].items():
            if "launch" in rule:
                value = LAUNCH[rule["how"]].to_option(getattr(spec, name))
                if value is not None:
                    options[rule["launch"]] = value
        return options

    def view(
        self, config: Mapping[str, Any], names: Iterable[str], target: Target, launch: Mapping[str, Any]
    ) -> EngineView:
        """What this release makes of a config, tensor names and launch options."""
        return self.loads(self.read_config(config, target, launch).spec, names)

    def laid_flat(self, config: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
        """The config in the layout that `read` describes, and why there is none: one of another layout that this
        release knows has its keys brought to the top.
        """
        for key, layout in self.rules.get("layouts", {}).items():
            if lookup(config, key) is not None:
                flat = lay_flat(config, layout["base"], layout["keys"]) if "base" in layout else None
                return flat, "" if flat is not None else layout["otherwise"]
        return config, ""

    def read_config(
        self,
        config: Mapping[str, Any],
        target: Target,
        launch: Mapping[str, Any],
        *,
        given: Mapping[str, Any] | None = None,
        derived: Mapping[str, tuple[Any, str]] | None = None,
    ) -> SpecReading:
        """The spec that this release reads; `given` and `derived` as in `read_spec`."""
        rule = self.target(target.architecture)
        meaning = IdMeaning(rule.id_rule if rule else "literal", target.layers, rule.default_points if rule else None)
        reading = read_spec(config, self.rules["read"], meaning, given=given, derived=derived, launch=launch)
        if reading.spec is None:
            return reading
        # Engines capture while they walk through the layers, whatever the order of the ids, and each layer once.
        points = tuple(sorted(set(reading.spec.capture_points)))
        return replace(reading, spec=replace(reading.spec, capture_points=points))

    def loads(self, spec: DrafterSpec | None, names: Iterable[str]) -> EngineView:
        """Where tensors of these names go in a drafter that this release builds by `spec`."""
        if spec is None:
            return EngineView(None, {}, (), tuple(names))
        wanted = expected_tensors(spec)
        received: dict[str, str] = {}
        packed: set[str] = set()  # weights that come with scales, perhaps under another name than `weight`
        ignored = []
        for name in names:
            canonical = self._read_as(weight_of(name) or name)
            if canonical in wanted and weight_of(name) is not None:
                packed.add(canonical)
            elif canonical is not None and (canonical in wanted or canonical in ("d2t", "t2d")):
                received[canonical] = name
            elif first_match(self.rules["ignored_tensors"], name) is None:
                ignored.append(name)
        missing = [n for n, e in wanted.items() if n not in received and n not in packed and not e.optional]
        if spec.draft_vocab_size != spec.vocab_size and "d2t" not in received:
            missing.append("d2t")  # no release stops without it: draft ids are taken for target ids
        return EngineView(spec, received, tuple(missing), tuple(ignored))

    def stops(self, view: EngineView, target: Target) -> str:
        """Why this release computes nothing of what it sees; "" where it runs, rightly or wrongly."""
        spec = view.spec
        if spec is None:
            return "its config cannot be read"
        for attribute, limit in self.limits.items():
            if self.broken_limit(spec, attribute):
                return str(limit["otherwise"])
        unknown = self.rules.get("unknown_tensors")
        lost = [n for n in view.ignored if unknown and not any(part in n for part in unknown["dropped"])]
        if unknown and lost:
            return f"{unknown['otherwise']} ({lost[0]})"
        if view.missing and "missing_tensors" in self.rules:
            return f"{self.rules['missing_tensors']['otherwise']} ({view.missing[0]})"
        if "d2t" in view.received and not spec.reduced_vocabulary and "full_vocabulary_map" in self.rules:
            return "it takes no map over the full vocabulary (d2t)"
        rule = self.target(target.architecture)
        for point in spec.capture_points if rule else ():
            if rule and rule.capture(point, target.layers) != "works":
                return f"the target's class does not hand out {describe_point(point)}"
        return ""

    def other_class(self, config: Mapping[str, Any]) -> str:
        """What this release does with the class that a config names, where that is none of its drafters; else ""."""
        plugin = plugin_for(config)
        if plugin not in ("", self.plugin):
            return f"it stops at start: it has no draft class of that name, which is the plugin {plugin}'s"
        classes = self.rules.get("draft_classes")
        return "" if classes is None or _draft_class(config) in classes["names"] else str(classes["otherwise"])

    def launch_command(
        self, target: Target, out: str, steps: int, spec: DrafterSpec
    ) -> tuple[dict[str, str], list[str]]:
        """Environment and command that serve the converted drafter with `steps` draft steps."""
        rules, words = self.rules["launch"], self._launch_words(target, out, steps, spec)
        command = [word.format(**words) for word in rules["command"]]
        for option, value in rules["options"].items():
            command += [option, _filled(value, words)]
        for option, value in self.launch_options(spec).items():
            if option not in words:
                command += [option, str(value)]
        needed = [self.rules["other_points"]] if self.needs_flags(spec, target) else []
        command += dict.fromkeys(flag for rule in [*needed, *self.flag_rules(spec)] for flag in rule["flags"])
        limit = target.max_position_embeddings
        short = limit is not None and spec.max_position_embeddings < limit
        plugin = self.rules["plugin"]["environment"] if self.plugin else {}
        return {**(self.rules["context_limit"]["environment"] if short else {}), **plugin}, command

    def launch_preparation(
        self, target: Target, out: str, steps: int, spec: DrafterSpec
    ) -> tuple[dict[str, str], list[list[str]]]:
        """Files to write (name -> text) and commands to run before the launch command, in order."""
        rules, words = self.rules["launch"], self._launch_words(target, out, steps, spec)
        files = {name: _filled(content, words) for name, content in rules.get("files", {}).items()}
        return files, [[word.format(**words) for word in command] for command in rules.get("before", ())]

    def _launch_words(self, target: Target, out: str, steps: int, spec: DrafterSpec) -> dict[str, Any]:
        fields = {word: v for word, v in self.launch_options(spec).items() if not word.startswith("-")}
        words = {"target": target.name or "TARGET", "out": out, "steps": steps, "steps_and_one": steps + 1}
        return words | fields

    def consequence(self, field: str) -> str:
        """What happens in production where the release does not honour a field."""
        return str(self.rules["read"].get(field, {}).get("consequence", ""))

    @cached_property
    def _written_as(self) -> Callable[[str], list[str]]:
        """Names under which this release loads a canonical one; asked for each of its tensors by every check."""
        return cache(partial(translate_back, self.rules["tensors"]))

    @cached_property
    def _read_as(self) -> Callable[[str], str | None]:
        """The canonical name of what this release loads under a name."""
        return cache(partial(translate, self.rules["tensors"]))

    @cached_property
    def limits(self) -> Mapping[str, Mapping[str, Any]]:
        limits: Mapping[str, Mapping[str, Any]] = self.rules.get("limits", {})
        return limits

    def broken_limit(self, spec: DrafterSpec, attribute: str) -> bool:
        """True where the release refuses this value of `attribute` (a spec field or property, `rope.kind` too)."""
        limit = self.limits[attribute]
        value: Any = spec
        for part in attribute.split("."):
            value = None if value is None else getattr(value, part)
        if "equals" in limit:
            return bool(value != limit["equals"])
        if "none_of" in limit:
            return value is not None and not value.isdisjoint(limit["none_of"])
        return value not in limit["one_of"]


def _draft_class(config: Mapping[str, Any]) -> Any:
    """The class that a config names first; None where it names none."""
    named = config.get("architectures")
    return named[0] if isinstance(named, list) and named else None


def _filled(value: str | Mapping[str, Any], words: Mapping[str, Any]) -> str:
    """A launch option's value with its placeholders filled in; a mapping becomes a JSON object."""
    return value.format(**words) if isinstance(value, str) else json.dumps(_object(value, words))


def _object(value: str | Mapping[str, Any], words: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _object(part, words) for key, part in value.items()}
    text = value.format(**words)
    return json.loads(text) if text.isdigit() or text in ("true", "false") or value == "{layer_ids}" else text


def known_releases(name: str) -> list[str]:
    """All releases in the mapping, oldest first. Raises UsageError where the engine is unknown."""
    if name not in loading.names("engines"):
        near = f"; did you mean {name.lower()}?" if name.lower() in loading.names("engines") else ""
        raise UsageError(f"no rules for engine {name!r}{near}; known: {', '.join(loading.names('engines'))}")
    known: list[str] = loading.load("engines", name)["known"]
    return known


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
    return [_release(name, release) for release in known_releases(name)]


def plugin_for(config: Mapping[str, Any]) -> str:
    """The package whose draft class a config names; "" where it names none of a plugin that is known here."""
    named = _draft_class(config)
    for engine in map(_newest, loading.names("engines")):
        if engine.takes_plugin and named in engine.rules["plugin"]["changes"]["draft_classes"]["names"]:
            return str(engine.rules["plugin"]["package"])
    return ""


def _newest(name: str) -> EngineRelease:
    return _release(name, known_releases(name)[-1])


def nested(entries: Iterable[ConfigEntry]) -> dict[str, Any]:
    """The config object that the entries describe."""
    config: dict[str, Any] = {}
    for entry in entries:
        node = config
        *parents, last = entry.path.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = entry.value
    return config

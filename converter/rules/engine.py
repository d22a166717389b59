"""An engine release: what it loads from a drafter folder and what it computes.

The same rules serve both directions: `write_config` (written.py) and `names_for` put a drafter into the form that the
release loads, `view` says what the release makes of files in that form. Whatever differs between the two is what
the engine would silently do wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, Literal

from converter.drafter.layout import expected_tensors
from converter.drafter.quantised import companion_of, weight_of
from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.rules import ids as id_rules
from converter.rules import loading
from converter.rules.behaviours import EMBEDDINGS, LAUNCH, POINTS
from converter.rules.fields import IdMeaning, SpecReading, has_field, lay_flat, lookup, read_spec
from converter.rules.names import first_match, translate, translate_back
from converter.rules.targets import TargetRule, target_rule

Standing = Literal["run", "read", "unverified"]

# How far the rules of a release go, in the words of every report.
STANDINGS: Mapping[Standing, str] = {
    "run": "its own classes were run",
    "read": "rules read from source",
    "unverified": "unverified: rules read from source, never run here",
}


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
        rules, named = self.rules, draft_class(config)
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
        """What it does with a target class; None where it cannot use it as a target."""
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
        rules = [(r, target_rule(self.name, r, architecture)) for r in loading.known_releases(self.name)]
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
        """What it refuses: attribute of a spec -> the values it takes, or does not, and what happens otherwise."""
        limits: Mapping[str, Mapping[str, Any]] = self.rules.get("limits", {})
        return limits

    def broken_limit(self, spec: DrafterSpec, attribute: str) -> bool:
        """True where the release refuses this value of `attribute` (a spec field or property, `rope.kind` too)."""
        limit, value = self.limits[attribute], spec.value_of(attribute)
        if "equals" in limit:
            return bool(value != limit["equals"])
        if "none_of" in limit:
            return value is not None and not value.isdisjoint(limit["none_of"])
        return value not in limit["one_of"]


def draft_class(config: Mapping[str, Any]) -> Any:
    """The class that a config names first; None where it names none."""
    named = config.get("architectures")
    return named[0] if isinstance(named, list) and named else None

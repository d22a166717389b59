"""The two ways round: a dialect as a form that is written (`--to`), an engine's form as one that is read (`--dialect`).

A trainer that opens what `--to` wrote is treated as an engine release is: the drafter is written in its form, read back
by its rules and compared, so what its form cannot say is found without a list of what it lacks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from converter.drafter.drafter import Provenance
from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.errors import UsageError
from converter.findings import Finding, error
from converter.rules import ids as id_rules
from converter.rules import loading
from converter.rules.dialect import Dialect
from converter.rules.engine import EngineRelease, Standing
from converter.rules.releases import resolve
from converter.rules.targets import TargetRule


@dataclass(frozen=True)
class TrainerForm(EngineRelease):
    """A dialect's form, as its trainer reads it back; `release` is the one whose form is written."""

    def __str__(self) -> str:
        return f"{self.title} {self.release}".rstrip()

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.release}" if self.release else self.name

    @property
    def standing(self) -> Standing:
        return "run" if self.proved else "read"

    @property
    def reads_ids(self) -> bool:
        """Whether its config has layer ids."""
        return any(rule.get("field") == "layer_ids" for rule in self.rules["write"].values())

    def target(self, architecture: str) -> TargetRule:
        """Trainers capture in every target class alike; limits say which points they do not know."""
        ids = self.rules["ids"]
        rule = ids["rule"] if self.reads_ids else id_rules.IGNORED
        return TargetRule(architecture or "any target", rule, ids["default"], "works", "works", "works", "", "")

    def layer_ids(self, spec: DrafterSpec, target: Target) -> tuple[int, ...] | None:
        if self.reads_ids:
            return id_rules.solve(self.rules["ids"]["rule"], spec.capture_points, target.layers)
        return () if self.default_points(target) == tuple(sorted(spec.capture_points)) else None

    def map_tensors(self, spec: DrafterSpec) -> tuple[str, ...]:
        """Of d2t and t2d, those that such a checkpoint has."""
        return tuple(self.rules["maps"]["reduced" if spec.reduced_vocabulary else "full"])

    def unsaid(self) -> list[str]:
        """What the input says of its making and this form has no key for."""
        said = {rule.get("fact") for rule in self.rules["write"].values()}
        return [name.replace("_", " ") for name, value in self.facts.items() if value and name not in said]

    def unfilled(self) -> list[Finding]:
        """C230 for each config key that cannot be filled, for nobody knows what belongs there."""
        rules = self.rules["write"].items()
        keys = [key for key, rule in rules if rule.get("needed") and not self.facts.get(rule["fact"])]
        return [_needed(self.title, key) for key in keys]


def _needed(title: str, key: str) -> Finding:
    return error(
        "C230",
        f"a {title} drafter names its target, and none is known",
        where=key,
        why="its trainer, and an engine that reads its form, look for the target there",
        fix=("--target FOLDER, or org/name on the Hub",),
    )


def writable() -> list[str]:
    """Dialects that `--to` can write."""
    return [name for name in loading.names("dialects") if "write" in loading.load("dialects", name)]


def trainer_form(name: str, provenance: Provenance, target: Target) -> TrainerForm:
    """The form of a dialect, filled with what is known of a drafter. Raises UsageError where it cannot be written."""
    document = check_writable(name)
    write = document["write"]
    release = write.get("release", "")
    rules = loading.for_release(document, release or None)
    architecture = target.architecture or provenance.target_architecture
    facts = {
        "target_name": target.named_absolutely().name or provenance.target_name,
        "target_architectures": [architecture] if architecture else None,
        "speculative_tokens": provenance.speculative_tokens,
        "embedding_trained": provenance.embedding_trained,
    }
    return TrainerForm(
        name=name,
        title=document["title"],
        release=release,
        rules={
            "tensors": rules["tensors"],
            "ignored_tensors": rules.get("drop", {}),
            "embedding": "own_if_present",
            "write": write["config"],
            "read": rules["fields"],
            "limits": write.get("limits", {}),
            "ids": rules["ids"],
            "maps": write["maps"],
            **({} if write["maps"]["full"] else {"full_vocabulary_map": "refused"}),
        },
        proved=write.get("proved", False),
        facts={name: value or None for name, value in facts.items()},
    )


def check_writable(name: str) -> Mapping[str, Any]:
    """The rules of a dialect that can be written. Raises UsageError for any other name."""
    if name not in loading.names("dialects") or "write" not in loading.load("dialects", name):
        also = " (an engine: --engine)" if name in loading.names("engines") else ""
        raise UsageError(f"--to {name}{also}: expected one of {', '.join(writable())}")
    return loading.load("dialects", name)


def as_written(dialect: Dialect, to: str) -> Dialect:
    """The dialect of a folder that `--to` wrote and nobody has changed: nothing is left open in it, and another trainer
    may have trained it, head and all. `to` is what the seal says was written.
    """
    if to.partition("==")[0] != dialect.name:
        return dialect
    ids = {key: value for key, value in dialect.rules["ids"].items() if key != "perhaps"}
    return replace(dialect, rules={**dialect.rules, "ids": ids, "cautions": [], "head": "trained"})


def names_engine(name: str) -> bool:
    """Whether `--dialect` names an engine, perhaps with a release, and no dialect."""
    engine = re.split(r"[^\w.-]", name)[0]
    return name not in loading.names("dialects") and engine in loading.names("engines")


def reading_engine(requirement: str, config: Mapping[str, Any]) -> tuple[EngineRelease, Mapping[str, Any]]:
    """The engine release that `--dialect` names, with the rules that it has for such a config, and the config with the
    keys where it looks for them. Raises UsageError where it is not one known release, or reads no such config.
    """
    try:
        releases = resolve(requirement)
    except UsageError as problem:
        raise UsageError(str(problem).replace("--engine", "--dialect")) from problem
    if len(releases) != 1:
        raise UsageError(f"--dialect {requirement}: expected one release, such as {releases[-1].requirement}")
    flat, why = releases[0].laid_flat(config)
    if flat is None:
        raise UsageError(f"--dialect {requirement}: {why}")
    return releases[0].serving_config(flat), flat


def written_for(requirements: Sequence[str], config: Mapping[str, Any]) -> list[EngineRelease]:
    """The releases that an output names, those that are known here and read its config."""
    found = []
    for requirement in requirements:
        try:
            found.append(reading_engine(requirement, config)[0])
        except UsageError:  # of rules that are not here (--mapping)
            continue
    return found


def own_reader(requirements: Sequence[str], config: Mapping[str, Any], target: Target, launched: bool) -> str:
    """The first release that an output was written for and that can say what is in it, as `--dialect` takes it.

    launched  what is told at launch is known, the capture points perhaps among it

    "" where none can.
    """
    able = [e for e in written_for(requirements, config) if e.target(target.architecture) is not None]
    able.sort(key=lambda engine: engine.points_at_launch and not launched)
    return able[0].requirement if able else ""


def engine_dialect(engine: EngineRelease, target: Target, also: Sequence[EngineRelease] | None = None) -> Dialect:
    """What an engine release reads, as a dialect; what ids mean follows from the target's class.

    also  the releases that an output was written for, whose names and keys lie in it too; then nothing in it is open

    Raises UsageError where the class is not known.
    """
    rule = engine.target(target.architecture)
    if rule is None:
        known = f" for {target.architecture}" if target.architecture else ""
        raise UsageError(
            f"--dialect {engine.requirement}: what its ids mean depends on the target's class, and none is known"
            f"{known}; give --target FOLDER, or --target-arch CLASS"
        )
    rules, others = engine.rules, also or ()
    own = {"when": [{"tensor": "embed_tokens.weight"}], "kind": "unlike", "where": "embed_tokens.weight"}
    replaced = {
        **own,
        "message": f"{engine} runs this drafter with the target's embedding, whatever its own holds",
        "why": "what is written here keeps the drafter's own, which other engines use",
        "fix": ["--target FOLDER compares the two"],
    }
    return Dialect(
        name=engine.name,
        title=engine.title,
        release=engine.release,
        rules={
            "recognise": [],
            "tensors": rules["tensors"],
            "drop": {name: why for other in (*others, engine) for name, why in other.rules["ignored_tensors"].items()},
            "vocabulary_map": "offsets",
            # Points that are named at launch are not those that the engine falls back on.
            "ids": {"rule": rule.id_rule, "default": None if engine.points_at_launch else rule.default_points},
            "fields": rules["read"],
            "carry": ["quantization_config"],
            "ignore": {key: "written for engines" for other in (*others, engine) for key in other.rules["write"]},
            "cautions": [replaced] if rules["embedding"] != "own_if_present" and also is None else [],
        },
    )

"""The config that an engine release is given: its keys, each with the field or rule that it comes from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from converter.drafter.spec import DrafterSpec
from converter.rules.behaviours import WRITERS
from converter.rules.engine import EngineRelease


@dataclass(frozen=True)
class ConfigEntry:
    """One key of the config to write: `path` is dotted, `origin` says which field or rule it comes from."""

    path: str
    value: Any
    origin: str


def write_config(engine: EngineRelease, spec: DrafterSpec, layer_ids: tuple[int, ...]) -> list[ConfigEntry]:
    """Every key of the config that tells the release of `spec` and these ids, in the order of its rules."""
    entries = []
    for path, rule in engine.rules["write"].items():
        if "value" in rule:
            entries.append(ConfigEntry(path, rule["value"], f"{engine.name} rules"))
            continue
        if "when" in rule:
            chosen = rule.get("then" if getattr(spec, rule["when"]) else "else")
            if chosen is not None:
                entries.append(ConfigEntry(path, chosen, rule["when"]))
            continue
        origin = rule.get("field") or rule["fact"]
        if "fact" in rule:
            value = engine.facts.get(origin)
            value = rule.get("else") if value is None else value
        else:
            value = layer_ids if origin == "layer_ids" else getattr(spec, origin)
        if "unless_equals" in rule and value == getattr(spec, rule["unless_equals"]):
            continue
        written = None if value is None else WRITERS[rule.get("how", "plain")](value)
        if written is not None:
            entries.append(ConfigEntry(path, written, origin))
    return entries


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

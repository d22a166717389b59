"""How a converted drafter is served with an engine release: environment, command, and what has to be there first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.rules.engine import EngineRelease


def launch_command(
    engine: EngineRelease, target: Target, out: str, steps: int, spec: DrafterSpec
) -> tuple[dict[str, str], list[str]]:
    """Environment and command that serve the converted drafter with `steps` draft steps."""
    rules, words = engine.rules["launch"], _words(engine, target, out, steps, spec)
    command = [word.format(**words) for word in rules["command"]]
    for option, value in rules["options"].items():
        command += [option, _filled(value, words)]
    for option, value in engine.launch_options(spec).items():
        if option not in words:
            command += [option, str(value)]
    needed = [engine.rules["other_points"]] if engine.needs_flags(spec, target) else []
    command += dict.fromkeys(flag for rule in [*needed, *engine.flag_rules(spec)] for flag in rule["flags"])
    limit = target.max_position_embeddings
    short = limit is not None and spec.max_position_embeddings < limit
    plugin = engine.rules["plugin"]["environment"] if engine.plugin else {}
    return {**(engine.rules["context_limit"]["environment"] if short else {}), **plugin}, command


def launch_preparation(
    engine: EngineRelease, target: Target, out: str, steps: int, spec: DrafterSpec
) -> tuple[dict[str, str], list[list[str]]]:
    """Files to write (name -> text) and commands to run before the launch command, in order."""
    rules, words = engine.rules["launch"], _words(engine, target, out, steps, spec)
    files = {name: _filled(content, words) for name, content in rules.get("files", {}).items()}
    return files, [[word.format(**words) for word in command] for command in rules.get("before", ())]


def _words(engine: EngineRelease, target: Target, out: str, steps: int, spec: DrafterSpec) -> dict[str, Any]:
    fields = {word: v for word, v in engine.launch_options(spec).items() if not word.startswith("-")}
    words = {"target": target.name or "TARGET", "out": out, "steps": steps, "steps_and_one": steps + 1}
    return words | fields


def _filled(value: str | Mapping[str, Any], words: Mapping[str, Any]) -> str:
    """A launch option's value with its placeholders filled in; a mapping becomes a JSON object."""
    return value.format(**words) if isinstance(value, str) else json.dumps(_object(value, words))


def _object(value: str | Mapping[str, Any], words: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _object(part, words) for key, part in value.items()}
    text = value.format(**words)
    return json.loads(text) if text.isdigit() or text in ("true", "false") or value == "{layer_ids}" else text

"""What makes a release stop instead of serving a folder, rightly or wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from converter.drafter.points import describe_point
from converter.drafter.target import Target
from converter.rules.engine import EngineRelease, EngineView, draft_class
from converter.rules.releases import plugin_for


def why_it_stops(engine: EngineRelease, view: EngineView, target: Target) -> str:
    """Why this release computes nothing of what it sees; "" where it runs, rightly or wrongly."""
    spec = view.spec
    if spec is None:
        return "its config cannot be read"
    for attribute, limit in engine.limits.items():
        if engine.broken_limit(spec, attribute):
            return str(limit["otherwise"])
    unknown = engine.rules.get("unknown_tensors")
    lost = [n for n in view.ignored if unknown and not any(part in n for part in unknown["dropped"])]
    if unknown and lost:
        return f"{unknown['otherwise']} ({lost[0]})"
    if view.missing and "missing_tensors" in engine.rules:
        return f"{engine.rules['missing_tensors']['otherwise']} ({view.missing[0]})"
    if "d2t" in view.received and not spec.reduced_vocabulary and "full_vocabulary_map" in engine.rules:
        return "it takes no map over the full vocabulary (d2t)"
    rule = engine.target(target.architecture)
    for point in spec.capture_points if rule else ():
        if rule and rule.capture(point, target.layers) != "works":
            return f"the target's class does not hand out {describe_point(point)}"
    return ""


def other_class(engine: EngineRelease, config: Mapping[str, Any]) -> str:
    """What this release does with the class that a config names, where that is none of its drafters; else ""."""
    plugin = plugin_for(config)
    if plugin not in ("", engine.plugin):
        return f"it stops at start: it has no draft class of that name, which is the plugin {plugin}'s"
    classes = engine.rules.get("draft_classes")
    return "" if classes is None or draft_class(config) in classes["names"] else str(classes["otherwise"])

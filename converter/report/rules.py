"""`eagle3 dialects` and `eagle3 engines list`: what is known, with the source of each fact, as text or JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from converter.checks.captures import CAPTURE_FAILS
from converter.rules import loading
from converter.rules.engine import STANDINGS, EngineRelease
from converter.rules.forms import writable
from converter.rules.loading import known_releases
from converter.rules.recognition import in_order
from converter.rules.releases import all_releases
from converter.rules.targets import architectures, target_rule

_ID_RULES = {
    "literal": "id k is capture point k",
    "plus_one": "id k is capture point k + 1, the output of the 0-based layer k",
    "plus_one_if_first_is_one": "id k is point k + 1 where the first id is 1, else point k",
    "literal_if_max_is_last": "id k is point k where the largest id is the number of layers, else point k + 1",
    "plus_one_ascending": "id k is capture point k + 1, in layer order whatever the order of the ids",
    "ascending": "id k is capture point k, in layer order whatever the order of the ids",
    "ids_ignored": "ids in the config are not read; the default points are captured",
    "unknown": "nobody has verified what ids mean for this class",
}


def dialects() -> list[dict[str, Any]]:
    """Every dialect in the order in which they are asked: name, marks, id convention, fields that it may leave out."""
    result = []
    told_by = {row["dialect"]: row["told_by"] for row in loading.load("", "recognition")["order"]}
    for name in in_order():
        document = loading.load("dialects", name)
        result.append(
            {
                "dialect": name,
                "title": document["title"],
                "recognised_by": list(document["recognise"]),
                "told_by": told_by.get(name, "the marks of its rules"),
                "ids": dict(document["ids"]),
                "written": name in writable(),
                "vocabulary_map": document["vocabulary_map"],
                "defaults": _sources(document["fields"], "default"),
                "by_release": [block["range"] for block in document.get("releases", ())],
            }
        )
    return result


def engines() -> list[dict[str, Any]]:
    """Every engine: known releases, and those whose own classes were run."""
    return [
        {
            "engine": name,
            "title": loading.load("engines", name)["title"],
            "known": known_releases(name),
            "proved": list(loading.load("engines", name)["proved"]),
            "target_classes": len(architectures(name, known_releases(name)[-1])),
        }
        for name in loading.names("engines")
    ]


def engine(release: EngineRelease) -> dict[str, Any]:
    """One release: what it ignores or refuses, and what each target class can capture."""
    rules = release.rules
    return {
        "engine": release.requirement,
        "proved": release.proved,
        "standing": release.standing,
        "honoured_since": honoured_since(release.name),
        "never_honoured": _sources(_reading(rules), "fixed"),
        "limits": {name: dict(limit) for name, limit in rules.get("limits", {}).items()},
        "variants": {
            field: {
                "never_honoured": _sources(variant.get("read", {}), "fixed"),
                "limits": {name: dict(limit) for name, limit in variant.get("limits", {}).items()},
            }
            for field, variant in rules.get("variants", {}).items()
        },
        "plugin": _plugin(release),
        "embedding": rules["embedding"],
        "targets": [
            {
                "architecture": row.architecture,
                "id_rule": row.id_rule,
                "embedding": row.embedding,
                "layers": row.inner,
                "last_layer": row.last,
                "source": row.source,
            }
            for name in architectures(release.name, release.release)
            if (row := target_rule(release.name, release.release, name)) is not None
        ],
    }


def _plugin(release: EngineRelease) -> dict[str, Any] | None:
    """What else the release honours and takes with its plugin (--allow-plugin); None where there is none."""
    if not release.takes_plugin:
        return None
    plugged = release.with_plugin()
    own, left = (_sources(r.rules["read"], "fixed") for r in (release, plugged))
    return {
        "package": plugged.plugin,
        "environment": dict(release.rules["plugin"]["environment"]),
        "honoured": [field for field in own if field not in left],
        "lifted": [name for name in release.limits if name not in plugged.limits],
        "embedding": plugged.rules["embedding"],
    }


def _reading(rules: Mapping[str, Any]) -> dict[str, Any]:
    """How each field is read, one that has a variant as it is read there."""
    own = {field: variant.get("read", {}) for field, variant in rules.get("variants", {}).items()}
    return {**rules["read"], **{field: read[field] for field, read in own.items() if field in read}}


def honoured_since(name: str) -> dict[str, str]:
    """Field -> first known release that reads it from the config or a launch option; "" where none does."""
    since: dict[str, str] = {}
    for release in all_releases(name):
        for field, rule in _reading(release.rules).items():
            if "fixed" not in rule:
                since.setdefault(field, release.release)
    return {field: since.get(field, "") for field in all_releases(name)[-1].rules["read"]}


def _sources(fields: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    return {
        name: {"value": rule[key], "source": rule.get("source", "")} for name, rule in fields.items() if key in rule
    }


def dialects_text() -> str:
    """Of every dialect what tells it, what its ids mean, and what it leaves out, with the source of each default."""
    lines = []
    for d in dialects():
        ids = f"ids {d['ids']['rule']}, default {d['ids'].get('default', 'none')}; d2t as {d['vocabulary_map']}"
        lines += [f"{d['dialect']:<14}{ids}", f"{'':<16}told by {d['told_by']}"]
        if not d["written"]:
            lines.append(f"{'':<16}is read only: --to cannot write it")
        lines.append(f"{'':<16}{_ID_RULES[d['ids']['rule']]}")
        if "perhaps" in d["ids"]:
            lines.append(f"{'':<16}perhaps {_ID_RULES[d['ids']['perhaps']['rule']]}: the files do not tell (A109)")
        for field, rule in d["defaults"].items():
            source = f"  ({rule['source']})" if rule["source"] else ""
            lines.append(f"{'':<16}{field} = {_words(rule['value'])} where absent{source}")
    return "\n".join(lines)


def _words(value: Any) -> str:
    """A literal or a computed default, for people."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, dict):
        return str(value)
    [(name, argument)] = value.items()
    if name == "quotient":
        return " / ".join(argument)
    return {"same_as": str(argument), "rope_theta": f"theta {argument}", "full_attention": "full attention"}[name]


def engines_text() -> str:
    """A line for every engine: the releases that are known, and those that were run."""
    return "\n".join(
        f"{e['engine']:<14}{' to '.join(dict.fromkeys((e['known'][0], e['known'][-1])))}, "
        + (f"run here: {', '.join(e['proved'])}; " if e["proved"] else f"{STANDINGS['unverified']}; ")
        + f"{e['target_classes']} target classes in the newest"
        for e in engines()
    )


def engine_text(release: EngineRelease) -> str:
    """What the release does not honour, and a row for each target class."""
    document = engine(release)
    lines = [f"{release}   " + _knowledge(release), ""]
    lines += _limits_text(document, document["honoured_since"])
    for field, variant in document["variants"].items():
        lines += ["", f"  drafters with {field}:", *_limits_text(variant, {})]
    plugin = document["plugin"]
    if plugin is not None:
        lines += ["", f"  with the plugin {plugin['package']} (--allow-plugin):"]
        lines += [f"  {field:<22}read" for field in plugin["honoured"]]
        lines += [f"  {name:<22}any" for name in plugin["lifted"]]
    widths = (40, 26, 18, 18)
    lines += ["", "  " + _columns(("target class", "id rule", "embedding", "layers", "last layer"), widths)]
    for row in document["targets"]:
        cells = (row["architecture"], row["id_rule"], row["embedding"], row["layers"], row["last_layer"])
        lines.append("  " + _columns(cells, widths))
    words = {**_ID_RULES, **CAPTURE_FAILS}
    rules = dict.fromkeys(row["id_rule"] for row in document["targets"])
    captures = dict.fromkeys(row[k] for row in document["targets"] for k in ("embedding", "layers", "last_layer"))
    lines += ["", *(f"  {name:<26}{words[name]}" for name in {**rules, **captures} if name in words)]
    return "\n".join(lines)


def _limits_text(part: Mapping[str, Any], honoured_since: Mapping[str, str]) -> list[str]:
    lines = []
    for field, rule in part["never_honoured"].items():
        since = honoured_since.get(field)
        lines.append(f"  {field:<22}fixed at {_words(rule['value'])}" + (f", read from {since} on" if since else ""))
        lines.append(f"{'':<24}{rule['source']}")
    return lines + [f"  {name:<22}{limit['otherwise']}" for name, limit in part["limits"].items()]


def _knowledge(release: EngineRelease) -> str:
    if release.newer_than_known:
        return f"not known yet: these are the rules of {known_releases(release.name)[-1]}"
    return STANDINGS[release.standing]


def _columns(cells: tuple[str, ...], widths: tuple[int, ...]) -> str:
    return "".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=False)) + cells[-1]

"""Reading a spec out of a config: the same grammar serves dialects (what a trainer wrote) and engines (what is read).

A field rule says which dotted keys hold the field (the first present counts; null counts as absent), how the
value is read, and what an absent one means:

    head_dim: {keys: [transformer_layer_config.head_dim], default: {quotient: [hidden_size, num_attention_heads]}}
    qk_norm:  {keys: [transformer_layer_config.model_type], map: {llama: false, qwen3: true}}
    norm_before_residual: {fixed: false}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converter.checkpoint.header import DTYPE_NAMES
from converter.checkpoint.reader import Checkpoint
from converter.drafter.points import NAME_THEM
from converter.drafter.spec import FIELDS, OPTIONAL, DrafterSpec, Origin
from converter.findings import SEARCH, Finding, error
from converter.rules.behaviours import LAUNCH, READERS, Unreadable, default_value
from converter.rules.ids import points_of

_ABSENT = object()


@dataclass(frozen=True)
class SpecReading:
    """spec     None where findings say why it could not be made
    findings   unreadable or missing keys
    ids        the layer ids as written, where there were any
    """

    spec: DrafterSpec | None
    findings: tuple[Finding, ...]
    ids: tuple[int, ...] | None


@dataclass(frozen=True)
class IdMeaning:
    """What decides the capture points beside the config: the id rule, the target's layers, the default's name.

    under   config key -> the id rule of ids that stand there, where it is another
    """

    rule: str
    layers: int | None
    default: str | None
    under: Mapping[str, str] | None = None

    def points(self, key: str, ids: Sequence[int]) -> tuple[int, ...] | None:
        return points_of((self.under or {}).get(key, self.rule), ids, self.layers)


def derived_dtype(checkpoint: Checkpoint, name: str | None) -> dict[str, tuple[Any, str]]:
    """The dtype of a tensor as a field of the spec, for configs that do not state one; empty where it is not known."""
    stored = checkpoint.tensors.get(name or "")
    if stored is None or stored.info.dtype not in DTYPE_NAMES:
        return {}
    return {"dtype": (DTYPE_NAMES[stored.info.dtype], stored.name)}


def lookup(config: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path ("" is the config itself), or None where it is absent or null."""
    if not path:
        return config
    node: Any = config
    for part in path.split("."):
        if not isinstance(node, Mapping):
            return None
        node = node.get(part)
    return node


def lay_flat(config: Mapping[str, Any], base: str, keys: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The object at `base` with top-level `keys` over it, each read by a rule of `keys`, `map` and `default`; None
    where there is no such object, or a value that a `map` does not have.
    """
    inner = lookup(config, base)
    if not isinstance(inner, Mapping):
        return None
    flat = dict(inner)
    for key, rule in keys.items():
        _, value = _first_present(config, rule)
        value = rule.get("default") if value is _ABSENT else value
        if "map" in rule:
            if not isinstance(value, str) or value not in rule["map"]:
                return None
            value = rule["map"][value]
        if value is not None:
            flat[key] = value
    return flat


def keys_read(rules: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Dotted keys that these field rules look at; of a whole object (rope) those of its keys that its reader uses."""
    return {
        ".".join(filter(None, (key, part)))
        for rule in rules.values()
        for key in rule.get("keys", ())
        for part in rule.get("uses", ("",))
    }


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted paths of everything that is no non-empty object."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def read_spec(
    config: Mapping[str, Any],
    rules: Mapping[str, Mapping[str, Any]],
    meaning: IdMeaning,
    *,
    where: str = "config.json",
    given: Mapping[str, Any] | None = None,
    derived: Mapping[str, tuple[Any, str]] | None = None,
    launch: Mapping[str, Any] | None = None,
) -> SpecReading:
    """Read every field of the spec by its rule; an optional one that has none is absent.

    given    fields set by the user, which outrank the config
    derived  field -> value and tensor that it follows from, where the config and the launch options are silent
    launch   launch options by name, for engines that take a field from there
    """
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    findings: list[Finding] = []
    ids: tuple[int, ...] | None = None
    for field in FIELDS:
        rule = rules[field] if field not in OPTIONAL else rules.get(field, {})
        key, value = _first_present(config, rule)
        try:
            if given and field in given:
                values[field], origins[field] = given[field], Origin("given", "on the command line")
            elif "launch" in rule:
                option = rule["launch"]
                behaviour = LAUNCH[rule["how"]]
                values[field] = behaviour.from_option((launch or {}).get(option), values)
                origins[field] = Origin("stated", option)
            elif "fixed" in rule:
                values[field] = default_value(rule["fixed"], values, meaning.layers)
                origins[field] = Origin("fixed", rule.get("source", ""))
            elif value is not _ABSENT:
                values[field] = _read(field, rule, value, values)
                origins[field] = Origin("stated", key)
                if rule.get("how") == "ids":
                    ids = values[field]
                    values[field] = meaning.points(key, ids)
            if values.get(field) is None and derived and field in derived:
                values[field], origins[field] = derived[field][0], Origin("derived", derived[field][1])
            if values.get(field) is None:
                values[field], origins[field] = _absent(field, rule, values, meaning)
        except Unreadable as problem:
            if problem.key:
                key, value = ".".join(filter(None, (key, problem.key))), problem.value
            findings.append(_unreadable(field, key, value, str(problem), where))
            return SpecReading(None, tuple(findings), ids)
        except KeyError:
            return SpecReading(None, tuple(findings), ids)
        if values[field] is None and field not in OPTIONAL:
            findings.append(_missing(field, rule, where, ids, meaning))
            del values[field]
    if findings:
        return SpecReading(None, tuple(findings), ids)
    if values["latent"] is not None:
        values["head_dim"] = values["latent"].qk_rope_head_dim
        origins["head_dim"] = Origin("derived", "qk_rope_head_dim")
    return SpecReading(DrafterSpec(origins=origins, **values), (), ids)


def has_field(config: Mapping[str, Any], field: str, rule: Mapping[str, Any]) -> bool:
    """Whether a config holds a field that few drafters have, be it readable or not."""
    _, value = _first_present(config, rule)
    try:
        return value is not _ABSENT and _read(field, rule, value, {}) is not None
    except Unreadable:
        return True


def _first_present(config: Mapping[str, Any], rule: Mapping[str, Any]) -> tuple[str, Any]:
    keys = rule.get("keys", ())
    present = ((key, value) for key in keys if (value := lookup(config, key)) is not None)
    absent = next(iter(keys), ""), _ABSENT
    if rule.get("any"):  # a flag that any of its keys turns on
        return min(present, key=lambda item: item[1] is not True, default=absent)
    return next(present, absent)


def _read(field: str, rule: Mapping[str, Any], value: Any, values: Mapping[str, Any]) -> Any:
    table = rule.get("map")
    if table is not None:
        if isinstance(value, list) and len(value) == 1:  # architectures
            [value] = value
        if not isinstance(value, str) or value not in table:
            raise Unreadable("one of " + ", ".join(table))
        return table[value]
    return READERS[rule.get("how", "plain")](field, value, values)


def _absent(field: str, rule: Mapping[str, Any], values: Mapping[str, Any], meaning: IdMeaning) -> tuple[Any, Origin]:
    default = {"points": meaning.default} if field == "capture_points" and meaning.default else rule.get("default")
    origin = Origin("default", rule.get("source", ""))
    if isinstance(default, dict) and ("same_as" in default or "quotient" in default):
        [argument] = default.values()
        origin = Origin("derived", argument if isinstance(argument, str) else " / ".join(argument))
    return default_value(default, values, meaning.layers), origin


def _unreadable(field: str, key: str, value: Any, expected: str, where: str) -> Finding:
    shown = repr(value)
    return error(
        "C203",
        f"{key or field} in {where} cannot be read",
        where=key or where,
        found=shown if len(shown) <= 120 else shown[:117] + "...",
        expected=expected,
        fix=(f"correct {key or field} in {where}",),
    )


def _missing(
    field: str, rule: Mapping[str, Any], where: str, ids: tuple[int, ...] | None, meaning: IdMeaning
) -> Finding:
    if field == "capture_points":
        why = f"the default ({meaning.default}) depends on the target's number of layers L"
        if ids:
            why = "the ids mean different layers on targets of different depth"
        elif "launch" in rule:
            why = "they are named where it is launched, not in the folder"
        return error(
            "A104",
            "which hidden states of the target feed this drafter is not known",
            where=where,
            found=f"ids {list(ids)}" if ids else f"no {', '.join(rule['keys'])}" if rule.get("keys") else "",
            expected="the capture points that it was trained on",
            why=why,
            fix=(
                NAME_THEM,
                *(() if "launch" in rule else ("or give the target: --target FOLDER",)),
                f"or let a sample say: {SEARCH}",
            ),
        )
    return error(
        "C202",
        f"{where} does not state {field}",
        where=" or ".join(rule.get("keys", ())) or field,
        expected=field.replace("_", " "),
        fix=(f"add {next(iter(rule.get('keys', ())), field)} to {where}",),
    )

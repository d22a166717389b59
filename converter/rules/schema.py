"""Documents against the published JSON Schemas (schemas/): messages for people, without network."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError

PACKAGE = "converter.schemas"
_SUFFIX = ".schema.json"
_CHOICES = 12  # of a longer list of what is known, one that comes close is named alone
_WIDEST = 100  # characters of a value in a message
_TYPES = {
    "object": "a mapping", "array": "a list", "string": "text", "integer": "a whole number", "number": "a number",
    "boolean": "true or false", "null": "null",
}  # fmt: skip


@cache
def load() -> Mapping[str, Mapping[str, Any]]:
    """Every schema by name: "dialect" is schemas/dialect.schema.json."""
    files = (f for f in importlib.resources.files(PACKAGE).iterdir() if f.name.endswith(_SUFFIX))
    return {f.name.removesuffix(_SUFFIX): json.loads(f.read_text(encoding="utf-8")) for f in files}


def check(document: Any, schema_name: str) -> list[str]:
    """What is wrong with a document, one line each: "path: what was found, expected what". Empty where it is valid.

    schema_name   "seal" for schemas/seal.schema.json
    """
    unnamed = [f"{path}: found the key {key!r}, expected text; quote it" for path, key in _no_text(document, ())]
    if unnamed:
        return unnamed
    errors = sorted(validator(schema_name).iter_errors(document), key=lambda e: [str(part) for part in e.absolute_path])
    return list(dict.fromkeys(message for problem in errors for message in _messages(problem)))


@cache
def validator(schema_name: str) -> Draft202012Validator:
    """A validator whose references between files are resolved from the package."""
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource

    schemas = load()
    registry: Registry[Any] = Registry().with_resources(
        (schema["$id"], Resource.from_contents(schema)) for schema in schemas.values()
    )
    return Draft202012Validator(schemas[schema_name], registry=registry)


def _no_text(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Keys that YAML read as numbers, dates or booleans, with the path of their mapping."""
    if isinstance(node, Mapping):
        yield from ((_path(path), key) for key in node if not isinstance(key, str))
    items = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from _no_text(value, (*path, key))


def _messages(problem: ValidationError) -> Iterator[str]:
    from jsonschema.exceptions import best_match

    branches = problem.context or ()
    if branches and not all(b.validator == "required" and len(b.relative_path) == 0 for b in branches):
        deepest = best_match([problem])
        if deepest is not None and deepest is not problem:
            yield from _messages(deepest)
            return
    path = tuple(problem.absolute_path)
    found: Any = problem.instance
    rule: Any = problem.validator_value
    schema = problem.schema if isinstance(problem.schema, dict) else {}
    if problem.validator == "additionalProperties":
        known = list(schema.get("properties", ()))
        for key in sorted(found.keys() - set(known)):
            yield f"{_path((*path, key))}: unknown key, expected {_near(key, known)}"
    elif "propertyNames" in problem.absolute_schema_path:
        expected = _near(found, rule) if problem.validator == "enum" else schema.get("description") or problem.message
        yield f"{_path((*path, found))}: this key does not belong here, expected {expected}"
    elif problem.validator == "required":
        for key in (k for k in rule if k not in found):
            meaning = schema.get("properties", {}).get(key, {}).get("description", "")
            yield f"{_path((*path, key))}: missing" + (f", expected {meaning}" if meaning else "")
    else:
        yield f"{_path(path)}: found {_shown(found)}, expected {_expected(problem, schema)}"


def _expected(problem: ValidationError, schema: Mapping[str, Any]) -> str:
    rule: Any = problem.validator_value
    if problem.validator == "type":
        return " or ".join(_TYPES[name] for name in ([rule] if isinstance(rule, str) else rule))
    if problem.validator == "enum":
        return _near(str(problem.instance), [str(value) for value in rule])
    if problem.validator == "const":
        return json.dumps(rule)
    if problem.validator in ("anyOf", "oneOf") and all("required" in branch for branch in rule):
        return "one of the keys " + ", ".join(key for branch in rule for key in branch["required"])
    return str(schema.get("description") or f"{problem.validator} {rule}")


def _near(given: str, known: list[str]) -> str:
    """What is known, and which of it was probably meant."""
    import difflib

    close = difflib.get_close_matches(given, known, n=1)
    if len(known) > _CHOICES:
        return f"{close[0]} perhaps" if close else "one of " + ", ".join(known[:_CHOICES]) + ", ..."
    return "one of " + ", ".join(known) + (f" ({close[0]} perhaps)" if close else "")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "the keys " + ", ".join(value) if value else "an empty mapping"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def _path(parts: tuple[Any, ...]) -> str:
    """`releases[1].read.rope`; keys with dots of their own as `tensors["fc.weight"]`."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[\w-]+", str(part)):
            text += f".{part}" if text else str(part)
        else:
            text += f'["{part}"]'
    return text or "the document"

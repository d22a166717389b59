"""Whose checkpoint it is: the dialect whose marks the files bear, or what else they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converter.errors import UsageError
from converter.findings import Finding, error
from converter.rules import loading
from converter.rules.conditions import all_hold, marked, shows
from converter.rules.dialect import Dialect
from converter.rules.fields import lookup
from converter.rules.names import canonical_name, first_match, unwrapped


@dataclass(frozen=True)
class Recognition:
    """`dialect` is None where no rule fits, or where `refusal` says why one that fits cannot be converted."""

    dialect: Dialect | None
    refusal: Finding | None


def recognise(config: Mapping[str, Any], tensors: Iterable[str], forced: str = "") -> Recognition:
    """Find the dialect of a checkpoint, or say what else it is; `forced` names it (--dialect) and outranks its marks.

    Dialects are asked in the order of mappings/recognition.yaml, those that are not listed there (the user's) first.
    Raises UsageError where no dialect is called `forced`.
    """
    if forced:
        return Recognition(_of(_document(forced), config), None)
    names = list(tensors)
    documents = [loading.load("dialects", name) for name in in_order()]
    for document in documents:
        for other in document.get("refuse", ()):
            if shows(other, config, ()):
                return Recognition(None, _refused(document["title"], other, config))
    others = loading.load("", "others")
    for form in others["forms"]:
        if all_hold(form["all"], config, names):
            return Recognition(None, _unconverted(form))
    bare = unwrapped(names)
    for document in documents:
        if any(marked(mark, config, bare) for mark in document["recognise"]):
            return Recognition(_of(document, config), None)
    for kind in others["kinds"]:
        if all_hold(kind["all"], config, names):
            return Recognition(None, _something_else(kind["title"]))
    return Recognition(None, None)


def may_be_drafter(config: Mapping[str, Any], tensors: Iterable[str]) -> bool:
    """Whether a checkpoint is, or was meant to be, an EAGLE-3 drafter: of a dialect, of a form that is not converted,
    by its tensors alone, or by its config alone, which is all there is where no tensor's name is known.
    """
    names = list(tensors)
    recognition = recognise(config, names)
    if recognition.refusal is not None:
        return recognition.refusal.code == "F116"
    if recognition.dialect is not None or whose_tensors(names):
        return True
    documents = [loading.load("dialects", name) for name in in_order()]
    return any(_marked_by_config(mark, config) for document in documents for mark in document["recognise"])


def _marked_by_config(mark: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether the config shows something of a mark, and lacks nothing that only a config can show."""
    groups = _alternatives(mark)
    shown = [any(shows(condition, config, ()) for condition in group) for group in groups]
    open_ = [any("tensor" in condition for condition in group) for group in groups]
    return any(shown) and all(s or o for s, o in zip(shown, open_, strict=True))


def _alternatives(mark: Mapping[str, Any]) -> list[Sequence[Mapping[str, Any]]]:
    """The conditions of a mark, in groups of which one must be met each."""
    return [group["any"] for group in mark["all"] if "any" in group] if "all" in mark else [[mark]]


def unrecognised(config: Mapping[str, Any], tensors: Iterable[str], file: Path) -> Finding:
    """F112 of a checkpoint that `recognise` knows nothing of; `file` is its config.json."""
    keys = ", ".join(sorted(config)[:6])
    fitting = whose_tensors(tensors)
    named = config.get("architectures")
    if fitting and isinstance(named, list) and named:
        return error(
            "F112",
            f"the tensors are an EAGLE-3 drafter's, the class {named[0]!s:.60} in config.json is no known trainer's",
            where=f"architectures in {file}",
            expected="the class that its trainer writes",
            why="a target's class, or an engine's, does not tell what the layer ids and flags mean",
            fix=tuple(f"if it is a drafter of {title}: --dialect {name}" for name, title in fitting.items()),
        )
    return error(
        "F112",
        "the config is of no dialect that is known here",
        where=str(file),
        found=f"keys {keys}, ..." if keys else "an empty config",
        expected="a drafter of " + ", ".join(loading.load("dialects", n)["title"] for n in loading.names("dialects")),
        fix=("if its trainer writes one of these forms, say which: --dialect NAME",),
    )


def in_order() -> list[str]:
    """All dialects in the order in which they are asked, the user's own first."""
    listed: list[str] = [row["dialect"] for row in loading.load("", "recognition")["order"]]
    return [name for name in loading.names("dialects") if name not in listed] + listed


def _document(name: str) -> Mapping[str, Any]:
    known = loading.names("dialects")
    if name not in known:
        raise UsageError(f"--dialect {name}: expected one of {', '.join(known)}")
    return loading.load("dialects", name)


def marks_of(dialect: Dialect, config: Mapping[str, Any], tensors: Iterable[str]) -> list[str]:
    """The marks by which the files are this dialect's, in words; empty where they bear none (--dialect)."""
    bare = unwrapped(tensors)
    mark = next((m for m in dialect.rules["recognise"] if marked(m, config, bare)), None)
    if mark is None:
        return []
    shown = (next(c for c in group if shows(c, config, bare)) for group in _alternatives(mark))
    return list(dict.fromkeys(_mark_words(c, config) for c in shown))


def _mark_words(condition: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    if "tensor" in condition:
        return str(condition["tensor"])
    value = lookup(config, condition["key"])
    value = value[0] if isinstance(value, list) and value else value
    if value is None:
        return f"no {condition['key']}"
    return f"{condition['key']}" + (f" = {value}" if isinstance(value, str | int | float) else "")


def _unconverted(form: Mapping[str, Any]) -> Finding:
    return error("F116", f"this is {form['title']}, which is not converted", where="config.json and tensor names",
                 why=form["why"], fix=tuple(form.get("fix", ())))  # fmt: skip


_GIVE_ANOTHER = ("give the folder of an EAGLE-3 drafter; of which trainers: eagle3 dialects",)


def _something_else(title: str) -> Finding:
    return error(
        "F112",
        f"this is no EAGLE-3 drafter but {title}",
        where="config.json and tensor names",
        expected="an EAGLE-3 drafter",
        fix=_GIVE_ANOTHER,
    )


def _of(document: Mapping[str, Any], config: Mapping[str, Any]) -> Dialect:
    stated = lookup(config, document["release"]["key"]) if "release" in document else None
    release = stated if isinstance(stated, str) and _is_release(stated) else ""
    rules = loading.for_release(document, release or None, lambda condition: shows(condition, config, ()))
    return Dialect(document["dialect"], document["title"], release, rules)


def _is_release(text: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _refused(title: str, condition: Mapping[str, Any], config: Mapping[str, Any]) -> Finding:
    return error(
        "F112",
        f"this is no EAGLE-3 drafter: {condition['why']}",
        where=f"{condition['key']} in config.json",
        found=str(lookup(config, condition["key"]))[:120],
        expected=f"an EAGLE-3 drafter of {title}",
        fix=_GIVE_ANOTHER,
    )


def whose_tensors(names: Iterable[str]) -> dict[str, str]:
    """Dialects, name -> title, whose tables speak of every tensor, fc among them."""
    bare = unwrapped(names)
    documents = [loading.load("dialects", name) for name in loading.names("dialects")] if "fc.weight" in bare else []
    return {
        rules["dialect"]: rules["title"]
        for rules in documents
        if all(canonical_name(rules["tensors"], n) or first_match(rules.get("drop", {}), n) for n in bare)
    }

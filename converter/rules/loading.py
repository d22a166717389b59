"""Rules on disk: YAML from mappings/, merged by release range.

A rule file has a base and `releases`: blocks with a PEP 440 `range`, merged over the base in order, so that
each release's rules are one flat mapping. `null` in a block takes a key away.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import yaml

from converter.errors import RulesError, UsageError

if TYPE_CHECKING:
    from importlib.abc import Traversable
    from pathlib import Path

    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

PACKAGE = "converter.mappings"
_MOST_BYTES = 1_000_000  # of a rule file; the longest that is built in has 30,000
_MOST_NODES = 50_000  # of a document, aliases counted as often as they stand in it; the largest has 700
_DEEPEST = 40  # mappings and lists within each other; rules have 8


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML in which a key given twice is an error: the last one would win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        pairs = list(node.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        if not len(mapping) == len(pairs) == len(node.value):  # a key is there twice, or others were merged in
            keys = [self.construct_object(key, deep=True) for key, _ in pairs]
            seen: set[Any] = set()
            for key in keys:
                if key in seen:
                    why = f"the key {key!r} appears twice"
                    raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)
                seen.add(key)
        return mapping


def rules_folder(kind: str) -> Traversable:
    """Where the built-in rule files of a kind are; "" is the top folder."""
    folder = importlib.resources.files(PACKAGE)
    return folder / kind if kind else folder


# Rule files of the user, by kind and name, as they stand (--mapping).
_added: dict[tuple[str, str], Mapping[str, Any]] = {}
_state = 0  # counted up whenever the rules may have changed
_KINDS = {"dialect": "dialects", "engine": "engines"}


def names(kind: str) -> list[str]:
    """Names of the rule files of a kind ("dialects", "engines"), the user's included."""
    return sorted({*_built_in(kind), *(name for of, name in _added if of == kind)})


@cache
def _built_in(kind: str) -> frozenset[str]:
    return frozenset(p.name.removesuffix(".yaml") for p in rules_folder(kind).iterdir() if p.name.endswith(".yaml"))


@cache
def load(kind: str, name: str) -> Mapping[str, Any]:
    """A rule file, with the user's own merged over the built-in one; kind "" is the top folder."""
    added = _added.get((kind, name))
    if name not in _built_in(kind):
        assert added is not None
        return added
    file = rules_folder(kind) / f"{name}.yaml"
    document = parse(file.read_bytes(), f"{kind}/{name}.yaml")
    return document if added is None else _combined(document, added)


def known_releases(name: str) -> list[str]:
    """All releases in the mapping, oldest first. Raises UsageError where the engine is unknown."""
    if name not in names("engines"):
        near = f"; did you mean {name.lower()}?" if name.lower() in names("engines") else ""
        raise UsageError(f"no rules for engine {name!r}{near}; known: {', '.join(names('engines'))}")
    known: list[str] = load("engines", name)["known"]
    return known


def _combined(document: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """The user's keys over the built-in ones; blocks and target rows of both count, the user's last and first."""
    combined = with_changes(document, {k: v for k, v in added.items() if k not in ("releases", "targets")})
    for key in ("releases", "targets"):
        if key in document or key in added:
            more = added.get(key, [])
            combined[key] = [*document.get(key, ()), *more] if isinstance(more, list) else more  # the schema objects
    return combined


def add(path: Path) -> None:
    """Add a rule file of the user for this process: a new dialect or engine, or changes to one that is known.

    Raises RulesError: unreadable, no rule file, or against the schema (every fault is named).
    """
    from converter.rules.schema import check

    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise RulesError(f"--mapping {path}: larger than {_MOST_BYTES:,} bytes, which no rules are")
        document = parse(text, str(path))
    except OSError as problem:
        raise RulesError(f"--mapping {path}: {problem.strerror}") from problem
    kind = next((k for k in _KINDS if k in document), None)
    if kind is None or not isinstance(document[kind], str):
        raise RulesError(f"--mapping {path}: expected the key `dialect` or `engine` with a name")
    name, folder = document[kind], _KINDS[kind]
    known = load(folder, name) if name in names(folder) else None
    faults = check(document if known is None else _combined(known, document), kind)
    if faults:
        raise RulesError(f"--mapping {path}: " + "; ".join(faults[:5]))
    _added[folder, name] = document
    forget()


def forget() -> None:
    """Read the rule files anew from now on."""
    global _state
    _state += 1
    load.cache_clear()


def state() -> int:
    """Tells one state of the rules from another, for what is remembered of them."""
    return _state


def added_files() -> Mapping[str, Mapping[str, Any]]:
    """The user's own rules by "kind/name", for the seal."""
    return {f"{kind}/{name}": document for (kind, name), document in _added.items()}


def parse(text: bytes, where: str) -> Mapping[str, Any]:
    """A YAML document that is a mapping; `where` names it in errors. Raises RulesError."""
    try:
        document = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as problem:
        # PyYAML 6.0.3 lets through what its own constructors meet: `2024-99-99`, `!!int x`, `!!bool x`,
        # `!!timestamp x`.
        raise RulesError(f"{where}: {problem}") from problem
    except RecursionError as problem:
        raise RulesError(f"{where}: it is nested too deeply") from problem
    if not isinstance(document, dict):
        raise RulesError(f"{where}: expected a mapping")
    if not _small(document):
        raise RulesError(
            f"{where}: it refers to itself, is nested too deeply or holds more than {_MOST_NODES:,} values"
        )
    return document


def _small(document: Any) -> bool:
    """Whether what walks all of a document comes to an end soon: an alias is one object, however often it is there."""
    level, count = [document], 0
    for _ in range(_DEEPEST):
        parts = (p for n in level if isinstance(n, dict | list) for p in (n.values() if isinstance(n, dict) else n))
        level = list(islice(parts, _MOST_NODES))
        count += len(level)
        if not level or count >= _MOST_NODES:
            return not level
    return False


@lru_cache(maxsize=8192)
def covers(specifier: str, release: str) -> bool:
    """True where `release` lies in the PEP 440 range `specifier` (pre- and post-releases count)."""
    return _range(specifier).contains(_version(release), prereleases=True)


@lru_cache(maxsize=1024)
def _range(specifier: str) -> SpecifierSet:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier)


@lru_cache(maxsize=1024)
def _version(release: str) -> Version | str:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(release)
    except InvalidVersion:
        return release


def for_release(
    document: Mapping[str, Any], release: str | None, met: Callable[[Mapping[str, Any]], bool] = lambda condition: True
) -> dict[str, Any]:
    """The rules of one release: the base with every block whose range covers it. None: the base alone.

    met   says of a condition of a block's `when` whether the checkpoint meets it
    """
    return with_blocks(document, blocks_for(document, release, met))


def blocks_for(
    document: Mapping[str, Any], release: str | None, met: Callable[[Mapping[str, Any]], bool] = lambda condition: True
) -> tuple[int, ...]:
    """Which blocks of `releases` make the rules of one release; releases with the same blocks have the same rules."""
    return tuple(
        i
        for i, block in enumerate(document.get("releases", ()))
        if release is not None and covers(block["range"], release) and all(map(met, block.get("when", ())))
    )


def with_blocks(document: Mapping[str, Any], blocks: Sequence[int]) -> dict[str, Any]:
    """The base with these blocks of `releases` merged over it in order."""
    merged = {k: v for k, v in document.items() if k != "releases"}
    for i in blocks:
        block = document["releases"][i]
        merged = with_changes(merged, {k: v for k, v in block.items() if k not in ("range", "when")})
    return merged


def with_changes(rules: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Rules with more merged over them, as a block of `releases` is: a new mapping, which shares with those that it was
    made of what is unchanged, so nobody may change rules in place.
    """
    merged = dict(rules)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), dict) and not _replaces(value):
            merged[key] = with_changes(merged[key], value)
        else:
            merged[key] = value
    return merged


def _replaces(rule: Mapping[str, Any]) -> bool:
    """A field rule is replaced whole: `keys` of one release must not linger beside `fixed` of another."""
    return not rule.keys().isdisjoint(
        {"keys", "fixed", "launch", "field", "value", "when", "equals", "one_of", "none_of"}
    )

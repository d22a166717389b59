"""Which keys of a config a package reads, and what an absent one means; told by the shape of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from converter.upkeep.source import Module, Source

REQUIRED = "required"
COMPUTED = "computed"
_CONFIGS = {"config": "", "hf_config": "", "text_config": "", "draft_hf_config": "", "eagle_config": "eagle_config."}


@dataclass(frozen=True)
class Read:
    """A key that is read from the config. default: a literal, REQUIRED or COMPUTED."""

    default: Any
    place: str


def config_reads(module: Module, body: ast.AST) -> Iterator[tuple[str, Read]]:
    """Every key that is read from something called a config, with its default."""
    called = {id(n.func) for n in ast.walk(body) if isinstance(n, ast.Call)}
    for node in ast.walk(body):
        place = module.place(node)
        if isinstance(node, ast.Call):
            found = _read_by_call(node)
            if found is not None:
                yield found[0], Read(found[1], place)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) not in called:
            prefix = _config(node.value)
            if prefix is not None and node.attr not in _CONFIGS:
                yield prefix + node.attr, Read(REQUIRED, place)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _config(node.value):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                yield f"{_config(node.value)}{node.slice.value}", Read(REQUIRED, place)
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and _config(node.comparators[0]):
            yield f"{_config(node.comparators[0])}{node.left.value!s}", Read(COMPUTED, place)


def _read_by_call(node: ast.Call) -> tuple[str, Any] | None:
    """getattr(config, "key", default), hasattr(config, "key") or config.get("key", default)."""
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in ("getattr", "hasattr") and len(node.args) > 1:
        owner, key, default = node.args[0], node.args[1], node.args[2:]
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        owner, key, default = node.func.value, node.args[0], node.args[1:]
        default = default or [ast.Constant(None)]
    elif name.endswith("get") and len(node.args) > 1:  # a helper of the package: _cfg_get(config, "key", default)
        owner, key, default = node.args[0], node.args[1], node.args[2:]
    elif name.endswith("eagle_config") and node.args:  # get_eagle_config("key", default)
        owner, key, default = ast.Name("eagle_config"), node.args[0], node.args[1:]
    else:
        return None
    prefix = _config(owner)
    if prefix is None or not isinstance(key, ast.Constant) or not isinstance(key.value, str) or key.value in _CONFIGS:
        return None
    if name == "hasattr":
        return prefix + key.value, COMPUTED
    if not default:
        return prefix + key.value, REQUIRED
    literal = default[0].value if isinstance(default[0], ast.Constant) else COMPUTED
    return prefix + key.value, literal


def _config(node: ast.AST) -> str | None:
    """The dotted prefix of what is read from `node`, or None where it is no config."""
    if isinstance(node, ast.BoolOp):  # (getattr(config, "eagle_config", None) or {})
        return _config(node.values[0])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        key = node.args[1] if len(node.args) > 1 else None
        return _CONFIGS.get(str(key.value)) if isinstance(key, ast.Constant) else None
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return _CONFIGS.get(name)


def id_keys(source: Source, folders: Iterable[str], key: str, apart: str) -> tuple[dict[str, Read], list[str]]:
    """Dotted keys under which a package reads a list of ids called `key`, outside the draft classes themselves; and the
    places where the key is named and no read of it is recognised.

    apart   pattern of files that do so for something other than EAGLE-3
    """
    found: dict[str, Read] = {}
    unread: list[str] = []
    for path in (p for folder in folders for p in source.mentioning(folder, f'"{key}"') if not re.search(apart, p)):
        module = source.module(path)
        assert module is not None
        reads = [(d, r) for d, r in config_reads(module, module.tree) if d.rpartition(".")[2] == key]
        for dotted, read in reads:
            found.setdefault(dotted, read)
        named = [n for n in ast.walk(module.tree) if isinstance(n, ast.Constant) and n.value == key]
        if named and not reads:
            unread.append(module.place(named[0]))
    return found, unread

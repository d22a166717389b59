"""What a class that somebody read by hand is known by in later releases."""

from __future__ import annotations

import ast
import hashlib
from typing import Any

from converter.upkeep.source import Class


def digest_of(cls: Class) -> str:
    """Twelve hex digits of a class's code without comments, docstrings and formatting, the same in every Python."""
    return hashlib.sha256(repr(_plain(cls.node)).encode()).hexdigest()[:12]


def _plain(node: Any) -> Any:
    """A syntax tree as lists and values, without what is empty or differs between releases of Python."""
    if isinstance(node, list):
        return [_plain(part) for part in node if not _is_text(part)]
    if not isinstance(node, ast.AST):
        return node
    fields = ((name, value) for name, value in ast.iter_fields(node) if name not in ("ctx", "kind", "type_comment"))
    return [type(node).__name__, *((name, _plain(value)) for name, value in fields if value not in (None, []))]


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)

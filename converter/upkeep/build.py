"""What an attribute of a model class is built as, told from its constructor."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from converter.upkeep.source import Class, Function
from converter.upkeep.values import UNKNOWN, Stack

#: The class that an architecture's name stands for, or None.
Registry = Callable[[str], "Class | None"]


def built_as(cls: Class, name: str, registry: Registry, depth: int = 0) -> Any:
    """A Class, a literal, a Stack for the decoder layers, or UNKNOWN."""
    if depth > 6:
        return UNKNOWN
    found: list[Any] = []
    for owner in cls.lineage:
        constant = owner.assigned(name)
        if isinstance(constant, ast.Name | ast.Attribute):
            found.append(owner.module.class_of(constant) or UNKNOWN)
        elif constant is not None:
            found.append(_expression(cls, owner, None, constant, registry, depth))
        for method, value in owner.stores.get(name, ()):
            found.append(_expression(cls, owner, method, value, registry, depth) if value is not None else UNKNOWN)
        if any(isinstance(f, Class) for f in found):
            break  # the nearest class that says so
    classes = list(dict.fromkeys(f for f in found if isinstance(f, Class)))
    if classes:
        return classes[0] if len(classes) == 1 else UNKNOWN
    if name == "layers" and found:
        return Stack(_returned_by_layers(cls))
    return next((f for f in found if f is not UNKNOWN and f is not None), UNKNOWN)


def _returned_by_layers(cls: Class) -> str:
    """What the forward pass of a model's decoder layers gives back; "" where it is not told, or not one thing."""
    owner = next(c for c in cls.lineage if "layers" in c.stores)
    named = {n.id for m in (*owner.methods.values(), *cls.methods.values()) if m.name == "__init__" for n in ast.walk(m)
             if isinstance(n, ast.Name)}  # fmt: skip
    classes = {
        owner.module.class_named(n) or cls.module.class_named(n) for n in named if n.endswith(("Layer", "Block"))
    }
    forwards = [f for c in classes if c is not None and (f := c.method("forward")) is not None]
    forms = {_returned(forward) for _, forward in forwards}
    return forms.pop() if len(forms) == 1 else ""


def _returned(forward: Function) -> str:
    """The form of the last `return` of a layer, see values.Stack; "" where it is none of those."""
    returns = [n for n in ast.walk(forward) if isinstance(n, ast.Return) and n.value is not None]
    value = max(returns, key=lambda n: n.lineno).value if returns else None
    if isinstance(value, ast.Name):
        tuples = [
            n.value for n in ast.walk(forward) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == value.id
        ]
        value = tuples[-1] if tuples and isinstance(tuples[-1], ast.Tuple) else value
    if isinstance(value, ast.Name):
        return "whole"
    if not isinstance(value, ast.Tuple) or len(value.elts) != 2 or not isinstance(value.elts[0], ast.Name):
        return ""
    first, second = value.elts
    stored = [
        n for n in ast.walk(forward) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == ast.unparse(first)
    ]
    last = max(stored, key=lambda n: n.lineno).value if stored else None
    added = isinstance(last, ast.BinOp) and isinstance(last.op, ast.Add) and "residual" in ast.unparse(last)
    if isinstance(second, ast.Constant) and second.value is None:
        return "whole, none"
    return "whole, residual" if added else "split"


def _expression(
    cls: Class, owner: Class, method: Function | None, node: ast.expr, registry: Registry, depth: int
) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple | ast.Set) and not node.elts:
        return [] if isinstance(node, ast.List) else ()
    if isinstance(node, ast.Name):
        return _class_called(cls, owner, method, node, registry, depth)
    if isinstance(node, ast.IfExp):
        both = [_expression(cls, owner, method, n, registry, depth) for n in (node.body, node.orelse)]
        return next((b for b in both if isinstance(b, Class)), UNKNOWN)
    if not isinstance(node, ast.Call):
        return UNKNOWN
    function = node.func
    plain = function.value if isinstance(function, ast.Subscript) else function  # tuple[int, ...]()
    if isinstance(plain, ast.Name) and plain.id in ("tuple", "list", "set", "dict") and not node.args:
        return {"tuple": (), "list": [], "set": [], "dict": {}}[plain.id]
    for keyword in node.keywords:
        if keyword.arg == "model_class" and isinstance(keyword.value, ast.Name):
            return _class_called(cls, owner, method, keyword.value, registry, depth)
        if keyword.arg == "architectures" and isinstance(keyword.value, ast.List) and len(keyword.value.elts) == 1:
            [architecture] = keyword.value.elts
            if isinstance(architecture, ast.Constant):
                return registry(str(architecture.value)) or UNKNOWN
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self":
        made = cls.method(function.attr)
        if made is not None:
            returned = [n.value for n in ast.walk(made[1]) if isinstance(n, ast.Return) and n.value is not None]
            results = [_expression(cls, made[0], made[1], r, registry, depth + 1) for r in returned]
            return results[0] if len(set(map(id, results))) == 1 else UNKNOWN
        return built_as(cls, function.attr, registry, depth + 1)
    if isinstance(function, ast.Name):
        return _class_called(cls, owner, method, function, registry, depth)
    return UNKNOWN


def _class_called(
    cls: Class, owner: Class, method: Function | None, name: ast.Name, registry: Registry, depth: int
) -> Any:
    """The class that a name means inside a method: of the file, or given to the constructor by a subclass."""
    if method is not None and name.id in _parameters(method):
        given = _given(cls, owner, name.id)
        return given if given is not None else UNKNOWN
    for node in ast.walk(method) if method is not None else ():
        if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name.id for a in node.names):
            original = next(a.name for a in node.names if (a.asname or a.name) == name.id)
            return owner.module.source.imported(owner.module.path, node, original) or UNKNOWN
    local = _local(method, name.id)
    if local is not None:
        return _expression(cls, owner, method, local, registry, depth + 1) if depth < 6 else UNKNOWN
    return owner.module.class_named(name.id) or UNKNOWN


def _local(method: Function | None, name: str) -> ast.expr | None:
    """What a method assigns to a local name, where it does so once."""
    values = [
        node.value
        for node in ast.walk(method or ast.Module([], []))
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
    ]
    return values[0] if len(values) == 1 else None


def _parameters(method: Function) -> dict[str, ast.expr | None]:
    """Parameter -> default."""
    spec = method.args
    names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
    defaults: dict[str, ast.expr | None] = dict.fromkeys(names)
    defaults.update(zip(reversed(names), reversed(spec.defaults), strict=False))
    defaults.update(zip((a.arg for a in spec.kwonlyargs), spec.kw_defaults, strict=True))
    return defaults


def _given(cls: Class, owner: Class, parameter: str) -> Class | None:
    """What the constructors of the classes between `cls` and `owner` hand down under a parameter, else its default."""
    constructor = owner.methods.get("__init__")
    if constructor is None:
        return None
    order = [p for p in _parameters(constructor) if p != "self"]
    below = cls.lineage[: cls.lineage.index(owner)] if owner in cls.lineage else ()
    for nearer in reversed([c for c in below if "__init__" in c.methods]):
        own = nearer.methods["__init__"]
        call = _super_call(own)
        if call is None:
            return None
        given = next((k.value for k in call.keywords if k.arg == parameter), None)
        if given is None and parameter in order and order.index(parameter) < len(call.args):
            given = call.args[order.index(parameter)]
        if given is None:
            break
        if isinstance(given, ast.Name) and given.id in _parameters(own):
            return _given(cls, nearer, given.id)
        return nearer.module.class_of(given) if isinstance(given, ast.Name) else None
    default = _parameters(constructor).get(parameter)
    return owner.module.class_of(default) if isinstance(default, ast.Name) else None


def _super_call(method: Function) -> ast.Call | None:
    """`super().__init__(...)`"""
    for node in ast.walk(method):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "__init__"
            and isinstance(node.func.value, ast.Call)
            and isinstance(node.func.value.func, ast.Name)
            and node.func.value.func.id == "super"
        ):
            return node
    return None

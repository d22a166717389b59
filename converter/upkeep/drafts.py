"""What the draft classes of a package read from a config, which tensors they load under which names, and their limits.

All by the shape of the code: reads of a config's keys, attributes that hold weights, tables of names in the loader.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from converter.upkeep.config_keys import COMPUTED, REQUIRED, Read, config_reads
from converter.upkeep.source import Class, Function, Module
from converter.upkeep.targets import UNTOLD, Fact

_WEIGHTS = re.compile(r"(Linear|Norm|Embedding|LMHead|ModuleList|Layer|Parameter|Attention|MLP)$")


@dataclass
class DraftReading:
    """What was told of a package's draft classes; every value of a mapping is, or has, a file:line.

    config    dotted key -> how it is read
    roots     first part of a tensor's name as the modules have it
    leaves    module inside a layer: `q_proj`, `hidden_norm`
    renames   part of a name in the folder -> what the loader makes of it
    stacked   module in the folder -> module that it is a part of
    special   names that the loader treats by themselves: d2t, t2d
    limits    "num_hidden_layers", "num_points", "hidden_act" -> the only value, "" for none
    """

    config: dict[str, Read] = field(default_factory=dict)
    roots: dict[str, str] = field(default_factory=dict)
    leaves: dict[str, str] = field(default_factory=dict)
    renames: dict[str, tuple[str, str]] = field(default_factory=dict)
    stacked: dict[str, tuple[str, str]] = field(default_factory=dict)
    special: dict[str, str] = field(default_factory=dict)
    limits: dict[str, Fact] = field(default_factory=dict)


def read_drafts(classes: Iterable[Class], folder: str) -> DraftReading:
    """Everything of some draft classes; of classes that they build or inherit, those below `folder`."""
    reading = DraftReading()
    limits: dict[str, list[Fact]] = {}
    for draft in classes:
        used = list(_used(draft, folder))
        models, layers = _models_and_layers(draft, used)
        for cls in used:
            for method in cls.methods.values():
                if method.name not in ("load_weights", "forward") or cls.module is draft.module:
                    for key, read in config_reads(cls.module, method):
                        known = reading.config.get(key)
                        if known is None or (known.default in (REQUIRED, COMPUTED) and known.default != read.default):
                            reading.config[key] = read
        for cls in models:
            reading.roots.update(_weights(cls))
        for cls in layers:
            reading.leaves.update(_weights(cls))
        for cls in (c for c in used if c.module is draft.module):
            _names_of_loader(cls, reading)
        for name, fact in _limits(draft, used).items():
            limits.setdefault(name, []).append(fact)
    for name, facts in limits.items():
        told = {f.value for f in facts}
        reading.limits[name] = facts[0] if len(told) == 1 else Fact(UNTOLD, facts[0].place, "differs between classes")
    return reading


def _used(draft: Class, folder: str) -> Iterator[Class]:
    """A draft class, what it inherits, and what their constructors build, within a folder."""
    seen: list[Class] = []
    waiting = [draft]
    while waiting:
        cls = waiting.pop(0)
        if cls in seen or not cls.module.path.startswith(folder):
            continue
        seen.append(cls)
        yield cls
        if cls is draft or "ForCausalLM" not in cls.name:
            constructor = cls.methods.get("__init__")
            for node in ast.walk(constructor) if constructor is not None else ():
                # What is called, and the default of what is called by a parameter's name.
                if isinstance(node, ast.Name):
                    found = cls.module.class_named(node.id)
                    waiting += [found] if found is not None else []
            # A constructor of its own that does not go on to its parent's leaves the parent out.
            if constructor is None or "super().__init__" in ast.unparse(constructor):
                waiting += cls.lineage[1:2]


def _models_and_layers(draft: Class, used: list[Class]) -> tuple[list[Class], list[Class]]:
    """Classes whose attributes begin a tensor's name, and those whose attributes are modules of a layer."""
    models = [draft, *(c for c in used if c.module is draft.module and c.name.endswith("Model"))]
    return models, [c for c in used if c not in models and "ForCausalLM" not in c.name and not c.name.endswith("Model")]


def _weights(cls: Class) -> dict[str, str]:
    """Attributes that hold weights -> place."""
    found: dict[str, str] = {}
    for name, stores in cls.stores.items():
        for _, value in stores:
            built = value.body if isinstance(value, ast.IfExp) else value
            is_weight = isinstance(built, ast.Call) and _WEIGHTS.search(ast.unparse(built.func))
            if built is not None and (is_weight or ast.unparse(built).endswith("embed_tokens")):
                found.setdefault(name, cls.module.place(built))
    # Weights of a part that is replaced: `self.self_attn.qkv_proj = ...`
    for method in cls.methods.values():
        for node in ast.walk(method):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and _WEIGHTS.search(ast.unparse(node.value.func)):
                        found.setdefault(target.attr, cls.module.place(node))
    return found


# --- names in the loader --------------------------------------------------------------------------------------


def _names_of_loader(cls: Class, reading: DraftReading) -> None:
    module = cls.module
    bodies: list[ast.AST] = [m for m in cls.methods.values() if m.name == "load_weights"]
    bodies += [n for n in cls.node.body if isinstance(n, ast.Assign | ast.AnnAssign)]  # a table of the class itself
    for body in bodies:
        for node in ast.walk(body):
            if isinstance(node, ast.Dict):
                _table(node, module, reading)
            elif isinstance(node, ast.Tuple) and len(node.elts) == 3:
                names = [e.value for e in node.elts[:2] if isinstance(e, ast.Constant) and isinstance(e.value, str)]
                if len(names) == 2:
                    reading.stacked[_leaf(names[1])] = (_leaf(names[0]), module.place(node))
            elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
                if isinstance(node.ops[0], ast.In | ast.Eq) and ast.unparse(node.comparators[0]) == "name":
                    reading.special.setdefault(str(node.left.value), module.place(node))
            elif _is_replace(node):
                assert isinstance(node, ast.Call)
                old, new = (a.value for a in node.args if isinstance(a, ast.Constant))
                reading.renames.setdefault(_part(old), (_part(new), module.place(node)))


def _table(node: ast.Dict, module: Module, reading: DraftReading) -> None:
    """A table of names: old -> new, or old -> (stacked module, part)."""
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            continue
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            reading.renames[_part(key.value)] = (_part(value.value), module.place(key))
        elif isinstance(value, ast.Tuple) and value.elts and isinstance(value.elts[0], ast.Constant):
            reading.stacked[_leaf(key.value)] = (_leaf(str(value.elts[0].value)), module.place(key))


def _is_replace(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "replace"
        and len(node.args) == 2
        and all(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in node.args)
    )


def _part(name: Any) -> str:
    return str(name).strip(".")


def _leaf(name: str) -> str:
    return name.strip(".").rpartition(".")[2]


# --- limits ---------------------------------------------------------------------------------------------------


def _limits(draft: Class, used: list[Class]) -> Mapping[str, Fact]:
    return {
        "num_hidden_layers": _layer_limit(draft, used),
        "num_points": _points_limit(draft, used),
        "hidden_act": _activation_limit(used),
    }


def _layer_limit(draft: Class, used: list[Class]) -> Fact:
    for cls, test, value in _refusals(used):
        if "num_hidden_layers" in ast.unparse(test) and isinstance(value, int):
            return Fact(str(value), cls.module.place(test))
    for cls in (c for c in used if c.module is draft.module):
        for name, stores in cls.stores.items():
            for _, value in stores:
                if value is not None and name == "layers":
                    many = "num_hidden_layers" in ast.unparse(value)
                    one = isinstance(value, ast.Call) and value.args and isinstance(value.args[0], ast.List)
                    if many or one:
                        return Fact("" if many else "1", cls.module.place(value))
                if value is not None and name == "midlayer":
                    return Fact("1", cls.module.place(value))
    return Fact(UNTOLD, draft.place, "how many layers it builds is not followed")


def _points_limit(draft: Class, used: list[Class]) -> Fact:
    for cls in (c for c in used if c.module is draft.module):
        for method, value in cls.stores.get("fc", ()):
            if not isinstance(value, ast.Call):
                continue
            width = next((k.value for k in value.keywords if k.arg == "input_size"), None)
            width = width if width is not None else (value.args[0] if value.args else None)
            for part in _spelled_out(width, cls, method):
                if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult):
                    counts = [n.value for n in (part.left, part.right) if isinstance(n, ast.Constant)]
                    return Fact(str(counts[0]) if counts else "", cls.module.place(part))
            return Fact(UNTOLD, cls.module.place(value), "how wide fc is is not followed")
    return Fact(UNTOLD, draft.place, "fc is not found")


def _spelled_out(node: ast.AST | None, cls: Class, method: Function, depth: int = 0) -> Iterator[ast.AST]:
    """An expression and what its names were assigned in the same class."""
    if node is None or depth > 3:
        return
    yield from ast.walk(node)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self":
            for _, value in cls.stores.get(inner.attr, ()):
                yield from _spelled_out(value, cls, method, depth + 1)
        elif isinstance(inner, ast.Name):
            for statement in ast.walk(method):
                if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == inner.id:
                    yield from _spelled_out(statement.value, cls, method, depth + 1)


def _activation_limit(used: list[Class]) -> Fact:
    for cls, test, value in _refusals(used):
        if "hidden_act" in ast.unparse(test) and isinstance(value, str):
            return Fact(value, cls.module.place(test))
    return Fact("", used[0].place)


def _refusals(used: list[Class]) -> Iterator[tuple[Class, ast.expr, Any]]:
    """`if something != VALUE: raise` in a constructor."""
    for cls in used:
        constructor = cls.methods.get("__init__")
        for node in ast.walk(constructor) if constructor is not None else ():
            if isinstance(node, ast.If) and any(isinstance(n, ast.Raise) for n in node.body):
                for test in ast.walk(node.test):
                    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq | ast.Gt):
                        value = test.comparators[0]
                        if isinstance(value, ast.Constant):
                            yield cls, test, value.value

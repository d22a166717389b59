"""The classes of a package: where they are, what they inherit, what their attributes are built from. AST only."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from converter.upkeep.package import Package

Function = ast.FunctionDef | ast.AsyncFunctionDef


class CannotTell(Exception):
    """The source does something that is not followed; `place` is the file:line to look at."""

    def __init__(self, why: str, place: str) -> None:
        super().__init__(f"{why} ({place})")
        self.why, self.place = why, place


@dataclass(frozen=True, eq=False)
class Class:
    """A class statement and the file that it is in; one object for each."""

    module: Module
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def place(self) -> str:
        return self.module.place(self.node)

    def __repr__(self) -> str:
        return f"{self.name} ({self.place})"

    @cached_property
    def methods(self) -> dict[str, Function]:
        """Methods of the class itself; of several under one name the last counts, overloads aside."""
        return {n.name: n for n in self.node.body if isinstance(n, Function) and not _is_overload(n)}

    @cached_property
    def stores(self) -> dict[str, list[tuple[Function, ast.expr | None]]]:
        """Attribute -> every `self.attribute = value` with its method, the constructor's first; None where unpacked."""
        found: dict[str, list[tuple[Function, ast.expr | None]]] = {}
        for method in sorted(self.methods.values(), key=lambda n: n.name != "__init__"):
            for node in ast.walk(method):
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        parts = target.elts if isinstance(target, ast.Tuple) else [target]
                        for name in filter(None, map(_of_self, parts)):
                            value = None if isinstance(target, ast.Tuple) else node.value
                            found.setdefault(name, []).append((method, value))
                elif isinstance(node, ast.AnnAssign) and (name := _of_self(node.target)):
                    found.setdefault(name, []).append((method, node.value))
        return found

    def assigned(self, name: str) -> ast.expr | None:
        """What the class statement itself assigns to a name."""
        for node in self.node.body:
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                return node.value
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
                return node.value
        return None

    @cached_property
    def lineage(self) -> tuple[Class, ...]:
        """The class and those that it inherits from, as far as they are in the package, nearest first."""
        return tuple(_lineage(self, ()))

    def method(self, name: str) -> tuple[Class, Function] | None:
        """A method and the class of the lineage that has it, the nearest."""
        for owner in self.lineage:
            found = owner.methods.get(name)
            if found is not None:
                return owner, found
        return None

    def inherits(self, name: str) -> bool:
        """Whether a class of that name is behind it in the lineage."""
        return any(c.name == name for c in self.lineage[1:])


def _of_self(node: ast.expr) -> str:
    """The name in `self.name`."""
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if own and isinstance(node, ast.Attribute) else ""


def _is_overload(node: Function) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)


def _lineage(start: Class, seen: tuple[Class, ...]) -> Iterator[Class]:
    yield start
    for base in start.node.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        found = start.module.class_of(name, before=start.node)
        if found is not None and found != start and found not in seen:
            yield from _lineage(found, (*seen, start))


class Module:
    """One parsed file. Raises CannotTell where it cannot be parsed."""

    def __init__(self, source: Source, path: str) -> None:
        self.source, self.path = source, path
        self._classes: dict[ast.ClassDef, Class] = {}
        self._named: dict[tuple[str, int], Class] = {}
        self._open: set[tuple[str, int]] = set()
        try:
            self.tree = ast.parse(source.package.text(path))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
            raise CannotTell(f"cannot be parsed: {problem}", path) from problem

    def place(self, node: ast.AST) -> str:
        """file:line, as the mappings name sources."""
        return f"{self.source.short(self.path)}:{getattr(node, 'lineno', 1)}"

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """Top-level statements, those under `if` and `try` included."""
        return list(flat(self.tree.body))

    @cached_property
    def names(self) -> dict[str, list[ast.stmt]]:
        """Statements that bind a name at the top level, in order."""
        bound: dict[str, list[ast.stmt]] = {}
        for node in self.statements:
            for name in _bound(node):
                bound.setdefault(name, []).append(node)
        return bound

    def class_named(self, name: str, before: ast.AST | None = None) -> Class | None:
        """The class that a name means at the top level (`before`: on the line of that statement)."""
        key = name, getattr(before, "lineno", 10**9)
        if key in self._named or key in self._open:  # where files import a name from each other, the circle ends here
            return self._named.get(key)
        self._open.add(key)
        try:
            found = self._find_class(*key)
        finally:
            self._open.discard(key)
        if found is not None:  # that there is none may be but half of a circle
            self._named[key] = found
        return found

    def _class(self, node: ast.ClassDef) -> Class:
        return self._classes.setdefault(node, Class(self, node))

    def _find_class(self, name: str, line: int) -> Class | None:
        for node in reversed(self.names.get(name, [])):
            if node.lineno >= line:
                continue
            if isinstance(node, ast.ClassDef):
                return self._class(node)
            if isinstance(node, ast.ImportFrom):
                original = next(a.name for a in node.names if (a.asname or a.name) == name)
                found = self.source.imported(self.path, node, original)
                if found is not None:
                    return found
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
                return self.class_of(node.value, before=node)
        return None

    def class_of(self, node: ast.expr, before: ast.AST | None = None) -> Class | None:
        """The class that an expression names: a plain name, or module.name of a module that the file imports."""
        if isinstance(node, ast.Name):
            return self.class_named(node.id, before)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            for bound in self.names.get(node.value.id, []):
                if isinstance(bound, ast.ImportFrom):
                    original = next(a.name for a in bound.names if (a.asname or a.name) == node.value.id)
                    module = self.source.submodule(self.path, bound, original)
                    if module is not None:
                        return module.class_named(node.attr)
        return None

    @cached_property
    def classes(self) -> list[Class]:
        """Those of the top level."""
        return [self._class(n) for n in self.statements if isinstance(n, ast.ClassDef)]

    def assigned(self, name: str) -> ast.expr | None:
        """What the file assigns to a name at the top level, last."""
        for node in reversed(self.names.get(name, [])):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                return node.value
        return None

    def function(self, name: str) -> Function | None:
        """The function that a name means at the top level."""
        for node in reversed(self.names.get(name, [])):
            if isinstance(node, Function):
                return node
        return None


def flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, those under `if` and `try` included; of a choice between platforms those of CUDA."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            truth = _known(node.test)
            yield from flat([*(node.body if truth is not False else ()), *(node.orelse if truth is not True else ())])
        elif isinstance(node, ast.Try):
            yield from flat([*node.body, *(s for h in node.handlers for s in h.body), *node.orelse])


# Packages choose between platforms at the top level of a file; what is read is what runs on CUDA.
_PLATFORM = {
    "TYPE_CHECKING": False, "is_cuda": True, "is_cuda_alike": True, "is_rocm": False, "is_hip": False, "is_xpu": False,
    "is_cpu": False, "is_npu": False, "is_musa": False, "is_mps": False, "is_tpu": False,
}  # fmt: skip


def _known(test: ast.expr) -> bool | None:
    """The truth of a condition on the platform; None for any other."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _known(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        truths = [_known(v) for v in test.values]
        decides = isinstance(test.op, ast.Or)
        return decides if decides in truths else (None if None in truths else not decides)
    node = test.func if isinstance(test, ast.Call) else test
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return _PLATFORM.get(name.removeprefix("_"))


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.ImportFrom | ast.Import):
        yield from (a.asname or a.name for a in node.names)
    elif isinstance(node, ast.Assign):
        yield from (t.id for t in node.targets if isinstance(t, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


class Source:
    """The modules of a package, parsed when they are asked for.

    prefix   what the mappings leave out of paths, such as "sglang/srt/"
    """

    def __init__(self, package: Package, prefix: str) -> None:
        self.package, self.prefix = package, prefix
        self._modules: dict[str, Module] = {}

    def short(self, path: str) -> str:
        """A path as the mappings name it."""
        return path.removeprefix(self.prefix)

    def module(self, path: str) -> Module | None:
        """A file by its path in the package; None where there is none. Raises CannotTell where it cannot be parsed."""
        if path not in self.package.paths:
            return None
        if path not in self._modules:
            self._modules[path] = Module(self, path)
        return self._modules[path]

    def by_dotted(self, dotted: str) -> Module | None:
        """A module, or a package's own, by its name; None where there is none."""
        base = dotted.replace(".", "/")
        return self.module(f"{base}.py") or self.module(f"{base}/__init__.py")

    def mentioning(self, folder: str, text: str) -> list[str]:
        """Paths of the files below a folder that hold a text."""
        return [p for p in sorted(self.package.paths) if p.startswith(folder) and text in self.package.text(p)]

    def imported(self, path: str, node: ast.ImportFrom, name: str) -> Class | None:
        """The class that `from X import name` in the file `path` gives, through re-exports."""
        module = self.by_dotted(self._dotted(path, node))
        return module.class_named(name) if module is not None else None

    def submodule(self, path: str, node: ast.ImportFrom, name: str) -> Module | None:
        """The module that `from X import name` in the file `path` gives."""
        return self.by_dotted(f"{self._dotted(path, node)}.{name}")

    def _dotted(self, path: str, node: ast.ImportFrom) -> str:
        if node.level:
            folder = PurePosixPath(path).parent
            for _ in range(node.level - 1):
                folder = folder.parent
            return ".".join([*folder.parts, *((node.module or "").split(".") if node.module else ())])
        return node.module or ""

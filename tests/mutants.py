"""Mutants of the code that judges: one small change each, run against the tests that reach its line.

    make coverage                                  # which test runs which line, and how long it takes
    python -m tests.mutants --count 300 --seed 9   # writes mutants.json; exit code 1 where one survives unexplained

A change is one of KINDS at one place of the source. Those of every module are listed in order, and `--count` of them
are drawn with `--seed`, from each module in proportion to how many it has. Each is made in a fork of a process that has
collected the tests: the code of the changed function is put in place of the old one, and the tests that reach the line
are run, the quickest first, until one fails. That one is seen to pass without the change. Where none fails within
`--seconds`, the mutant has survived. What a test starts in a process of its own is not changed. `tests/mutants.yaml`
explains those that no test can tell.

Not changed: docstrings and other text, annotations, decorators, defaults of dataclasses, assertions (for mypy), and how
much of a value a message shows. A returned value becomes another of its type, for mypy sees the rest. Of expressions in
f-strings, Python before 3.12 does not say where they are.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import importlib
import inspect
import json
import os
import random
import re
import resource
import select
import signal
import sys
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest
import yaml
from _pytest.runner import runtestprotocol

from converter.rules import loading
from converter.rules.releases import all_releases

ROOT = Path(__file__).parent.parent
ROOMS = ("converter/checks", "converter/drafter", "converter/rules", "converter/plan.py")
DATA, TIMES = ROOT / ".coverage", ROOT / ".coverage.xml"
EXPLAINED = ROOT / "tests" / "mutants.yaml"
MEMORY = 16 << 30  # bytes of address space: more is a runaway

_COMPARED: dict[type, type] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_COMPUTED: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.Pow: ast.Mult,
}  # fmt: skip
_NOTHING = {
    "list": "[]",
    "tuple": "()",
    "dict": "{}",
    "Mapping": "{}",
    "str": '""',
    "set": "set()",
    "frozenset": "frozenset()",
}
_SEVERITY = {"error": "warning", "warning": "error", "note": "warning"}
_CODE = re.compile(r"[A-Z][0-9]{3}")
_SHOWN = 40  # a slice as long as this cuts what a message shows

KINDS = (
    "compare",
    "compute",
    "and/or",
    "not",
    "condition",
    "constant",
    "return",
    "remove",
    "severity",
    "code",
    "place",
)


@dataclass(frozen=True)
class Mutant:
    """One change: the source from `start` to `end` (characters) becomes `after`. `key` stays when lines move.

    function   the outermost one that it is in, "" for the module's own code
    """

    file: str
    line: int
    key: str
    kind: str
    before: str
    after: str
    start: int
    end: int
    function: str


@dataclass
class Result:
    """outcome   killed, timeout and broken (which are killed, too), survived, or unreached: no test runs the line
    by        the test that failed; what stops the module from loading, where it is broken
    tests     how many were run, of how many that reach the line
    """

    mutant: Mutant
    outcome: str
    by: str = ""
    tests: int = 0
    reach: int = 0
    seconds: float = 0.0
    why: str = field(default="")


# --- the changes --------------------------------------------------------------------------------------------


def modules() -> list[Path]:
    return sorted(p for room in ROOMS for p in ([ROOT / room] if room.endswith(".py") else (ROOT / room).glob("*.py")))


def mutants_of(path: Path) -> list[Mutant]:
    """Every change of a module, in the order of its source."""
    file, source = path.relative_to(ROOT).as_posix(), path.read_text()
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))

    def at(line: int, column: int) -> int:
        """Columns of a tree are bytes."""
        text = source[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(text.encode()[:column].decode())

    found: list[Mutant] = []
    seen: dict[str, int] = defaultdict(int)
    for owner, kind, node, after in _walk(ast.parse(source), _Owner("module", "")):
        start, end = at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)
        before = source[start:end]
        if before == after:
            continue
        key = f"{file}::{owner.name} {kind}: {_line(before)} -> {_line(after)}"
        seen[key] += 1
        if seen[key] > 1:
            key += f" #{seen[key]}"
        found.append(Mutant(file, node.lineno, key, kind, before, after, start, end, owner.function))
    return found


def _line(code: str) -> str:
    text = " ".join(code.split())
    return text if len(text) <= 80 else text[:77] + "..."


class _Owner(NamedTuple):
    """Where a change is: function or class with all that it is in, and the outermost function ("" outside)."""

    name: str
    function: str


Change = tuple[_Owner, str, "ast.expr | ast.stmt", str]


def _walk(node: ast.AST, owner: _Owner, in_class: bool = False) -> Iterator[Change]:
    """Where, what kind, the node that is replaced, and by what."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        name = node.name if owner.name == "module" else f"{owner.name}.{node.name}"
        in_class = isinstance(node, ast.ClassDef)
        owner = _Owner(name, owner.function or ("" if in_class else name))
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _left(child) or (in_class and not isinstance(child, ast.FunctionDef)):
                continue
            yield from _own(child, node, owner)
            yield from _walk(child, owner)


def _left(node: ast.AST) -> bool:
    """What is not changed."""
    if isinstance(node, ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # docstrings
        return True
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):  # aliases of types
        names = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        return bool(names & {"Literal", "Mapping", "Callable", "TypeVar"})
    return False


def _own(node: ast.AST, parent: ast.AST, owner: _Owner) -> Iterator[Change]:
    """The changes of this node, without those of what is in it."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            if type(op) in _COMPARED:
                other = copy.deepcopy(node)
                other.ops[i] = _COMPARED[type(op)]()
                yield owner, "compare", node, f"({ast.unparse(other)})"
    elif isinstance(node, ast.BoolOp):
        other_op = copy.deepcopy(node)
        other_op.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield owner, "and/or", node, f"({ast.unparse(other_op)})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield owner, "not", node, f"(bool({ast.unparse(node.operand)}))"
    elif isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED and not _texts(node):
        computed = copy.deepcopy(node)
        computed.op = _COMPUTED[type(node.op)]()
        yield owner, "compute", node, f"({ast.unparse(computed)})"
    elif isinstance(node, ast.Constant):
        yield from ((owner, kind, node, after) for kind, after in _other_constants(node, parent))
    elif isinstance(node, ast.FunctionDef):
        name = node.name if owner.name == "module" else f"{owner.name}.{node.name}"
        yield from ((_Owner(name, owner.function or name), *change) for change in _other_returns(node))
    elif isinstance(node, ast.Raise | ast.Continue | ast.Break | ast.AugAssign | ast.Expr):
        yield owner, "remove", node, "pass"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SEVERITY and node.args:
        yield owner, "severity", node.func, _SEVERITY[node.func.id]
        for keyword in node.keywords:
            if keyword.arg == "where" and not isinstance(keyword.value, ast.JoinedStr):
                yield owner, "place", keyword.value, '""'
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield from _condition(node.test, owner)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield from _condition(test, owner)


def _condition(test: ast.expr, owner: _Owner) -> Iterator[Change]:
    if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):  # which have changes of their own
        yield owner, "condition", test, f"(not {ast.unparse(test)})"


def _other_constants(node: ast.Constant, parent: ast.AST) -> Iterator[tuple[str, str]]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", str(not value)
    elif isinstance(value, int):
        if not (isinstance(parent, ast.Slice) and value >= _SHOWN):
            yield "constant", str(value + 1)
            if value > 1:
                yield "constant", str(value - 1)
    elif isinstance(value, float):
        yield "constant", repr(value * 1.5)
        yield "constant", repr(value / 1.5)
    elif isinstance(value, str) and _CODE.fullmatch(value):
        yield "code", '"X999"'
    elif isinstance(value, str) and isinstance(parent, ast.Compare) and value:
        yield "constant", repr(value + "_")


def _other_returns(function: ast.FunctionDef) -> Iterator[tuple[str, ast.Return, str]]:
    """Another value of the type that is promised: what mypy would see is no mutant."""
    promised = ast.unparse(function.returns) if function.returns is not None else ""
    nothing = next((value for name, value in _NOTHING.items() if promised.startswith(name)), "")
    others = ["None"] if "None" in promised.split(" | ") else [nothing] if nothing else []
    for node in _returns(function.body):
        assert node.value is not None
        now = ast.unparse(node.value)
        for other in ["not (" + now + ")"] if promised == "bool" else [now + " + 1"] if promised == "int" else others:
            if other != now and not (
                promised == "bool" and isinstance(node.value, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant)
            ):
                yield "return", node, f"return {other}"


def _returns(body: Sequence[ast.AST]) -> Iterator[ast.Return]:
    """Those of a function itself."""
    for node in body:
        if isinstance(node, ast.Return) and node.value is not None:
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.Lambda):
            yield from _returns(list(ast.iter_child_nodes(node)))


def _texts(node: ast.BinOp) -> bool:
    """Text that is put together."""
    parts = [n for n in ast.walk(node) if isinstance(n, ast.JoinedStr | ast.Constant)]
    return any(isinstance(n, ast.JoinedStr) or isinstance(n.value, str) for n in parts)


def drawn(count: int, seed: int) -> list[Mutant]:
    """`count` mutants, from each module in proportion to how many it has and at least one."""
    every = {path: mutants_of(path) for path in modules()}
    every = {path: found for path, found in every.items() if found}
    total = sum(map(len, every.values()))
    shares = {path: max(1, int(count * len(found) / total)) for path, found in every.items()}
    by_rest = sorted(every, key=lambda p: -(count * len(every[p]) / total % 1))
    for path in by_rest * 2:
        if sum(shares.values()) < count and shares[path] < len(every[path]):
            shares[path] += 1
    chance = random.Random(seed)
    chosen = [m for path, found in every.items() for m in chance.sample(found, min(shares[path], len(found)))]
    chance.shuffle(chosen)
    return chosen[:count]


# --- which tests --------------------------------------------------------------------------------------------


class Reach:
    """Which tests run a line, the quickest first; of lines that run once for several tests, those of the same file."""

    def __init__(self) -> None:
        from coverage import CoverageData

        self._data = CoverageData(str(DATA))
        self._data.read()
        self.seconds: dict[str, float] = {}
        for case in ET.parse(TIMES).getroot().iter("testcase"):
            test = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"
            self.seconds[test] = self.seconds.get(test, 0.0) + float(case.attrib["time"])
        self._in_file: dict[str, list[str]] = defaultdict(list)
        for test in self.seconds:
            self._in_file[test.partition("::")[0]].append(test)
        self._lines: dict[str, dict[int, list[str]]] = {}

    def tests(self, mutant: Mutant) -> list[str]:
        if mutant.file not in self._lines:
            self._lines[mutant.file] = self._data.contexts_by_lineno(str(ROOT / mutant.file))
        lines = self._lines[mutant.file]
        # A module's own code runs once, before all tests: those that reach any of its functions may see its values.
        contexts = lines.get(mutant.line, []) if mutant.function else {c for those in lines.values() for c in those}
        found = {_test_of(c) for c in contexts if c}
        for context in contexts:
            if context.endswith(("|setup", "(setup)")):
                found |= set(self._in_file[_test_of(context).partition("::")[0]])
        return sorted((t for t in found if t in self.seconds), key=lambda t: (self.seconds[t], t))


def _test_of(context: str) -> str:
    """pytest-cov says `TEST|run`, PYTEST_CURRENT_TEST `TEST (call)`."""
    return re.sub(r"(\|(setup|run|teardown)| \((setup|call|teardown)\))$", "", context)


# --- runs ---------------------------------------------------------------------------------------------------


class Runs:
    """A pytest plugin: once all tests are collected, each mutant is run in a fork of this process."""

    def __init__(self, chosen: Sequence[Mutant], seconds: float, out: Path) -> None:
        self.results: list[Result] = []
        self._chosen, self._seconds, self._out = chosen, seconds, out
        self._explained: dict[str, str] = yaml.safe_load(EXPLAINED.read_text()) or {}
        self._sound: dict[str, bool] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        reach, items = Reach(), {item.nodeid: item for item in session.items}
        for name in loading.names("engines"):
            all_releases(name)  # read once, for all children
        gc.freeze()
        for number, mutant in enumerate(self._chosen, 1):
            began, tests = time.monotonic(), [t for t in reach.tests(mutant) if t in items]
            result = Result(mutant, "unreached", reach=len(tests), why=self._explained.get(mutant.key, ""))
            if tests:
                said = self._forked(mutant, [items[t] for t in tests])
                result.outcome, result.by, result.tests = said["outcome"], said["by"], said["tests"]
                if result.outcome == "broken" and mutant.function:
                    raise pytest.UsageError(f"{mutant.key}: {result.by}")
                if result.by in items and not self._passes(items[result.by]):
                    raise pytest.UsageError(f"{result.by} fails without a mutant, too")
            result.seconds = round(time.monotonic() - began, 1)
            self.results.append(result)
            self._out.write_text(json.dumps([asdict(r) for r in self.results], indent=1))
            by = f"  by {result.by}" if result.by else f"  {result.tests} of {result.reach} tests"
            print(
                f"{number:4} {result.outcome:9} {result.seconds:5.1f} s line {mutant.line} {mutant.key}{by}", flush=True
            )
        return True

    def _passes(self, item: pytest.Item) -> bool:
        if item.nodeid not in self._sound:
            self._sound[item.nodeid] = self._forked(None, [item])["outcome"] == "survived"
        return self._sound[item.nodeid]

    def _forked(self, mutant: Mutant | None, items: Sequence[pytest.Item]) -> dict[str, Any]:
        """What a child says: the outcome, the test that failed, and how many were run."""
        hears, says = os.pipe()
        child = os.fork()
        if child == 0:
            _in_child(mutant, items, time.monotonic() + self._seconds, says)
        os.close(says)
        ends, heard = time.monotonic() + 2 * self._seconds + 30, b""
        while select.select([hears], [], [], max(0, ends - time.monotonic()))[0] and (part := os.read(hears, 1 << 16)):
            heard += part
        os.close(hears)
        hung = time.monotonic() >= ends
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        begun = heard.decode().splitlines()
        if begun and begun[-1].startswith("{"):
            said: dict[str, Any] = json.loads(begun[-1])
            return said
        return {"outcome": "timeout" if hung else "killed", "by": begun[-1], "tests": len(begun)}  # it crashed


def _in_child(mutant: Mutant | None, items: Sequence[pytest.Item], ends: float, says: int) -> None:
    """Tells the name of each test that it begins, then what came of it."""
    outcome, by, count = "survived", "", 0
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        if mutant is not None:
            put_in(mutant)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        for item, following in zip(items, [*items[1:], None], strict=True):
            if time.monotonic() > ends:
                break
            os.write(says, f"{item.nodeid}\n".encode())
            count += 1
            if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
                outcome, by = "killed", item.nodeid
                break
    except BaseException as problem:  # of the changed module, while it is loaded, or of this program
        outcome, by = "broken", f"{type(problem).__name__}: {problem}"
    os.write(says, json.dumps({"outcome": outcome, "by": by, "tests": count}).encode())
    os._exit(0)


def put_in(mutant: Mutant) -> None:
    """Change the module where it is loaded: the code of the function, or the module's own values wherever they were
    imported. What was read or computed by rules that are changed is forgotten.
    """
    module = importlib.import_module(mutant.file.removesuffix(".py").replace("/", "."))
    source = (ROOT / mutant.file).read_text()
    changed = compile(source[: mutant.start] + mutant.after + source[mutant.end :], mutant.file, "exec")
    if mutant.function:
        function: Any = module
        for name in mutant.function.split("."):
            function = inspect.getattr_static(function, name)
        for inner in ("fget", "func", "__func__", "__wrapped__"):  # property, cached_property, static method, cache
            function = getattr(function, inner, function)
        function.__code__ = _code_of(changed, mutant.function)
    else:
        values: dict[str, Any] = {"__name__": module.__name__}
        exec(changed, values)
        own = [name for name, value in values.items() if not (callable(value) or name.startswith("__"))]
        for other in [m for name, m in list(sys.modules.items()) if name.startswith("converter.") and m is not module]:
            for name in own:
                if name in vars(other) and vars(other)[name] is vars(module)[name]:
                    setattr(other, name, values[name])
        vars(module).update({name: values[name] for name in own})
    if mutant.file.startswith("converter/rules"):
        read_again = mutant.file == "converter/rules/loading.py"  # which takes a second
        for thing in gc.get_objects():
            ours = isinstance(thing, _CACHE) and thing.__module__.startswith("converter.")
            if ours and (read_again or thing is not loading.load):
                thing.cache_clear()


_CACHE = type(lru_cache(len))


def _code_of(module: CodeType, qualified: str) -> CodeType:
    code = module
    for name in qualified.split("."):
        code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=60, help="for the tests of one mutant")
    parser.add_argument("--only", default="", help="a part of the keys of those to run")
    parser.add_argument("--list", action="store_true", help="print the mutants and run none")
    parser.add_argument("--out", type=Path, default=ROOT / "mutants.json")
    asked = parser.parse_args()
    chosen = [m for m in drawn(asked.count, asked.seed) if asked.only in m.key]
    if asked.list:
        print("\n".join(f"{m.file}:{m.line} {m.key}" for m in chosen))
        return 0
    runs = Runs(chosen, asked.seconds, asked.out)
    code = pytest.main(["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"], plugins=[runs])
    left = [r for r in runs.results if r.outcome in ("survived", "unreached")]
    unexplained = [r for r in left if not r.why]
    killed, why = len(runs.results) - len(left), len(left) - len(unexplained)
    print(f"{len(runs.results)} mutants: {killed} killed, {why} survivors explained, {len(unexplained)} not")
    return int(code) or (1 if unexplained else 0)


if __name__ == "__main__":
    sys.exit(main())

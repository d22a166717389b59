"""Mutants of the code that judges: one small change each, run against the tests that reach its line.

    make coverage                                  # which test runs which line, and how long it takes
    python -m tests.mutants --count 300 --seed 9   # writes mutants.json; exit code 1 where one survives unexplained

A change is one of KINDS at one place of the source. Those of every module are listed in order, `--count` of them are
drawn with `--seed`, from each module in proportion to how many it has, and each is written into a copy of the
tree. A process is forked from one that has imported everything but the project, and runs there the tests that reach the
changed line, the quickest first, until one fails; that one is seen to pass without the change. Where none fails within
`--seconds`, the mutant has survived. `tests/mutants.yaml` explains those that no test can tell.

Not changed: docstrings and other text, annotations, decorators, assertions (for mypy), and how much of a value a
message shows. A returned value becomes another of its type, for mypy sees the rest. Of expressions in f-strings, Python
before 3.12 does not say where they are.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml

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
    """One change: the source from `start` to `end` (characters) becomes `after`. `key` stays when lines move."""

    file: str
    line: int
    key: str
    kind: str
    before: str
    after: str
    start: int
    end: int


@dataclass
class Result:
    """outcome   killed, timeout (which is killed, too), survived, or unreached: no test runs the line
    by        the test that failed
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
    source = path.read_text()
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))

    def at(line: int, column: int) -> int:
        """Columns of a tree are bytes."""
        text = source[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(text.encode()[:column].decode())

    found: list[Mutant] = []
    seen: dict[str, int] = defaultdict(int)
    for owner, kind, node, after in _changes(ast.parse(source)):
        start, end = at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)
        before = source[start:end]
        if before == after:
            continue
        key = f"{path.relative_to(ROOT).as_posix()}::{owner} {kind}: {_line(before)} -> {_line(after)}"
        seen[key] += 1
        if seen[key] > 1:
            key += f" #{seen[key]}"
        found.append(Mutant(path.relative_to(ROOT).as_posix(), node.lineno, key, kind, before, after, start, end))
    return found


def _line(code: str) -> str:
    text = " ".join(code.split())
    return text if len(text) <= 80 else text[:77] + "..."


Change = tuple[str, str, "ast.expr | ast.stmt", str]


def _changes(tree: ast.Module) -> Iterator[Change]:
    """owner (function or class), kind, the node that is replaced, and by what."""
    yield from _walk(tree, "module")


def _walk(node: ast.AST, owner: str) -> Iterator[Change]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        owner = node.name if owner == "module" else f"{owner}.{node.name}"
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _left(child):
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


def _own(node: ast.AST, parent: ast.AST, owner: str) -> Iterator[Change]:
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
        yield from ((f"{owner}.{node.name}".removeprefix("module."), *change) for change in _other_returns(node))
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


def _condition(test: ast.expr, owner: str) -> Iterator[Change]:
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
        contexts = self._lines[mutant.file].get(mutant.line, [])
        found = {_test_of(c) for c in contexts if c}
        for context in contexts:
            if context.endswith(("|setup", "(setup)")):
                found |= set(self._in_file[_test_of(context).partition("::")[0]])
        return sorted((t for t in found if t in self.seconds), key=lambda t: (self.seconds[t], t))


def _test_of(context: str) -> str:
    """pytest-cov says `TEST|run`, PYTEST_CURRENT_TEST `TEST (call)`."""
    return re.sub(r"(\|(setup|run|teardown)| \((setup|call|teardown)\))$", "", context)


# --- runs ---------------------------------------------------------------------------------------------------


class Copy:
    """The tree in a folder of its own, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                               capture_output=True).stdout  # fmt: skip
        for name in filter(None, files.decode().split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        subprocess.run([sys.executable, "-m", "compileall", "-q", "converter"], cwd=folder, check=True)
        os.environ["PYTHONDONTWRITEBYTECODE"] = (
            "1"  # one that is changed twice in a second would be taken for the other
        )

    def run(self, mutant: Mutant | None, tests: Sequence[str], seconds: float) -> tuple[str, str, int]:
        """Outcome, the test that failed, and how many were run."""
        file = self.folder / mutant.file if mutant else None
        whole = file.read_text() if file else ""
        if mutant and file:
            file.write_text(whole[: mutant.start] + mutant.after + whole[mutant.end :])
            for old in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
                old.unlink()
        log = self.folder / "outcome.json"
        log.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            self._in_child(tests, seconds, log)
        status = self._wait(child, seconds)
        if file:
            file.write_text(whole)
        said = json.loads(log.read_text()) if log.exists() else {"failed": "", "passed": 0, "running": ""}
        if status is None:
            return "timeout", said["running"], said["passed"]
        died = status not in (0, 5) and (said["running"] or not said["passed"])  # in a test, or before the first
        if said["failed"] or died:
            return "killed", said["failed"] or said["running"] or "collection", said["passed"]
        return "survived", "", said["passed"]

    def _wait(self, child: int, seconds: float) -> int | None:
        """The exit code; None where it hung. The last test that began in time has as long again."""
        ends = time.monotonic() + 2 * seconds + 30
        while time.monotonic() < ends:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None

    def _in_child(self, tests: Sequence[str], seconds: float, log: Path) -> None:
        code = 99
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            os.chdir(self.folder)
            sys.path[:] = [str(self.folder), *(p for p in sys.path if Path(p).resolve() != ROOT and p)]
            for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
                del sys.modules[name]
            for stream in (1, 2):
                os.dup2(os.open(self.folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
            import pytest

            os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
            options = ["-x", "-q", "-p", "no:cacheprovider", f"--rootdir={self.folder}"]
            code = int(pytest.main([*options, *tests], plugins=[_Order(tests, seconds, log)]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)


class _Order:
    """Tests in the order in which they are given, none begun after the time; what was run is written down."""

    def __init__(self, tests: Sequence[str], seconds: float, log: Path) -> None:
        self._place = {test: i for i, test in enumerate(tests)}
        self._ends, self._log = time.monotonic() + seconds, log
        self._said = {"failed": "", "passed": 0, "running": ""}

    def pytest_collection_modifyitems(self, items: list) -> None:  # type: ignore[type-arg]
        items.sort(key=lambda item: self._place.get(item.nodeid, len(self._place)))

    def pytest_runtest_setup(self, item) -> None:  # type: ignore[no-untyped-def]
        import pytest

        if time.monotonic() > self._ends:
            pytest.exit("time", returncode=0)
        self._say(running=item.nodeid)

    def pytest_runtest_logreport(self, report) -> None:  # type: ignore[no-untyped-def]
        if report.failed:
            self._say(failed=report.nodeid)
        elif report.when == "teardown":
            self._say(passed=int(self._said["passed"]) + 1, running="")

    def _say(self, **words: object) -> None:
        self._said |= words
        self._log.write_text(json.dumps(self._said))


def import_everything() -> None:
    """All but the project: a child is then ready in a tenth of a second, and reads the project as it is changed."""
    for name in (
        "hypothesis",
        "jsonschema",
        "numpy",
        "pytest",
        "rich.table",
        "safetensors.torch",
        "torch",
        "transformers",
    ):
        importlib.import_module(name)
    assert not any(name.partition(".")[0] == "converter" for name in sys.modules), "import the project in the children"


def run_all(chosen: Sequence[Mutant], seconds: float, out: Path) -> list[Result]:
    reach, explained = Reach(), yaml.safe_load(EXPLAINED.read_text()) or {}
    import_everything()
    results: list[Result] = []
    sound: dict[tuple[str, ...], bool] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Copy(Path(folder))
        for number, mutant in enumerate(chosen, 1):
            began, tests = time.monotonic(), reach.tests(mutant)
            if tests:
                result = Result(mutant, *tree.run(mutant, tests, seconds), reach=len(tests))
                judge = (result.by,) if result.by in reach.seconds else tuple(tests[:1]) if result.by else ()
                if judge and judge not in sound:
                    sound[judge] = tree.run(None, judge, seconds)[0] == "survived"
                if judge and not sound[judge]:
                    raise SystemExit(f"{judge[0]} fails without a mutant, too")
            else:
                result = Result(mutant, "unreached")
            result.seconds, result.why = round(time.monotonic() - began, 1), explained.get(mutant.key, "")
            results.append(result)
            out.write_text(json.dumps([asdict(r) for r in results], indent=1))
            print(f"{number:4} {result.outcome:9} {result.seconds:5.1f} s {mutant.file}:{mutant.line} {mutant.key}"
                  f"{'  by ' + result.by if result.by else ''}", flush=True)  # fmt: skip
    return results


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
    results = run_all(chosen, asked.seconds, asked.out)
    left = [r for r in results if r.outcome in ("survived", "unreached")]
    open_ones = [r for r in left if not r.why]
    print(f"{len(results)} mutants: {len(results) - len(left)} killed, {len(left) - len(open_ones)} explained, "
          f"{len(open_ones)} not")  # fmt: skip
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())

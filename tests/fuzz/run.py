"""Run fuzz targets and print what came of them: `python -m tests.fuzz.run [TARGET ...] [--runs N] [--examples N]`.

Each runs in a process of its own; a crash, a breach (tests/fuzz/guard.py), more than 5 seconds for one input or more
than 512 MB ends it, and the input is kept under crashes/. --corpus keeps what libFuzzer finds worth keeping, --record
writes the rows into a page of docs/.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
CRASHES = HERE / "crashes"
GUIDED = ("header", "index", "config", "pointer", "seal")
DRAWN = ("mapping", "samples", "pickles")
LONGEST = 8192  # bytes of an input; what only a large file brings about is in tests/test_hostile.py
_SECONDS, _MEGABYTES = 5, 512
# Executions in one process, which goes on from what the last one kept: under atheris 3.0.0 a process grows with each of
# some targets' inputs (seal: 8 KB), and the same inputs without libFuzzer leave memory as it was.
_AT_ONCE = 25_000
_BEGIN, _END = "<!-- of tests/fuzz/run.py -->\n", "<!-- end -->\n"
_HEAD = (
    "| target | executions | per second of CPU | edges | peak memory, MB | found | on |\n"
    "|---|---:|---:|---:|---:|---|---|\n"
)


@dataclass(frozen=True)
class Result:
    """What a target came to; seconds of CPU, its start and the reading of the corpus included."""

    target: str
    executions: int
    seconds: float
    edges: str
    memory: str
    found: str

    def row(self) -> str:
        rate = self.executions / max(self.seconds, 0.01)
        cells = (self.target, f"{self.executions:,}", f"{rate:,.0f}", self.edges, self.memory, self.found, date.today())
        return f"| {' | '.join(map(str, cells))} |\n"


def guided(name: str, runs: int, seconds: int, corpus: Path | None) -> Result:
    """One target under libFuzzer, by what it prints at the end of each process."""
    executions, took, edges, memory, found = 0, 0.0, 0, 0, "nothing"
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        kept = (corpus or Path(scratch)) / name
        kept.mkdir(parents=True, exist_ok=True)
        while executions < runs and found == "nothing":
            left = seconds - int(time.monotonic() - started)
            if seconds and left <= 0:
                break
            done, cpu = _fuzzed(name, min(runs - executions, _AT_ONCE), max(left, 0), kept)
            said = {
                key: re.findall(rf"{key}:\s+(\d+)", done.stderr) for key in ("executed_units", "peak_rss_mb", "cov")
            }
            executions += int((said["executed_units"] or ["0"])[-1])
            edges, memory = (
                max(n, *map(int, said[key] or ["0"])) for n, key in ((edges, "cov"), (memory, "peak_rss_mb"))
            )
            took += cpu
            found = _found(done)
    return Result(name, executions, took, str(edges), str(memory), found)


def _fuzzed(name: str, runs: int, seconds: int, kept: Path) -> tuple[subprocess.CompletedProcess[str], float]:
    CRASHES.mkdir(exist_ok=True)
    told = _run(
        "tests.fuzz.guided", name, f"-runs={runs}", f"-max_total_time={seconds}", f"-timeout={_SECONDS}",
        f"-rss_limit_mb={_MEGABYTES}", f"-max_len={LONGEST}", f"-artifact_prefix={CRASHES}/{name}-",
        "-print_final_stats=1", str(kept), str(HERE / "corpus" / name),
    )  # fmt: skip
    with suppress(OSError):  # it holds a crash, or another run has removed it
        CRASHES.rmdir()
    return told


def drawn(name: str, examples: int) -> Result:
    """One target with examples that hypothesis draws."""
    done, took = _run("tests.fuzz.drawn", name, str(examples))
    count, memory = done.stdout.split()[-2:] if done.returncode == 0 else ("0", "-")
    return Result(name, int(count), took, "-", memory, _found(done))


def _run(module: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    command = [sys.executable, "-m", module, *arguments]
    before = _cpu_of_children()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent.parent)
    if done.returncode:
        print(done.stderr[-6000:], done.stdout[-3000:], file=sys.stderr)
    return done, _cpu_of_children() - before


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _found(done: subprocess.CompletedProcess[str]) -> str:
    return "nothing" if done.returncode == 0 else "a crash, see above"


def recorded(page: str, rows: Sequence[str]) -> str:
    """The page with these rows in its table, in place of those of the same targets."""
    before, _, rest = page.partition(_BEGIN)
    old, _, after = rest.partition(_END)
    lines = [line for line in old.splitlines(keepends=True) if line.startswith("| ")][1:]
    named = {line.split(" | ")[0].strip("| "): line for line in (*lines, *rows)}
    table = "".join(named[name] for name in (*GUIDED, *DRAWN) if name in named)
    return f"{before}{_BEGIN}{_HEAD}{table}\n{_machine()}.\n{_END}{after}"


def _machine() -> str:
    cpu = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", cpu.read_text()) if cpu.exists() else []
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join((*GUIDED, *DRAWN)))
    parser.add_argument("--runs", type=int, default=100_000, help="executions of each target of atheris")
    parser.add_argument("--examples", type=int, default=10_000, help="examples of each target of hypothesis")
    parser.add_argument("--seconds", type=int, default=0, help="end each target of atheris after so long (0: never)")
    parser.add_argument("--corpus", type=Path, help="a folder for inputs that reach new branches")
    parser.add_argument("--record", type=Path, help="a page with a table that the rows are written into")
    asked = parser.parse_args()
    unknown = sorted({*asked.targets} - {*GUIDED, *DRAWN})
    if unknown:
        parser.error(f"no target is called {', '.join(unknown)}")
    print(f"{_machine()}\n\n{_HEAD}", end="", flush=True)
    found = []
    for name in asked.targets or (*GUIDED, *DRAWN):
        if name in GUIDED:
            result = guided(name, asked.runs, asked.seconds, asked.corpus)
        else:
            result = drawn(name, asked.examples)
        found.append(result)
        print(result.row(), end="", flush=True)
        if asked.record is not None:
            page = asked.record.read_text(encoding="utf-8")
            asked.record.write_text(recorded(page, [result.row()]), encoding="utf-8")
    return int(any(result.found != "nothing" for result in found))


if __name__ == "__main__":
    sys.exit(main())

"""Run fuzz targets and print what came of them: `python -m tests.fuzz.run [TARGET ...] [--runs N] [--examples N]`.

Each runs in a process of its own; a crash, a breach (tests/fuzz/guard.py),
more than 5 seconds for one input or more than
512 MB ends it, and the input is kept under crashes/. What libFuzzer finds worth keeping goes to --corpus, if given.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GUIDED = ("header", "index", "config", "pointer", "seal")
DRAWN = ("mapping", "samples", "pickles")
_SECONDS, _MEGABYTES = 5, 512
LONGEST = 8192  # bytes of an input; what only a large file brings about is in tests/test_hostile.py


def guided(name: str, runs: int, corpus: Path | None, seconds: int) -> dict[str, Any]:
    """One target under libFuzzer, in a process of its own; what it printed at the end."""
    with tempfile.TemporaryDirectory() as scratch:
        place = corpus or Path(scratch) / "corpus"
        place.mkdir(exist_ok=True)
        crashes = HERE / "crashes"
        command = [
            sys.executable, "-m", "tests.fuzz.guided", name, f"-runs={runs}", f"-timeout={_SECONDS}",
            f"-rss_limit_mb={_MEGABYTES}", f"-max_len={LONGEST}", f"-max_total_time={seconds}",
            f"-artifact_prefix={crashes}/{name}-", "-print_final_stats=1", "-verbosity=1", str(place),
            str(HERE / "corpus" / name),
        ]  # fmt: skip
        crashes.mkdir(exist_ok=True)
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent.parent)
        took = time.monotonic() - started
        if not any(crashes.iterdir()):
            crashes.rmdir()
    said = done.stderr
    edges = re.findall(r"cov: (\d+) ft: (\d+)", said)
    executions = re.search(r"number_of_executed_units:\s+(\d+)", said)
    memory = re.search(r"peak_rss_mb:\s+(\d+)", said)
    if done.returncode:
        print(said[-6000:] + done.stdout[-2000:], file=sys.stderr)
    return {
        "target": name, "executions": int(executions[1]) if executions else 0, "seconds": took,
        "edges": edges[-1][0] if edges else "-", "memory": memory[1] if memory else "-",
        "found": "nothing" if not done.returncode else "a crash, see above",
    }  # fmt: skip


def drawn(name: str, examples: int) -> dict[str, Any]:
    """One target with examples that hypothesis draws."""
    started = time.monotonic()
    command = [sys.executable, "-m", "tests.fuzz.drawn", name, str(examples)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent.parent)
    if done.returncode:
        print(done.stdout[-3000:] + done.stderr[-6000:], file=sys.stderr)
    count, memory = (done.stdout.split() or ["0", "-"])[-2:]
    return {
        "target": name, "executions": int(count) if count.isdigit() else 0, "seconds": time.monotonic() - started,
        "edges": "-", "memory": memory, "found": "nothing" if not done.returncode else "a crash, see above",
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join((*GUIDED, *DRAWN)))
    parser.add_argument("--runs", type=int, default=100_000, help="executions of each target of atheris")
    parser.add_argument("--examples", type=int, default=10_000, help="examples of each target of hypothesis")
    parser.add_argument("--seconds", type=int, default=0, help="end each target of atheris after so long (0: never)")
    parser.add_argument("--corpus", type=Path, help="keep inputs that reach new branches in this folder, by target")
    asked = parser.parse_args()
    rows, wanted = [], asked.targets or [*GUIDED, *DRAWN]
    unknown = sorted({*wanted} - {*GUIDED, *DRAWN})
    if unknown:
        parser.error(f"no target is called {', '.join(unknown)}")
    print(f"{date.today()}, {_machine()}\n")
    print("| target | executions | per second | edges | peak memory, MB | found |\n|---|---|---|---|---|---|")
    for name in wanted:
        if name in GUIDED:
            if asked.corpus:
                (asked.corpus / name).mkdir(parents=True, exist_ok=True)
            row = guided(name, asked.runs, asked.corpus / name if asked.corpus else None, asked.seconds)
        else:
            row = drawn(name, asked.examples)
        rows.append(row)
        rate = row["executions"] / row["seconds"]
        print(
            f"| {name} | {row['executions']:,} | {rate:,.0f} | {row['edges']} | {row['memory']} | {row['found']} |",
            flush=True,
        )
    return int(any(row["found"] != "nothing" for row in rows))


def _machine() -> str:
    cpu = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", cpu.read_text()) if cpu.exists() else []
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())

"""Runs every benchmark and writes its tables into docs/benchmarks.md, with machine and date (make bench).

    python benchmarks/bench.py                     all of it: under 15 minutes on two idle cores
    python benchmarks/bench.py cast validate       these alone
    python benchmarks/bench.py --list

Each is a script of its own beside this one, and a table stands in the page between two comments that name it. One that
fails, or that this machine cannot run, leaves its table as it is, and is named at the end.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from measuring import NOT_HERE

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
SHARED_MEMORY = Path("/dev/shm")  # a tmpfs where there is one
KIMI = ("--hidden", "7168", "--intermediate", "18432")

# Name in the page -> script and options. In memory the Kimi-K2.5 shape, on disk a smaller one, for information.
TABLES: dict[str, tuple[str, ...]] = {
    "memory": ("memory.py",),
    "convert-tmpfs": ("convert.py", *KIMI, "--rounds", "4", "--folder", str(SHARED_MEMORY)),
    "convert-disk": ("convert.py", "--rounds", "3"),
    "cast": ("cast.py",),
    "others": ("others.py", "--rounds", "2"),
    "validate": ("validate.py",),
    "hook": ("hook.py",),
    "forward": ("forward.py", "--seconds", "30"),
}


def written(page: str, name: str, table: str) -> str:
    """The page with this table in its place. Raises ValueError where the page has no such place."""
    place = re.compile(rf"(<!-- bench: {name} -->\n).*?(<!-- end: {name} -->\n)", re.DOTALL)
    if len(place.findall(page)) != 1:
        raise ValueError(f"{PAGE.name} has no one place for {name}")
    return place.sub(lambda found: f"{found[1]}\n{table.strip()}\n\n{found[2]}", page)


def run(words: Sequence[str]) -> tuple[int, str]:
    """The exit code of a script and what it prints; what is wrong it says itself."""
    done = subprocess.run([sys.executable, str(HERE / words[0]), *words[1:]], stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="which to make; all by default")
    parser.add_argument("--list", action="store_true", help="say what each runs, and run nothing")
    options = parser.parse_args()
    unknown = set(options.tables) - set(TABLES)
    if unknown:
        parser.error(f"no such table: {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    if options.list:
        print("\n".join(f"{name:14} python benchmarks/{' '.join(words)}" for name, words in TABLES.items()))
        return
    left, failed, began = [], False, time.monotonic()
    for name in options.tables or TABLES:
        if name == "convert-tmpfs" and not os.access(SHARED_MEMORY, os.W_OK):
            left.append(f"{name} ({SHARED_MEMORY} is not there)")
            continue
        started = time.monotonic()
        code, table = run(TABLES[name])
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        if code != 0:
            left.append(name)
            failed = failed or code != NOT_HERE
            continue
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), name, table), encoding="utf-8")
    print(f"in all: {(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)
    if left:
        print(f"left as they were: {', '.join(left)}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

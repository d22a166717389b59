"""Times `eagle3-validate` beside Python's own start and that of numpy, in one run.

    python benchmarks/validate.py                    the Kimi-K2.5 shape (make bench)
    python benchmarks/validate.py --rounds 20

The drafter has the header, config and vocabulary map of a real one; the rest of its 4.6 GB is a hole in a sparse file,
so nothing of that size is written. Every round runs every command once, in turn, each
in a process of its own. The result goes to stdout as Markdown, progress to stderr. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from drafters import POINTS, TARGET, Shape, write_drafter
from measuring import ROOT, Measured, circumstances, header_lines, measure_in_turn, say

KIMI = Shape(7168, 18432, 64, 163840, 32000, True, POINTS)
TINY = ROOT / "tests" / "data"
SEVERAL = 4
MANY = (1, 50, 200)  # drafters in one call
# No scan of every weight: what is timed here is all else. T115: the hole is a tensor of zeros.
OPTIONS = ("--no-scan", "--allow", "T115")


def write_target(folder: Path, shape: Shape) -> Path:
    """A bare config.json, as --target takes it."""
    text = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": shape.hidden,
        "vocab_size": shape.vocab,
    }
    file = folder / "config.json"
    folder.mkdir()
    file.write_text(json.dumps({"architectures": [TARGET], "model_type": "kimi_k25", "text_config": text}))
    return file


def commands(drafter: Path, target: Path) -> dict[str, Measured]:
    python = sys.executable
    validate = (python, "-m", "converter", "validate")
    shown = " ".join(("eagle3-validate DRAFTER", *OPTIONS))
    return {
        "pass": Measured("python", (python, "-c", "pass"), "python -c pass"),
        "numpy": Measured("numpy", (python, "-c", "import numpy"), "python -c 'import numpy'"),
        "help": Measured("--help", (*validate, "--help"), "eagle3-validate --help"),
        "explain": Measured("explain", (python, "-m", "converter", "explain", "K103"), "eagle3 explain K103"),
        "tiny": Measured(
            "validate, a tiny drafter",
            (*validate, str(TINY / "drafters" / "a_plain"), "--target", str(TINY / "target-tiny")),
            "eagle3-validate tests/data/drafters/a_plain --target tests/data/target-tiny",
        ),
        "validate": Measured("validate", (*validate, str(drafter), *OPTIONS), shown),
        "target": Measured(
            "validate --target",
            (*validate, str(drafter), *OPTIONS, "--target", str(target)),
            f"{shown} --target config.json",
        ),
        "several": Measured(
            f"validate --target, {SEVERAL} drafters",
            (*validate, *[str(drafter)] * SEVERAL, *OPTIONS, "--target", str(target)),
            f"{shown} ... --target config.json, {SEVERAL} times the drafter",
        ),
    }


def measure_many(drafter: Path, target: Path, rounds: int) -> list[tuple[int, Measured]]:
    """One call for each number of drafters in MANY, each with a folder of its own."""
    folders = [drafter.parent / f"{number:03}" for number in range(max(MANY))]
    for folder in folders:
        folder.mkdir()
        for file in drafter.iterdir():
            (folder / file.name).symlink_to(file)
    command = (sys.executable, "-m", "converter", "validate")
    found = []
    for number in MANY:
        given = (*command, *map(str, folders[:number]), *OPTIONS, "--target", str(target))
        found.append((number, Measured(f"{number} drafters", given)))
    for _ in range(rounds):
        for _, measured in found:
            measured.run()
            say(f"{measured.title}: {measured.wall[-1]:.1f} s, {measured.peak / 1e6:.0f} MB")
    return found


def many_as_markdown(found: Sequence[tuple[int, Measured]]) -> str:
    """What each further drafter costs, against the first call."""
    first = found[0][1]
    lines = ["| drafters in one call | min s | CPU s | ms for each further one | peak MB |", "|--:|--:|--:|--:|--:|"]
    for number, m in found:
        more = f"{(min(m.wall) - min(first.wall)) / (number - 1) * 1e3:.0f}" if number > 1 else ""
        lines.append(f"| {number} | {min(m.wall):.2f} | {min(m.cpu):.2f} | {more} | {m.peak / 1e6:.0f} |")
    return "\n".join(lines)


def as_markdown(all_commands: Mapping[str, Measured], size: int, load: float, rounds: int) -> str:
    best = {key: min(m.wall) for key, m in all_commands.items()}
    least = {key: min(m.cpu) for key, m in all_commands.items()}
    lines = [
        *header_lines(circumstances(load)),
        f"- a drafter of {size / 1e9:.2f} GB; {rounds} rounds",
        "",
        "| | min s | median s | CPU s | / python | / numpy | CPU / numpy | peak MB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for key, m in all_commands.items():
        median = statistics.median(m.wall)
        lines.append(
            f"| {m.title} | {best[key]:.2f} | {median:.2f} | {least[key]:.2f} | {best[key] / best['pass']:.1f} | "
            f"{best[key] / best['numpy']:.2f} | {least[key] / least['numpy']:.2f} | {m.peak / 1e6:.0f} |"
        )
    lines += ["", *(f"- {m.title}: `{m.shown}`" for m in all_commands.values())]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where to work")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eagle3-bench-", dir=options.folder.resolve()) as folder:
        drafter = write_drafter(Path(folder) / "in", KIMI, hole=True).parent
        found = commands(drafter, write_target(Path(folder) / "target", KIMI))
        before = os.getloadavg()[0]
        measure_in_turn(found, options.rounds)
        many = measure_many(drafter, Path(folder) / "target" / "config.json", min(options.rounds, 2))
        print(as_markdown(found, KIMI.nbytes, before, options.rounds))
        print("\n" + many_as_markdown(many))


if __name__ == "__main__":
    main()

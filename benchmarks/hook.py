"""Times what a `git push` waits for: the hook on sealed drafters, beside Python's start and a digest of the weights.

    python benchmarks/hook.py              a drafter of 3 GB (make bench)
    python benchmarks/hook.py --rounds 20

The drafter is converted and committed through git-lfs, which must be installed; the folder needs three times its size.
Every round runs every command once, in turn, each in a process of its own; the digest runs once. The result goes to
stdout as Markdown, progress to stderr.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from drafters import ENGINE, POINTS, TARGET, Shape, write_drafter
from measuring import ROOT, Measured, circumstances, header_lines, measure_in_turn, say

SHAPE = Shape(5120, 13824, 40, 163840, 32000, True, POINTS)
MANY, LONG = 100, 1000
NOTHING = "0" * 40


def git(folder: Path, *words: str, given: str = "") -> str:
    person = ("-c", "user.name=bench", "-c", "user.email=bench@example.org")
    command = ["git", "-C", str(folder), *person, *words]
    return subprocess.run(command, input=given, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def repository(folder: Path, drafter: Path) -> dict[str, str]:
    """A clone with the drafter under LFS; commits: with one drafter, with MANY, and LONG of them in a row."""
    clone = folder / "clone"
    subprocess.run(["git", "init", "-q", "-b", "main", str(clone)], check=True)
    git(clone, "lfs", "install", "--local")
    (clone / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
    (clone / ".eagle3.toml").write_text('require = "none"\n')
    drafter.rename(clone / "drafter")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "one")
    commits = {"one": git(clone, "rev-parse", "HEAD")}
    for number in range(MANY - 1):
        git(clone, "read-tree", f"--prefix=many/{number}/", "HEAD:drafter")
    tree = git(clone, "write-tree")
    commits["many"] = git(clone, "commit-tree", "-m", "many", tree)
    stream = []
    for number in range(LONG):
        text, start = f"card {number}", "" if number else f"from {commits['one']}\n"
        stream.append(
            f"commit refs/heads/long\ncommitter b <b@example.org> {number} +0000\ndata 1\n.\n{start}"
            f"M 100644 inline README.md\ndata {len(text)}\n{text}\n"
        )
    git(clone, "fast-import", "--quiet", given="".join(stream))
    commits["long"] = git(clone, "rev-parse", "refs/heads/long")
    subprocess.run([sys.executable, "-m", "converter", "hook", "install", "--repo", str(clone)], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    return commits


def commands(folder: Path, commits: Mapping[str, str]) -> dict[str, Measured]:
    clone, python = shlex.quote(str(folder / "clone")), shlex.quote(sys.executable)

    def hook(title: str, commit: str) -> Measured:
        line = f"refs/heads/x {commit} refs/heads/x {NOTHING}"
        run = f"cd {clone} && echo {line} | {python} -m converter hook run origin URL 2>/dev/null"
        return Measured(title, ("sh", "-c", run))

    weights = str(folder / "clone" / "drafter" / "model.safetensors")
    return {
        "pass": Measured("python", (sys.executable, "-c", "pass")),
        "one": hook("1 drafter", commits["one"]),
        "many": hook(f"{MANY} drafters", commits["many"]),
        "long": hook(f"1 drafter, {LONG:,} new commits", commits["long"]),
        "sha256sum": Measured("sha256sum", ("sha256sum", weights)),
    }


def as_markdown(found: Mapping[str, Measured], load: float, rounds: int) -> str:
    lines = [
        *header_lines(circumstances(load)),
        f"- {git(ROOT, 'version')}; a drafter of {SHAPE.nbytes / 1e9:.2f} GB; {rounds} rounds",
        "",
        "| | min s | median s | CPU s | peak MB |",
        "|---|--:|--:|--:|--:|",
    ]
    for m in found.values():
        median = statistics.median(m.wall)
        lines.append(f"| {m.title} | {min(m.wall):.2f} | {median:.2f} | {min(m.cpu):.2f} | {m.peak / 1e6:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where to work")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eagle3-bench-", dir=options.folder.resolve()) as name:
        folder = Path(name)
        say("writing, converting and committing the drafter")
        write_drafter(folder / "in", SHAPE)
        given = (str(folder / "in"), str(folder / "out"), "--engine", ENGINE, "--target-arch", TARGET, "-q")
        subprocess.run([sys.executable, "-m", "converter", "convert", *given], cwd=ROOT, check=True)
        found = commands(folder, repository(folder, folder / "out"))
        digest = found.pop("sha256sum")
        load = os.getloadavg()[0]
        measure_in_turn(found, options.rounds)
        digest.run()
        print(as_markdown({**found, "sha256sum": digest}, load, options.rounds))


if __name__ == "__main__":
    main()

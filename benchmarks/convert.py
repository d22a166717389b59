"""Times a conversion beside `cp`, `sha256sum` and the script that people write by hand, in one run.

    python benchmarks/convert.py                                                  a smaller drafter (make bench)
    python benchmarks/convert.py --hidden 7168 --intermediate 18432               the Kimi-K2.5 shape
    python benchmarks/convert.py --hidden 7168 --intermediate 18432 --with-embedding

A drafter as the speculators library saves it is written once, with bf16 values at random, into a temporary folder.
Every round then runs every command once, on files that are in the page cache and after `sync`, so that none
pays for what another left unwritten; what a command wrote is removed before the next one starts. The result goes
to stdout as Markdown, progress to stderr. Standard library only, and no large buffers: the peak memory that the
kernel reports for a child is never less than what its parent had (`floor` in the result).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from drafters import ENGINE, POINTS, TARGET, Shape, write_drafter
from measuring import (
    ENVIRONMENT,
    ROOT,
    Measured,
    circumstances,
    filesystem,
    header_lines,
    peak_of_this,
    say,
    version_of,
    workplace,
)

BLOCK = 256 << 10

# What one writes when no tool is at hand: all tensors in memory, names replaced, all of it saved.
SCRIPT = """
import sys
from safetensors.torch import load_file, save_file
tensors = load_file(sys.argv[1])
renamed = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
save_file(renamed, sys.argv[2], metadata={"format": "pt"})
"""


# --- measuring ----------------------------------------------------------------------------------------------


def commands(weights: Path, out: Path) -> dict[str, Measured]:
    """Every command under a short key. All write to `out`, or only read."""
    python, file = sys.executable, str(out / "model.safetensors")
    convert = ("-m", "converter", "convert")
    options = ("--engine", ENGINE, "--target-arch", TARGET)
    shown = f"python -m converter convert IN OUT --engine {ENGINE} --target-arch {TARGET}"
    copy = (str(weights), file)
    given = (python, *convert, str(weights.parent), str(out), *options)

    def conversion(*more: str) -> Measured:
        return Measured(" ".join(("convert", *more)), (*given, *more), " ".join((shown, *more)))

    found = {
        "cp": Measured("cp", ("cp", *copy), "cp IN OUT"),
        "cp_sync": Measured("cp, then sync", ("sh", "-c", 'cp "$0" "$1" && sync "$1"', *copy), "cp IN OUT && sync OUT"),
        "sha256sum": Measured("sha256sum", ("sha256sum", str(weights)), "sha256sum IN"),
        "openssl": Measured("openssl", ("openssl", "dgst", "-sha256", str(weights)), "openssl dgst -sha256 IN"),
        "convert": conversion(),
        "no_digest": conversion("--no-digest"),
        "dry_run": conversion("--dry-run"),
        "cast": conversion("--dtype", "float32", "--no-digest"),
        "script": Measured(
            "script", (python, "-c", SCRIPT, str(weights), file), "load_file, rename, save_file (safetensors.torch)"
        ),
        "help": Measured("start", (python, "-m", "converter", "--help"), "python -m converter --help"),
    }
    for key in ("sha256sum", "openssl"):
        if shutil.which(found[key].command[0]) is None:
            del found[key]
    if not all(version_of(package) for package in ("torch", "safetensors")):
        del found["script"]
    return found


def measure(all_commands: Mapping[str, Measured], weights: Path, out: Path, rounds: int) -> None:
    """Run each command `rounds` times in turn. A conversion first, unmeasured, compiles what is not yet compiled."""
    subprocess.run(all_commands["no_digest"].command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
    shutil.rmtree(out)
    for number in range(rounds):
        for key, measured in all_commands.items():
            _read_through(weights)
            if key in ("cp", "cp_sync", "script"):
                out.mkdir()
            os.sync()
            measured.run()
            shutil.rmtree(out, ignore_errors=True)
            say(f"round {number + 1} of {rounds}: {measured.title} {measured.wall[-1]:.2f} s")


def _read_through(path: Path) -> None:
    """Bring the file into the page cache, where it fits."""
    buffer = bytearray(BLOCK)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


# --- reporting ----------------------------------------------------------------------------------------------


def result(shape: Shape, size: int, all_commands: Mapping[str, Measured], load: float) -> dict[str, Any]:
    """Everything that was measured, and where; ratios are of the minima."""
    best = {key: min(measured.wall) for key, measured in all_commands.items()}
    rows = {}
    for key, measured in all_commands.items():
        rows[key] = {
            "title": measured.title,
            "command": measured.shown,
            "wall_s": measured.wall,
            "cpu_s": measured.cpu,
            "peak_bytes": measured.peak,
            "to_cp": best[key] / best["cp"],
            "to_cp_sync": best[key] / best["cp_sync"],
            **{f"to_max_cp_{by}": _to_digest(best, key, by) for by in ("sha256sum", "openssl")},
        }
    return {
        **circumstances(load),
        "shape": asdict(shape),
        "file_bytes": size,
        "floor_bytes": peak_of_this(),
        "commands": rows,
    }


def _to_digest(best: Mapping[str, float], key: str, digester: str) -> float | None:
    """Ratio to the slower of a copy and a digest, None where the system has no `digester`."""
    return best[key] / max(best["cp"], best[digester]) if digester in best else None


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def as_markdown(found: Mapping[str, Any]) -> str:
    shape = found["shape"]
    rounds = len(found["commands"]["cp"]["wall_s"])
    sizes = f"hidden {shape['hidden']}, intermediate {shape['intermediate']}, {shape['heads']} heads"
    vocabulary = f"vocabulary {shape['vocab']} (draft {shape['draft_vocab']})"
    embedding = f"{'with' if shape['with_embedding'] else 'without'} embedding"
    lines = [
        *header_lines(found, found["file_system"]),
        f"- {sizes}, {vocabulary}, {embedding}: {found['file_bytes'] / 1e9:.2f} GB; {rounds} rounds",
        "",
        "| | min s | median s | CPU s | / cp | / cp + sync | / max(cp, sha256sum) | / max(cp, openssl) | peak MB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in found["commands"].values():
        floor = row["peak_bytes"] <= found["floor_bytes"]
        peak = f"{'< ' if floor else ''}{row['peak_bytes'] / 1e6:.0f}"
        lines.append(
            f"| {row['title']} | {min(row['wall_s']):.2f} | {statistics.median(row['wall_s']):.2f} "
            f"| {min(row['cpu_s']):.2f} | {row['to_cp']:.2f} | {row['to_cp_sync']:.2f} "
            f"| {_ratio(row['to_max_cp_sha256sum'])} | {_ratio(row['to_max_cp_openssl'])} | {peak} |"
        )
    lines += ["", *(f"- {row['title']}: `{row['command']}`" for row in found["commands"].values())]
    return "\n".join(lines)


# --- the command --------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--intermediate", type=int, default=12288)
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=163840)
    parser.add_argument("--draft-vocab", type=int, default=32000)
    parser.add_argument("--with-embedding", action="store_true", help="the drafter carries its embedding")
    parser.add_argument("--points", default=",".join(map(str, POINTS)), help="layer ids; not ascending: fc is re-cut")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where to work")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single time there as well")
    options = parser.parse_args()
    points = tuple(int(point) for point in options.points.split(","))
    shape = Shape(
        options.hidden,
        options.intermediate,
        options.heads,
        options.vocab,
        options.draft_vocab,
        options.with_embedding,
        points,
    )
    with workplace(options.folder.resolve(), shape.nbytes) as folder:
        say(f"writing a drafter of {shape.nbytes / 1e9:.2f} GB")
        weights = write_drafter(folder / "in", shape)
        out = folder / "out"
        all_commands = commands(weights, out)
        before = os.getloadavg()[0]
        measure(all_commands, weights, out, options.rounds)
        found = result(shape, weights.stat().st_size, all_commands, before)
        found["file_system"] = filesystem(folder)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(as_markdown(found))


if __name__ == "__main__":
    main()

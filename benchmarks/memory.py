"""Peak memory of a conversion by the size of the drafter, beside the script that people write by hand.

    python benchmarks/memory.py                     0.1, 1, 4 and 16 GB (make bench)
    python benchmarks/memory.py --sizes 0.1 1

One run each, in a process of its own. The largest needs 33 GB of disk. The result goes
to stdout as Markdown, progress to stderr. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from convert import SCRIPT
from drafters import ENGINE, POINTS, TARGET, Shape, write_drafter
from measuring import Measured, circumstances, filesystem, header_lines, peak_of_this, say, workplace

SIZES = (0.1, 1.0, 4.0, 16.0)
# Sizes in GB up to which these are run: what they need beyond is said in the table.
CAST_UP_TO, SCRIPT_UP_TO = 4.0, 4.0
CAST, BY_HAND = "--dtype float32", "load_file, rename, save_file"


def shape_of(gigabytes: float) -> Shape:
    """A drafter of this size: a narrow one, or the Kimi-K2.5 shape with as large an embedding as it takes."""
    if gigabytes < 3:
        hidden, intermediate, draft = (512, 1024, 8000) if gigabytes < 0.5 else (2048, 8192, 32000)
    else:
        hidden, intermediate, draft = 7168, 18432, 32000
    plain = Shape(hidden, intermediate, 8, draft, draft, False, POINTS).nbytes
    vocab = max(int((gigabytes * 1e9 - plain) / (2 * hidden + 1)), draft + 1000)
    return Shape(hidden, intermediate, 8, vocab, draft, True, POINTS)


def commands(source: Path, out: Path, gigabytes: float) -> list[Measured]:
    python = sys.executable
    convert = (python, "-m", "converter", "convert", str(source), str(out), "--engine", ENGINE, "--target-arch", TARGET)
    found = [
        Measured("convert", convert),
        Measured("--no-digest", (*convert, "--no-digest")),
    ]
    if gigabytes <= CAST_UP_TO:
        found.append(Measured(CAST, (*convert, "--dtype", "float32")))
    if gigabytes <= SCRIPT_UP_TO:
        file = str(out / "model.safetensors")
        found.append(Measured(BY_HAND, (python, "-c", SCRIPT, str(source / "model.safetensors"), file)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, metavar="GB")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where to work")
    options = parser.parse_args()
    titles = ["convert", "--no-digest", CAST, BY_HAND]
    before = os.getloadavg()[0]
    rows = []
    for gigabytes in options.sizes:
        shape = shape_of(gigabytes)
        with workplace(options.folder.resolve(), shape.nbytes, 3 if gigabytes <= CAST_UP_TO else 2) as folder:
            source, out = write_drafter(folder / "in", shape).parent, folder / "out"
            size = (source / "model.safetensors").stat().st_size
            peaks = {}
            for measured in commands(source, out, gigabytes):
                if measured.title == BY_HAND:
                    out.mkdir()
                measured.run()
                peaks[measured.title] = measured.peak
                shutil.rmtree(out)
                say(f"{size / 1e9:.2f} GB: {measured.title} {measured.peak / 1e6:.0f} MB, {measured.wall[0]:.1f} s")
            shown = (f"{peaks[t] / 1e6:.0f}" if t in peaks else "not run" for t in titles)
            rows.append(f"| {size / 1e9:.2f} GB | {' | '.join(shown)} |")
    lines = [
        *header_lines(circumstances(before), filesystem(options.folder)),
        f"- peak resident memory in MB; under {peak_of_this() / 1e6:.0f} it cannot be told here",
        "",
        f"| | {' | '.join(titles)} |",
        "|---|--:|--:|--:|--:|",
        *rows,
    ]
    print("\n".join(lines))


if __name__ == "__main__":
    main()

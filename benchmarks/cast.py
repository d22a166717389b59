"""Times the casts of `--dtype` beside a plain copy in memory and torch's own casts, in blocks, in one run.

    python benchmarks/cast.py                      (make bench)

An array of normal values is cast in parts of two megabytes, by `converter.transforms.cast`, by
`torch.Tensor.to` on one thread and on all, and copied; each in turn, so that what else the machine does falls on all
alike. The rates are bytes read and written together, of the fastest round. Markdown on stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from itertools import permutations

import numpy as np
import torch
from measuring import circumstances, header_lines, say

from converter.transforms import cast

PART = 2 << 20  # bytes, as a conversion reads them
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def stored(values: torch.Tensor, name: str) -> np.ndarray:
    """As `checkpoint.read` gives them."""
    made = values.to(DTYPES[name])
    return made.view(torch.uint16).numpy() if name == "BF16" else made.numpy()


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=32 << 20)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    before, threads = os.getloadavg()[0], torch.get_num_threads()
    values = torch.randn(options.values, generator=torch.Generator().manual_seed(0)) * 0.02
    lines = []
    for source, target in permutations(DTYPES, 2):
        ours, theirs = stored(values, source), values.to(DTYPES[source])
        step = PART // ours.itemsize
        parts = range(0, len(ours), step)

        def by_torch(count: int, theirs: torch.Tensor = theirs, to: str = target, s: int = step) -> list[torch.Tensor]:
            torch.set_num_threads(count)
            return [theirs[i : i + s].to(DTYPES[to]) for i in range(0, len(theirs), s)][-1:]

        def by_us(ours: np.ndarray = ours, pair: tuple[str, str] = (source, target), s: int = step) -> None:
            for i in range(0, len(ours), s):
                cast(ours[i : i + s], *pair)

        width = torch.finfo(DTYPES[target]).bits // 8
        wide = max((ours, stored(values, target)), key=lambda array: array.itemsize)

        def copied(wide: np.ndarray = wide, s: int = PART // wide.itemsize) -> None:
            for i in range(0, len(wide), s):
                wide[i : i + s].copy()

        ways: dict[str, Callable[[], object]] = {
            "cast": by_us,
            "torch 1": lambda run=by_torch: run(1),
            "torch all": lambda run=by_torch: run(threads),
            "copy": copied,
        }
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(options.rounds):
            for way, work in ways.items():
                best[way] = min(best[way], timed(work))
        moved = {way: len(ours) * (ours.itemsize + width) for way in ways} | {"copy": 2 * wide.nbytes}
        rates = {way: moved[way] / best[way] / 1e9 for way in ways}
        say(f"{source} to {target}, {len(parts)} parts: {', '.join(f'{w} {r:.1f} GB/s' for w, r in rates.items())}")
        lines.append(
            f"| {NAMES[source]} to {NAMES[target]} | {rates['cast']:.1f} | {rates['torch 1']:.1f} "
            f"| {rates['torch all']:.1f} | {rates['copy']:.1f} | {best['cast'] / best['torch 1']:.1f} |"
        )
    head = header_lines(circumstances(before))
    title = f"| GB/s, read and written | cast | torch, 1 thread | torch, {threads} threads | copy | x torch, 1 thread |"
    print("\n".join([*head, "", title, "|---|--:|--:|--:|--:|--:|", *lines]))


if __name__ == "__main__":
    main()

"""Times the forward pass over a sample beside the plain matrix products that it consists of, in one run.

    python benchmarks/forward.py                            tiny and Kimi-K2.5 shape, on every device (make bench)
    python benchmarks/forward.py --shapes kimi --seconds 600

A drafter and a sample of random values are made in memory. `evaluate` then runs over the sample, and after it the
products alone (F.linear with the drafter's own weights: fc once, each other weight once per step, as many rows as
`evaluate` takes at once), and again, in turn, so that what else the machine does falls on both. Then the cost of
judging the neighbours of a wiring, and the peak memory over samples of several sizes, each in a process of its own.
fp32 on the CPU, bf16 on CUDA. The result goes to stdout as Markdown, progress to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from measuring import circumstances, header_lines, peak_of_this, say
from torch import Tensor
from torch.nn import functional as F

from converter.drafter.layout import expected_tensors
from converter.drafter.spec import DrafterSpec, Rope
from converter.forward.embedding import Embedding
from converter.forward.evaluate import BLOCK, Side, evaluate
from converter.forward.model import DraftModel
from converter.forward.search import Alternatives, Judge, Judgement
from converter.forward.wiring import declared, flippable

STEPS = 3
MOST_PAIRS = 20
_ROWS = 521  # of the tables that states and embeddings are taken from: small, and a prime
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}


def _spec(
    hidden: int,
    intermediate: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    draft_vocab: int,
    points: tuple[int, ...],
) -> DrafterSpec:
    """One layer, no flags."""
    return DrafterSpec(
        hidden_size=hidden,
        target_hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
        draft_vocab_size=draft_vocab,
        hidden_act="silu",
        rms_norm_eps=1e-5,
        max_position_embeddings=262144,
        rope=Rope(50000.0),
        layer_windows=(None,),
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        fc_bias=False,
        qk_norm=False,
        norm_before_residual=False,
        norm_before_fc=False,
        fc_norm=False,
        norm_output=False,
        tie_word_embeddings=False,
        capture_points=points,
        dtype="bfloat16",
        origins={},
    )


SHAPES = {
    "tiny": _spec(64, 192, 4, 2, 16, 512, 384, (1, 3, 5)),
    "kimi": _spec(7168, 18432, 64, 8, 128, 163840, 32000, (2, 30, 58)),
    # For memory: keys as in the Kimi shape, logits of a fourth, the rest small, for many rows in little time.
    "narrow": _spec(512, 1024, 16, 8, 128, 163840, 8000, (2, 30, 58)),
}
POINTS = {"tiny": tuple(range(7)), "kimi": (0, 2, 30, 58), "narrow": (0, 2, 30, 58)}  # in the sample
# Sequences and rows of each; the Kimi shape takes seconds a hundred rows on a CPU.
SAMPLES = {
    ("tiny", "cpu"): (32, 256),
    ("tiny", "cuda"): (32, 256),
    ("kimi", "cpu"): (1, 512),
    ("kimi", "cuda"): (4, 2048),
}
JUDGED = {
    ("tiny", "cpu"): (4, 256),
    ("tiny", "cuda"): (4, 256),
    ("kimi", "cpu"): (1, 64),
    ("kimi", "cuda"): (4, 256),
}
# glibc: whatever is freed of a MiB or more goes back to the system, so that the peak is of what was held. One thread,
# because these runs are not timed and two that wait for each other on a busy machine take much longer.
_MEMORY = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "OMP_NUM_THREADS": "1"}
GROWTH = ((1, 1), (2, 1), (8, 1), (1, 8))  # sequences, and blocks in each


# --- a drafter and a sample of random values ----------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """A sequence whose states are rows of one small table, so that it costs the same whatever its length.

    RandomStates (converter/forward/states.py) makes all states of the sequence again for every block.
    """

    tokens: Tensor
    counts: Tensor
    target_next: Tensor
    points: tuple[int, ...]
    table: Tensor

    def state(self, point: int, start: int = 0, stop: int | None = None) -> Tensor:
        rows = torch.arange(start, min(stop or len(self.tokens), len(self.tokens)))
        return self.table[(rows + 37 * point) % len(self.table)]


def random_sample(shape: str, sequences: int, rows: int) -> list[Rows]:
    spec = SHAPES[shape]
    table = torch.randn(_ROWS, spec.target_hidden_size)
    made = []
    for _ in range(sequences):
        tokens = torch.randint(spec.vocab_size, (rows + 1,))
        every = torch.ones(rows + 1, dtype=torch.bool)
        made.append(Rows(tokens, every, tokens, POINTS[shape], table))
    return made


def random_side(shape: str, device: torch.device) -> Side:
    spec, dtype = SHAPES[shape], DTYPES[device.type]
    values = torch.randn(1_000_003).to(device, dtype)
    weights = {}
    for name, expected in expected_tensors(spec).items():
        if name == "embed_tokens.weight":
            continue
        weights[name] = torch.ones(expected.shape, device=device, dtype=dtype)
        if len(expected.shape) == 2:
            for part in weights[name].view(-1).split(len(values)):
                part.copy_(values[: len(part)]).mul_(expected.shape[1] ** -0.5)
    table = torch.randn(_ROWS, spec.hidden_size)
    embedding = Embedding("random", lambda s, start, stop: table[s.tokens[start:stop] % _ROWS])
    kept = torch.randperm(spec.vocab_size)[: spec.draft_vocab_size].sort().values
    return Side("random", DraftModel(spec, weights), spec.capture_points, embedding, kept, spec.vocab_size)


# --- measuring ----------------------------------------------------------------------------------------------


def matrices(side: Side) -> dict[str, tuple[Tensor, int]]:
    """Name -> weight [out, in], and how often a row goes through it."""
    return {
        name: (weight, 1 if name == "fc.weight" else STEPS)
        for name, weight in side.model.weights.items()
        if weight.ndim == 2
    }


def flop(side: Side) -> int:
    """Of one position with all its steps: the products with weights, not those of attention."""
    return sum(2 * weight.numel() * times for weight, times in matrices(side).values())


@torch.inference_mode()
def products(side: Side, rows: int) -> Callable[[], None]:
    """The products of `rows` rows, as a call; what they are taken of is made before."""
    taken = [(weight, times) for weight, times in matrices(side).values()]
    inputs = {
        weight.shape[1]: torch.randn(rows, weight.shape[1]).to(weight.device, weight.dtype) for weight, _ in taken
    }

    @torch.inference_mode()
    def run() -> None:
        for weight, times in taken:
            for _ in range(times):
                F.linear(inputs[weight.shape[1]], weight)

    return run


@dataclass(frozen=True)
class Took:
    """Seconds of one run; `cpu` of this process, all threads."""

    wall: float
    cpu: float


def timed(call: Callable[[], object], device: torch.device) -> Took:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


def held(device: torch.device) -> int:
    """Bytes to set a later `peak` against. On the CPU the peak so far: nothing is made here and let go before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    return peak(device)


def peak(device: torch.device) -> int:
    """Bytes in use at the highest point so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_of_this()


@dataclass
class Speed:
    """Runs of `evaluate` over `rows` rows, and of the products of as many."""

    shape: str
    device: str
    sequences: int
    rows: int
    flop: int
    over_weights: int
    evaluate: list[Took] = field(default_factory=list)
    products: list[Took] = field(default_factory=list)


def speed(shape: str, side: Side, at_least: float) -> Speed:
    """Pairs of both, in turn, for `at_least` seconds: two pairs or more, MOST_PAIRS at most."""
    device = side.model.device
    sequences, length = SAMPLES[shape, device.type]
    sample, rows = random_sample(shape, sequences, length), sequences * length
    block = min(rows, BLOCK[device.type])
    assert rows % block == 0
    evaluate([side], random_sample(shape, 1, 16), STEPS)  # whatever is done once
    one_block = products(side, block)

    def plain() -> None:
        for _ in range(rows // block):
            one_block()

    if device.type == "cuda":
        plain()
    before = held(device)
    found = Speed(shape, device.type, sequences, rows, flop(side), 0)
    started = time.perf_counter()
    while len(found.evaluate) < 2 or (time.perf_counter() - started < at_least and len(found.evaluate) < MOST_PAIRS):
        found.evaluate.append(timed(lambda: evaluate([side], sample, STEPS), device))
        found.over_weights = found.over_weights or peak(device) - before
        found.products.append(timed(plain, device))
        say(f"{shape}, {device.type}: {found.evaluate[-1].wall:.2f} s, products {found.products[-1].wall:.2f} s")
    return found


@dataclass(frozen=True)
class Judged:
    """Judging the neighbours, and `evaluate` on the same sample."""

    shape: str
    device: str
    positions: int
    wirings: int
    evaluate: Took
    neighbours: Took


def judged(shape: str, side: Side) -> Judged:
    """A random drafter fits no wiring better than another, so hardly one is decided early: the dearest case."""
    sample = random_sample(shape, *JUDGED[shape, side.model.device.type])
    alternatives = Alternatives(POINTS[shape], flippable(side.model.weights), {}, {})
    device, wiring = side.model.device, declared(side.model.spec)
    judge = Judge(side, sample, STEPS, alternatives)
    found: list[Judgement] = []
    alone = min((timed(lambda: evaluate([side], sample, STEPS), device) for _ in range(3)), key=lambda took: took.wall)
    neighbours = timed(lambda: found.append(judge.neighbours(wiring)), device)
    say(f"{shape}, {device.type}: neighbours {neighbours.wall:.2f} s, evaluate {alone.wall:.2f} s")
    wirings = len(found[0].others) + 2  # the declared one, and the control
    return Judged(shape, device.type, found[0].positions, wirings, alone, neighbours)


def over_weights(device: torch.device, sequences: int, rows: int) -> int:
    """Bytes that `evaluate` takes over the weights and the sample at its highest point."""
    side, sample = random_side("narrow", device), random_sample("narrow", sequences, rows)
    evaluate([side], random_sample("narrow", 1, 16), STEPS)
    before = held(device)
    evaluate([side], sample, STEPS)
    return peak(device) - before


def growth(device: str) -> list[dict[str, int]]:
    """`over_weights` of the samples of GROWTH, each in a process of its own: peaks do not come down again."""
    found = []
    for sequences, blocks in GROWTH:
        rows = blocks * BLOCK[device]
        command = [sys.executable, str(Path(__file__).resolve()), "--memory", device, str(sequences), str(rows)]
        taken = int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=_MEMORY).stdout)
        found.append({"sequences": sequences, "rows": rows, "bytes": taken})
        say(f"memory, {device}: {sequences} x {rows} rows {taken / 1e6:.0f} MB")
    return found


# --- reporting ----------------------------------------------------------------------------------------------


def as_markdown(found: Mapping[str, Any]) -> str:
    where, releases = header_lines(found)
    lines = [
        where,
        *(f"- {name}" for name in found["gpus"]),
        f"{releases}; threads: {found['threads']}",
        "",
        "| shape | device | rows | positions/s | GFLOP/position | GFLOP/s | products | share | in CPU s | MB more |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in found["speed"]:
        best = {what: min(run["wall"] for run in row[what]) for what in ("evaluate", "products")}
        cpu = {what: min(run["cpu"] for run in row[what]) for what in ("evaluate", "products")}
        rates = {what: row["flop"] * row["rows"] / seconds for what, seconds in best.items()}
        lines.append(
            f"| {row['shape']} | {row['device']} | {row['sequences']} x {row['rows'] // row['sequences']} "
            f"| {row['rows'] / best['evaluate']:,.1f} | {row['flop'] / 1e9:.4g} | {rates['evaluate'] / 1e9:,.1f} "
            f"| {rates['products'] / 1e9:,.1f} | {best['products'] / best['evaluate']:.2f} "
            f"| {'' if row['device'] == 'cuda' else format(cpu['products'] / cpu['evaluate'], '.2f')} "
            f"| {row['over_weights'] / 1e6:.0f} |"
        )
    lines += ["", "Seconds of each pair, `evaluate` / products:", ""]
    for row in found["speed"]:
        pairs = (f"{a['wall']:.2f} / {b['wall']:.2f}" for a, b in zip(row["evaluate"], row["products"], strict=True))
        lines.append(f"- {row['shape']}, {row['device']}: {', '.join(pairs)}")
    lines += [
        "",
        "| neighbours | device | positions | wirings | s | CPU s | evaluate s | CPU s | x evaluate | in CPU s |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in found["neighbours"]:
        judging, once = row["neighbours"], row["evaluate"]
        lines.append(
            f"| {row['shape']} | {row['device']} | {row['positions']} | {row['wirings']} | {judging['wall']:.2f} "
            f"| {judging['cpu']:.2f} | {once['wall']:.2f} | {once['cpu']:.2f} | {judging['wall'] / once['wall']:.1f} "
            f"| {judging['cpu'] / once['cpu']:.1f} |"
        )
    lines += ["", "| memory | sequences x rows | MB over weights and sample |", "|---|--:|--:|"]
    for device, rows in found["memory"].items():
        lines += [f"| {device} | {r['sequences']} x {r['rows']} | {r['bytes'] / 1e6:.0f} |" for r in rows]
    return "\n".join(lines)


# --- the command --------------------------------------------------------------------------------------------


def measure(shapes: Sequence[str], devices: Sequence[str], at_least: float) -> dict[str, Any]:
    before = os.getloadavg()[0]
    # First, while this process is small: a child's peak is never less than what its parent had when it started it.
    memory = {device: growth(device) for device in devices}
    speeds, neighbours = [], []
    for device in devices:
        for shape in shapes:
            side = random_side(shape, torch.device(device))
            speeds.append(asdict(speed(shape, side, at_least)))
            neighbours.append(asdict(judged(shape, side)))
            del side
    return {
        **circumstances(before),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if "cuda" in devices else [],
        "threads": torch.get_num_threads(),
        "speed": speeds,
        "neighbours": neighbours,
        "memory": memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    there = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    parser.add_argument("--shapes", nargs="+", choices=("tiny", "kimi"), default=("tiny", "kimi"))
    parser.add_argument("--devices", nargs="+", choices=there, default=there)
    parser.add_argument("--seconds", type=float, default=60, help="how long each shape is timed, at least (60)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single time there as well")
    parser.add_argument("--memory", nargs=3, metavar=("DEVICE", "SEQUENCES", "ROWS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.memory:
        device, sequences, rows = options.memory
        print(over_weights(torch.device(device), int(sequences), int(rows)))
        return
    found = measure(options.shapes, options.devices, options.seconds)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(as_markdown(found))


if __name__ == "__main__":
    main()

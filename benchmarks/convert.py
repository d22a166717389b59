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
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

ROOT = Path(__file__).resolve().parent.parent
BLOCK = 256 << 10
POINTS = (2, 30, 58)
ENGINE = "sglang==0.5.23"
TARGET = "KimiK25ForConditionalGeneration"
PACKAGES = ("eagle3-convert", "numpy", "xxhash", "click", "rich", "torch", "safetensors")

# Compiled modules are kept, as an installed package has them.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

# What one writes when no tool is at hand: all tensors in memory, names replaced, all of it saved.
SCRIPT = """
import sys
from safetensors.torch import load_file, save_file
tensors = load_file(sys.argv[1])
renamed = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
save_file(renamed, sys.argv[2], metadata={"format": "pt"})
"""


@dataclass(frozen=True)
class Shape:
    """A drafter's sizes; the defaults of the command line keep `make bench` to a few minutes."""

    hidden: int
    intermediate: int
    heads: int
    vocab: int
    draft_vocab: int
    with_embedding: bool
    points: tuple[int, ...]

    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name -> dtype and shape, in the order of the file (one layer, as many key and value heads as heads)."""
        h, i, width = self.hidden, self.intermediate, 2 * self.hidden
        shapes = {
            "d2t": ("I64", (self.draft_vocab,)),
            "embed_tokens.weight": ("BF16", (self.vocab, h)),
            "fc.weight": ("BF16", (h, len(self.points) * h)),
            "layers.0.hidden_norm.weight": ("BF16", (h,)),
            "layers.0.input_layernorm.weight": ("BF16", (h,)),
            "layers.0.mlp.down_proj.weight": ("BF16", (h, i)),
            "layers.0.mlp.gate_proj.weight": ("BF16", (i, h)),
            "layers.0.mlp.up_proj.weight": ("BF16", (i, h)),
            "layers.0.post_attention_layernorm.weight": ("BF16", (h,)),
            "layers.0.self_attn.k_proj.weight": ("BF16", (h, width)),
            "layers.0.self_attn.o_proj.weight": ("BF16", (h, h)),
            "layers.0.self_attn.q_proj.weight": ("BF16", (h, width)),
            "layers.0.self_attn.v_proj.weight": ("BF16", (h, width)),
            "lm_head.weight": ("BF16", (self.draft_vocab, h)),
            "norm.weight": ("BF16", (h,)),
            "t2d": ("BOOL", (self.vocab,)),
        }
        if not self.with_embedding:
            del shapes["embed_tokens.weight"]
        return shapes

    @property
    def nbytes(self) -> int:
        return sum(nbytes_of(*tensor) for tensor in self.tensors().values())

    def config(self) -> dict[str, Any]:
        """As speculators 0.9.0 writes it."""
        return {
            "architectures": ["Eagle3DraftModel"],
            "draft_vocab_size": self.draft_vocab,
            "dtype": "bfloat16",
            "eagle_aux_hidden_state_layer_ids": list(self.points),
            "embed_requires_grad": False,
            "fc_norm": False,
            "norm_before_fc": False,
            "norm_before_residual": False,
            "norm_output": False,
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [
                    {
                        "accept_tolerance": 0.0,
                        "proposal_type": "greedy",
                        "speculative_tokens": 3,
                        "verifier_accept_k": 1,
                    }
                ],
                "verifier": {"architectures": [TARGET], "name_or_path": "target"},
            },
            "speculators_model_type": "eagle3",
            "speculators_version": "0.9.0",
            "target_hidden_size": None,
            "tie_word_embeddings": False,
            "transformer_layer_config": {
                "attention_bias": False,
                "attention_dropout": 0.0,
                "head_dim": self.hidden // self.heads,
                "hidden_act": "silu",
                "hidden_size": self.hidden,
                "initializer_range": 0.02,
                "intermediate_size": self.intermediate,
                "layer_types": ["full_attention"],
                "max_position_embeddings": 262144,
                "mlp_bias": False,
                "model_type": "llama",
                "num_attention_heads": self.heads,
                "num_hidden_layers": 1,
                "num_key_value_heads": self.heads,
                "pretraining_tp": 1,
                "rms_norm_eps": 1e-05,
                "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"},
                "tie_word_embeddings": False,
                "use_cache": True,
                "vocab_size": self.vocab,
            },
            "transformers_version": "5.19.0",
        }


def nbytes_of(dtype: str, shape: Sequence[int]) -> int:
    count = {"BF16": 2, "I64": 8, "BOOL": 1}[dtype]
    for n in shape:
        count *= n
    return count


def write_drafter(folder: Path, shape: Shape) -> Path:
    """Write config.json and model.safetensors; returns the latter's path."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=2), encoding="utf-8")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    cursor = 0
    for name, (dtype, size) in shape.tensors().items():
        end = cursor + nbytes_of(dtype, size)
        header[name] = {"dtype": dtype, "shape": size, "data_offsets": [cursor, end]}
        cursor = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    rng = random.Random(0)
    kept = sorted(rng.sample(range(shape.vocab), shape.draft_vocab))
    values = _finite_bf16(rng)
    weights = folder / "model.safetensors"
    with weights.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (dtype, size) in shape.tensors().items():
            if name == "d2t":
                file.writelines((full - draft).to_bytes(8, "little") for draft, full in enumerate(kept))
            elif name == "t2d":
                marks = bytearray(shape.vocab)
                for full in kept:
                    marks[full] = 1
                file.write(marks)
            else:
                _write_values(file, values, nbytes_of(dtype, size), rng.randrange(_VALUES))
    return weights


_VALUES = 1_000_003  # a prime, so that no two rows of a tensor are alike though the values come again


def _finite_bf16(rng: random.Random) -> bytes:
    """The bits of random values; with the highest bit of the exponent cleared none is infinite or not a number."""
    values = bytearray(rng.randbytes(2 * _VALUES))
    values[1::2] = values[1::2].translate(bytes(byte & 0b1011_1111 for byte in range(256)))
    return bytes(values)


def _write_values(file: BinaryIO, values: bytes, count: int, first: int) -> None:
    """`count` bytes of `values`, from the value `first` on and round again."""
    start = 2 * first
    while count:
        count -= file.write(memoryview(values)[start : start + count])
        start = 0


# --- measuring ----------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """A command and what each of its runs took; seconds, and bytes of resident memory at the peak."""

    title: str
    shown: str
    command: Sequence[str] = field(repr=False)
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: int = 0

    def run(self) -> None:
        started = time.perf_counter()
        child = subprocess.Popen(
            self.command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)  # with whatever it started
            child.wait()
            raise
        wall = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            sys.exit(f"failed with exit code {child.returncode}: {' '.join(self.command)}")
        self.wall.append(wall)
        self.cpu.append(usage.ru_utime + usage.ru_stime)
        self.peak = max(self.peak, _rss(usage))


def _rss(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def commands(weights: Path, out: Path) -> dict[str, Measured]:
    """Every command under a short key. All write to `out`, or only read."""
    python, file = sys.executable, str(out / "model.safetensors")
    convert = ("-m", "converter", "convert")
    options = ("--engine", ENGINE, "--target-arch", TARGET)
    shown = f"python -m converter convert IN OUT --engine {ENGINE} --target-arch {TARGET}"
    copy = (str(weights), file)
    found = {
        "cp": Measured("cp", "cp IN OUT", ("cp", *copy)),
        "cp_sync": Measured("cp, then sync", "cp IN OUT && sync OUT", ("sh", "-c", 'cp "$0" "$1" && sync "$1"', *copy)),
        "sha256sum": Measured("sha256sum", "sha256sum IN", ("sha256sum", str(weights))),
        "openssl": Measured("openssl", "openssl dgst -sha256 IN", ("openssl", "dgst", "-sha256", str(weights))),
        "convert": Measured("convert", shown, (python, *convert, str(weights.parent), str(out), *options)),
        "no_digest": Measured(
            "convert --no-digest",
            f"{shown} --no-digest",
            (python, *convert, str(weights.parent), str(out), *options, "--no-digest"),
        ),
        "dry_run": Measured(
            "convert --dry-run",
            f"{shown} --dry-run",
            (python, *convert, str(weights.parent), str(out), *options, "--dry-run"),
        ),
        "cast": Measured(
            "convert --dtype float32",
            f"{shown} --dtype float32",
            (python, *convert, str(weights.parent), str(out), *options, "--dtype", "float32"),
        ),
        "script": Measured(
            "script", "load_file, rename, save_file (safetensors.torch)", (python, "-c", SCRIPT, str(weights), file)
        ),
        "help": Measured("start", "python -m converter --help", (python, "-m", "converter", "--help")),
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


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- reporting ----------------------------------------------------------------------------------------------


def result(shape: Shape, size: int, all_commands: Mapping[str, Measured], load: Sequence[float]) -> dict[str, Any]:
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
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": machine(),
        "load_average": {"before": load[0], "after": load[1]},
        "python": platform.python_version(),
        "packages": {package: version_of(package) for package in PACKAGES},
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


def machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
    }


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def peak_of_this() -> int:
    """Resident bytes of this process at its peak: less is not seen of a child."""
    return _rss(resource.getrusage(resource.RUSAGE_SELF))


def header_lines(load: Sequence[float], *more: str) -> list[str]:
    """Date, machine, load and releases, as every table here begins."""
    where = machine()
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    on = ", ".join([where["cpu"], f"{where['cores']} cores", f"{where['memory_gib']} GiB", where["system"], *more])
    packages = ", ".join(f"{name} {version_of(name)}" for name in PACKAGES if version_of(name))
    return [
        f"- {today}, {on}; load average {load[0]:.1f} before, {load[1]:.1f} after",
        f"- Python {platform.python_version()}, {packages}",
    ]


def as_markdown(found: Mapping[str, Any], on: str) -> str:
    shape, load = found["shape"], found["load_average"]
    rounds = len(found["commands"]["cp"]["wall_s"])
    sizes = f"hidden {shape['hidden']}, intermediate {shape['intermediate']}, {shape['heads']} heads"
    vocabulary = f"vocabulary {shape['vocab']} (draft {shape['draft_vocab']})"
    embedding = f"{'with' if shape['with_embedding'] else 'without'} embedding"
    lines = [
        *header_lines((load["before"], load["after"]), on),
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


def filesystem(folder: Path) -> str:
    """The type of the file system that holds `folder`, where the system tells."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        ran = subprocess.run(["df", "--output=fstype", str(folder)], capture_output=True, text=True, check=True)
        return ran.stdout.split()[-1]
    return "unknown file system"


# --- the command --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def workplace(parent: Path, size: int) -> Iterator[Path]:
    """A temporary folder that is removed however the run ends; refuses where it does not fit."""
    needed = 3 * size + (1 << 30)  # --dtype float32 writes twice the size
    free = shutil.disk_usage(parent).free
    if free < needed:
        sys.exit(f"{parent} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed: name another with --folder")

    def stop(*_: object) -> None:
        sys.exit(143)

    before: Callable[..., Any] | int | None = signal.signal(signal.SIGTERM, stop)
    try:
        with tempfile.TemporaryDirectory(prefix="eagle3-bench-", dir=parent) as folder:
            yield Path(folder)
    finally:
        signal.signal(signal.SIGTERM, before)


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
        found = result(shape, weights.stat().st_size, all_commands, (before, os.getloadavg()[0]))
        found["file_system"] = filesystem(folder)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(as_markdown(found, found["file_system"]))


if __name__ == "__main__":
    main()

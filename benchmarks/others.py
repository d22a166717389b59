"""Times this tool beside the converters of trainers: `speculators convert` and SpecForge's export, in one run.

    python benchmarks/others.py                     (make bench; needs the environment that `make test-engines` makes)

Each on a drafter of random bf16 values in the form that it reads, beside `eagle3-convert` on the same files to the
same form: an engine's drafter to speculators' form, and SpecForge's training state to SGLang's. Theirs run in the
environment of the engine tests, by their own functions, without their command line. Every round runs every command
once, in turn. The result goes to stdout as Markdown, progress to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from drafters import ENGINE, POINTS, Shape, write_drafter
from measuring import ENVIRONMENT, NOT_HERE, ROOT, Measured, circumstances, filesystem, header_lines, say, workplace

sys.path.insert(0, str(ROOT))
from tests.engines import environment

CLASS = "LlamaForCausalLM"  # of the target: speculators' converter builds a Llama layer
SPECULATORS, SPECFORGE = "speculators==0.9.0", "specforge==0.2.0"

PRELUDE = """
import os, sys, warnings
os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TORCHDYNAMO_DISABLE="1")
warnings.filterwarnings("ignore")
import torch
from transformers import AutoConfig, PreTrainedModel
import stubs
stubs.install(("datasets", "hs_connectors", "typer", "deepspeed"))
given, target, out = sys.argv[1:]
"""
BY_SPECULATORS = """
from speculators.convert.entrypoints import convert_model
convert_model(given, target, "eagle3", out, eagle_aux_hidden_state_layer_ids=[2, 30, 58])
"""
BY_SPECFORGE = """
from specforge.export.to_sglang import export_to_sglang
export_to_sglang(given + "/training_state.pt", given + "/config.json", out)
"""
# As its checkpoints have it: the drafter's own names without the embedding.
STATE = """
import sys, torch
from safetensors.torch import load_file
torch.save({"draft_state_dict": load_file(sys.argv[1]), "strategy": "eagle3"}, sys.argv[2])
"""


def write_target(folder: Path, shape: Shape) -> Path:
    folder.mkdir()
    config = {
        "architectures": [CLASS],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "num_hidden_layers": 61,
        "num_attention_heads": shape.heads,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 262144,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def prepare(folder: Path, shape: Shape) -> tuple[Path, Path, Path]:
    """A target, the drafter as an engine loads it, and SpecForge's training state of the same."""
    target, served, state = write_target(folder / "target", shape), folder / "served", folder / "state"
    trained = write_drafter(folder / "trained", shape).parent
    convert(trained, served, target, "--engine", ENGINE)
    shutil.rmtree(trained)
    state.mkdir()
    run = (sys.executable, "-c", STATE, str(served / "model.safetensors"), str(state / "training_state.pt"))
    subprocess.run(run, env=ENVIRONMENT, check=True)
    shutil.copy(served / "config.json", state)
    return target, served, state


def words(given: Path, out: Path, target: Path, *more: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "converter", "convert", str(given), str(out), "--target", str(target), *more)


def convert(given: Path, out: Path, target: Path, *more: str) -> None:
    subprocess.run(words(given, out, target, *more), cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)


def commands(
    engines: environment.EngineEnvironment, target: Path, served: Path, state: Path, out: Path
) -> dict[str, tuple[Measured, ...]]:
    """What is compared under each heading, theirs first."""

    def theirs(package: str, work: str, given: Path) -> tuple[str, ...]:
        path = os.pathsep.join([engines.pythonpath(package), str(ROOT / "tests" / "engines" / "harness")])
        code = PRELUDE + work
        return ("env", f"PYTHONPATH={path}", str(engines.python), "-c", code, str(given), str(target), str(out))

    back = words(served, out, target, "--to", "speculators", "--dialect", ENGINE)
    forth = words(state, out, target, "--dialect", "specforge", "--engine", ENGINE)
    return {
        "an engine's drafter to speculators' form": (
            Measured(f"{SPECULATORS} convert_model", theirs(SPECULATORS, BY_SPECULATORS, served)),
            Measured("eagle3-convert --to speculators", back),
            Measured("eagle3-convert --to speculators --no-digest", (*back, "--no-digest")),
        ),
        "SpecForge's training state to SGLang's form": (
            Measured(f"{SPECFORGE} export_to_sglang", theirs(SPECFORGE, BY_SPECFORGE, state)),
            Measured("eagle3-convert", forth),
            Measured("eagle3-convert --no-digest", (*forth, "--no-digest")),
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where to work")
    parser.add_argument("--make", action="store_true", help="make the environment where it is not there (1.6 GB)")
    options = parser.parse_args()
    shape = Shape(4096, 12288, 32, 163840, 32000, False, POINTS)
    before = os.getloadavg()[0]
    lines = []
    with workplace(options.folder.resolve(), 2 * shape.nbytes) as folder:
        say("writing the drafters")
        if not options.make and not list(environment.cache_folder().glob("*/venv")):
            say("the environment of the engine tests is not there: make test-engines, or --make (1.6 GB)")
            sys.exit(NOT_HERE)
        found = commands(environment.ensure(), *prepare(folder, shape), folder / "out")
        for number in range(options.rounds):
            for measured in (m for row in found.values() for m in row):
                os.sync()
                measured.run()
                if not list((folder / "out").glob("*.safetensors")):
                    sys.exit(f"{measured.title} wrote no weights")
                shutil.rmtree(folder / "out")
                say(f"round {number + 1} of {options.rounds}: {measured.title} {measured.wall[-1]:.1f} s")
        on = filesystem(folder)
    for job, row in found.items():
        lines += [f"| *{job}* | | | | |"]
        best = min(row[0].wall)
        lines += [
            f"| {m.title} | {min(m.wall):.2f} | {min(m.cpu):.2f} | {best / min(m.wall):.1f} | {m.peak / 1e6:.0f} |"
            for m in row
        ]
    head = header_lines(circumstances(before), on)
    head.append(f"- a drafter of {shape.nbytes / 1e9:.2f} GB; {options.rounds} rounds")
    print("\n".join([*head, "", "| | min s | CPU s | times as fast | peak MB |", "|---|--:|--:|--:|--:|", *lines]))


if __name__ == "__main__":
    main()

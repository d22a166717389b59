"""The drafters of tests/data: converting them, loading them, and what is expected of them.

They were made by the speculators library, and its own model's logits over states of the target are
recorded beside them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tests.faults.changes import config, header
from tests.support import DATA, DRAFTERS, ROOT, SAMPLE, TARGET

TARGET_LAYERS = 6

#: fp32 on both sides; the logits are of the order of 10.
LOGIT_TOLERANCE = 1e-3

#: What the faults that tests put in move logits by at least.
LOGIT_FAULT = 1.0

#: The recorded logits of steps after the first are every fourth row.
ROWS_RECORDED = 4

Job = dict[str, Any]


@dataclass(frozen=True)
class Loaded:
    """What a release made of a drafter; `outputs` is empty if it did not get that far."""

    result: dict[str, Any]
    outputs: dict[str, np.ndarray]

    def logit_error(self, drafter: str, step: int) -> float:
        """Largest distance from the logits that the trainer's own model computed."""
        recorded = load_file(DATA / "expected" / f"{drafter}.safetensors")
        expected = recorded[f"s0.draft_logits_step{step}"]
        computed = self.outputs["logits"] if step == 0 else self.outputs["next_logits"][::ROWS_RECORDED]
        assert computed.shape == expected.shape
        return float(np.abs(computed - expected).max())


#: Converted into several files, which every engine has to find by their index.
SHARDED = ("e_2layers", "k_embedgrad")


class Workshop:
    """A scratch folder in which drafters are converted, damaged and made ready to be loaded."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.convert = cache(self._convert)

    def _convert(self, drafter: str, *engines: str) -> tuple[Path, str | None]:
        """The folder converted for these engines, and what the converter printed if it failed."""
        output = self._scratch / "+".join(engines) / drafter
        output.parent.mkdir(exist_ok=True)
        command = [
            *(sys.executable, "-m", "converter", "convert"),
            *(str(DRAFTERS / drafter), str(output)),
            *(word for engine in engines for word in ("--engine", engine)),
            *("--target", str(TARGET)),
            *(("--max-shard-size", "50KB") if drafter in SHARDED else ()),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        failure = f"{done.stdout}{done.stderr}" if done.returncode else None
        return output, failure

    def copy(self, folder: Path, name: str) -> Path:
        """A copy of a converted folder, to be damaged."""
        return shutil.copytree(folder, folder.parent / name.replace(" ", "-"))

    def job(self, name: str, folder: Path, inputs: dict[str, np.ndarray], **more: Any) -> Job:
        """A job for load_sglang.py and load_vllm.py; `more` are further keys of it."""
        files = folder.parent / f"job-{name.replace(' ', '-')}"
        save_file(inputs, f"{files}.inputs")
        return {
            "name": name,
            "drafter": str(folder),
            "target": str(TARGET),
            "target_weights": str(TARGET / "model.safetensors"),
            "dtype": "float32",
            "inputs": f"{files}.inputs",
            "outputs": f"{files}.outputs",
            **more,
        }


def collect(jobs: Iterable[Job], results: dict[str, dict[str, Any]]) -> dict[str, Loaded]:
    """The results of jobs with the outputs that they have left."""
    found = {}
    for job in jobs:
        outputs = Path(job["outputs"])
        tensors = load_file(outputs) if outputs.exists() else {}
        found[job["name"]] = Loaded(results[job["name"]], tensors)
    return found


def change_config(folder: Path, **changes: Any) -> None:
    """Set keys of a folder's config.json; None takes a key out."""
    config(changes)(folder)


def rename_tensor(folder: Path, old: str, new: str) -> None:
    """Give a tensor of a folder another name."""
    header(lambda entries: entries.update({new: entries.pop(old)}))(folder)


def trained_points(drafter: str) -> list[int]:
    return _config(drafter)["eagle_aux_hidden_state_layer_ids"]


def trained_windows(drafter: str) -> list[int | None]:
    """The attention window of each layer, None where it sees everything."""
    layer = _config(drafter)["transformer_layer_config"]
    kinds = layer.get("layer_types") or ["full_attention"] * layer["num_hidden_layers"]
    return [layer["sliding_window"] if kind == "sliding_attention" else None for kind in kinds]


def _config(drafter: str) -> dict[str, Any]:
    return json.loads((DRAFTERS / drafter / "config.json").read_text())


def sample_inputs(drafter: str) -> dict[str, np.ndarray]:
    """The first sequence of the sample as a draft prefill: token i + 1 with the state at i."""
    sample = load_file(SAMPLE)
    tokens, states = sample["s0.input_ids"], sample["s0.hidden_states"]
    return {
        "input_ids": tokens[1:],
        "aux_hidden_states": np.concatenate([states[point, :-1] for point in trained_points(drafter)], axis=-1),
        "positions": np.arange(1, len(tokens)),
    }


def inputs_in_another_order(drafter: str) -> dict[str, np.ndarray]:
    """The same with the first two of the three states exchanged."""
    inputs = sample_inputs(drafter)
    low, middle, high = np.split(inputs["aux_hidden_states"], 3, axis=-1)
    return {**inputs, "aux_hidden_states": np.concatenate([middle, low, high], axis=-1)}


def target_token_ids(drafter: str) -> list[int] | None:
    """The target's ids of the draft tokens, read off the mask that says which are in."""
    with safe_open(DRAFTERS / drafter / "model.safetensors", framework="numpy") as file:
        if "t2d" not in file.keys():  # noqa: SIM118  (the file is no mapping)
            return None
        return np.flatnonzero(file.get_tensor("t2d")).tolist()

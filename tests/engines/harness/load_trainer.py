"""Loads drafters with their trainer's own class, as it does to train on, and says what it holds then.

A job names a `drafter`, a folder. A result has

    class        the class that the trainer's own code chose
    config       the configuration as that class holds it
    tensors      name -> digest of every parameter and buffer, in fp32
    not_in_file  those that the folder has no tensor for
    not_loaded   tensors of the folder whose values are in none of them under their name
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"

# isort: split
import beginning  # noqa: F401
import jobs
import stubs
import torch
from safetensors.torch import load_file

#: What the trainers' files import for their data, which is not read here.
stubs.install(("datasets", "hs_connectors", "typer", "deepspeed"))


def load(job: jobs.Job, result: jobs.Result) -> None:
    drafter = str(job["drafter"])
    result["stage"] = "loading"
    model = LOADERS[next(name for name in LOADERS if importlib.util.find_spec(name))](drafter)
    result["class"] = f"{type(model).__module__}.{type(model).__qualname__}"
    result["config"] = model.config.to_dict()
    held = {name: value.float() for name, value in model.state_dict().items()}
    stored = load_file(Path(drafter) / "model.safetensors")
    result["tensors"] = {name: digest(value) for name, value in held.items()}
    result["not_in_file"] = sorted(held.keys() - stored.keys())
    result["not_loaded"] = sorted(
        name for name, value in stored.items() if name not in held or not torch.equal(held[name], value.float())
    )


def digest(value: torch.Tensor) -> str:
    return hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()[:16]


def with_speculators(drafter: str) -> torch.nn.Module:
    from speculators import SpeculatorModel

    return SpeculatorModel.from_pretrained(drafter)


def with_specforge(drafter: str) -> torch.nn.Module:
    from specforge.modeling.auto import AutoDraftModel, AutoDraftModelConfig

    config = AutoDraftModelConfig.from_file(str(Path(drafter) / "config.json"))
    return AutoDraftModel.from_pretrained(drafter, config=config)


LOADERS = {"speculators": with_speculators, "specforge": with_specforge}

if __name__ == "__main__":
    jobs.main(load, __doc__)

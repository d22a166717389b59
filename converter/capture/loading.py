"""The target and its tokenizer, loaded by transformers (4.51 or newer)."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version

from converter.checkpoint.jsonfile import shortened
from converter.errors import InputError, UsageError
from converter.findings import error
from converter.forward.device import choose_device
from converter.hub.ids import hub_id
from converter.hub.snapshot import CONFIG, cached


@dataclass(frozen=True)
class Place:
    """Where the target is: what transformers is given, and the folder of its files on this machine.

    revision   the commit on the Hub, None for a folder
    """

    name: str
    revision: str | None
    folder: Path


def locate(target: Path) -> Place:
    """`target` is a folder, its config.json, or a commit on the Hub whose config.json was fetched before.

    Raises UsageError for a folder in a repository.
    """
    named = hub_id(target)
    if named is None:
        folder = target if target.is_dir() else target.parent
        return Place(str(folder), None, folder)
    if named.path:
        raise UsageError(f"--target {named.uri}: the model to run must be at the top of its repository")
    config = cached(named, CONFIG)
    assert config is not None
    return Place(named.repo, named.revision, config.parent)


def quieten(bars: bool) -> None:
    """Keep transformers' remarks from the terminal; its bars while weights load stay where `bars` is true."""
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from transformers.utils import logging

    logging.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()
        disable_progress_bars()


def load_tokenizer(place: Place, trust: bool) -> Any:
    """The target's tokenizer; `trust` runs code of its folder. Raises InputError F131 where none can be used."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(place.name, revision=place.revision, trust_remote_code=trust)
    except Exception as problem:  # whatever transformers meets in a stranger's files
        raise InputError(
            error(
                "F131",
                f"transformers finds no tokenizer of the target: {_first_line(problem)}",
                where=place.name,
                fix=_fixes(problem, "copy tokenizer.json and tokenizer_config.json into the target's folder"),
            )
        ) from problem
    if not callable(tokenizer):
        raise InputError(error("F131", "the target's tokenizer cannot be used", where=place.name))
    return tokenizer


def load_model(place: Place, dtype: str, device: str, trust: bool) -> Any:
    """The target, in `dtype` (auto: its own), on `device` (auto: spread over the GPUs that there are).

    `trust` runs code of its folder.

    Raises UsageError where the device does not exist and InputError F130 where the target cannot be loaded.
    """
    import transformers

    chosen = choose_device(device)
    options: dict[str, Any] = {"revision": place.revision, "trust_remote_code": trust}
    key = "dtype" if Version(transformers.__version__) >= Version("4.56") else "torch_dtype"
    options[key] = dtype
    mapped = importlib.util.find_spec("accelerate") is not None
    if mapped:
        everywhere = device == "auto" and chosen.type == "cuda"
        options["device_map"] = "auto" if everywhere else {"": str(chosen)}
    try:
        config = transformers.AutoConfig.from_pretrained(place.name, revision=place.revision, trust_remote_code=trust)
        model = _class_for(config).from_pretrained(place.name, config=config, **options)
        return (model if mapped else model.to(chosen)).eval()
    except Exception as problem:  # whatever transformers meets in a stranger's files
        where = "take another --device" if isinstance(problem, torch.OutOfMemoryError) else "check the folder"
        raise InputError(
            error(
                "F130",
                f"transformers {transformers.__version__} cannot load the target: {_first_line(problem)}",
                where=place.name,
                fix=_fixes(problem, where),
            )
        ) from problem


def _class_for(config: Any) -> Any:
    """Models with vision towers have a class of their own; their language model is what is run."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    remote = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if type(config) in AutoModelForCausalLM._model_mapping or remote:
        return AutoModelForCausalLM
    return AutoModelForImageTextToText


def _first_line(problem: Exception) -> str:
    lines = [line for line in str(problem).splitlines() if line.strip()]
    return shortened(f"{type(problem).__name__}: {lines[0].strip()}" if lines else type(problem).__name__)


def _fixes(problem: Exception, otherwise: str) -> tuple[str, ...]:
    if "trust_remote_code" in str(problem):
        return ("read the code in the target's folder, then: --trust-remote-code runs it",)
    return (otherwise,)

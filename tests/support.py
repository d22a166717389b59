"""What several tests need: the bundled real drafters, and copies of them with something changed."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from converter import cli
from converter.pipeline import Report, Request, convert, validate
from converter.run import Wish

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).parent / "data"
DRAFTERS = DATA / "drafters"
PRODUCERS = DATA / "producers"
TARGET = DATA / "target-tiny"
SAMPLE = DATA / "samples" / "tiny.safetensors"
NAMES = sorted(p.name for p in DRAFTERS.iterdir())

Config = dict[str, Any]
Tensors = dict[str, Any]


def copy_of(
    name: str,
    folder: Path,
    config: Callable[[Config], None] | None = None,
    tensors: Callable[[Tensors], None] | None = None,
) -> Path:
    """A copy of a bundled drafter at `folder`, its config and tensors (torch, by name) edited in place."""
    folder.mkdir(parents=True)
    document = json.loads((DRAFTERS / name / "config.json").read_text())
    if config is not None:
        config(document)
    (folder / "config.json").write_text(json.dumps(document))
    if tensors is None:
        shutil.copy(DRAFTERS / name / "model.safetensors", folder)
    else:
        from safetensors.torch import load_file, save_file

        weights = load_file(DRAFTERS / name / "model.safetensors")
        tensors(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def sample_without_point_0(folder: Path, points: str) -> Path:
    """The bundled sample without the states of its point 0; `points` is what it calls those that are left."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(SAMPLE)
    for name in [n for n in tensors if n.endswith("hidden_states")]:
        tensors[name] = tensors[name][1:].contiguous()
    save_file(tensors, folder / "sample.safetensors", {"capture_points": points})
    return folder / "sample.safetensors"


@contextmanager
def quiet(total: int):  # type: ignore[no-untyped-def]
    yield lambda count: None


_WISHES = {f.name for f in fields(Wish)}


def request(source: Path, **options: Any) -> Request:
    """A request; options of Wish (sample, prove, ...) go where they belong."""
    wish = Wish(**{k: options.pop(k) for k in list(options) if k in _WISHES})
    return Request(source=str(source), wish=wish, **options)


def run(source: Path, out: Path, engine: str = "sglang==0.5.23", **options: Any) -> Report:
    """Convert in this process; `target` defaults to the drafters' own."""
    options.setdefault("target", TARGET)
    return convert(request(source, out=out, engines=(engine,), **options), quiet)


def check(source: Path, *engines: str, **options: Any) -> Report:
    """Validate in this process; `target` defaults to the drafters' own."""
    options.setdefault("target", TARGET)
    return validate(request(source, engines=engines, **options))


def errors(report: Report) -> list[str]:
    """Codes of the errors that stop the run, once each."""
    return sorted({f.code for f in report.findings if f.severity == "error" and not f.allowed})


def codes(report: Report) -> list[str]:
    return sorted({f.code for f in report.findings})


Done = subprocess.CompletedProcess[str]
_PLAIN = {"NO_COLOR": "1", "COLUMNS": "100"}


def eagle3(*arguments: object) -> Done:
    """What a user who types `eagle3 ARGUMENTS` gets, without a process: starting one costs more than most runs."""
    words = list(map(str, arguments))
    if "--mapping" in words:  # such rules stay for as long as the process lives
        return eagle3_process(*words)
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with (
        patch.object(sys, "argv", ["eagle3", *words]), patch.dict(os.environ, _PLAIN),
        redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended,
    ):  # fmt: skip
        cli.main()
    code = ended.value.code
    assert isinstance(code, int)
    return Done(words, code, *(_text(stream) for stream in (out, err)))


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def eagle3_process(*arguments: object, **environment: str) -> Done:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "converter", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **_PLAIN, **environment}, cwd=ROOT, check=False
    )

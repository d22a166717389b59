"""What several tests need: the bundled real drafters, and copies of them with something changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from converter.pipeline import Report, Request, convert, validate
from converter.proving import Wish

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

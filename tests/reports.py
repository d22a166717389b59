"""Report documents of real runs, for the tests of what is made from them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from converter.errors import InputError
from converter.report.document import as_json
from tests.support import DRAFTERS, SAMPLE, check, run

Document = dict[str, Any]
ENGINES = ("sglang", "sglang==0.5.9", "vllm", "vllm==0.9.1")


def _convert(name: str, engine: str = "sglang==0.5.23", **options: Any) -> Document:
    with tempfile.TemporaryDirectory() as folder:
        return as_json(run(DRAFTERS / name, Path(folder) / "out", engine, **options))


def _error() -> Document:
    """What a run that ends early writes."""
    try:
        check(DRAFTERS / "nowhere")
    except InputError as problem:
        finding = problem.finding.as_json()
        return {"schema": "eagle3-convert/error/1", "message": str(problem), "exit_code": 3, "findings": [finding]}
    raise AssertionError


RUNS: dict[str, Callable[[], Document]] = {
    "converted": lambda: _convert("g_aux024", sample=SAMPLE),
    "refused": lambda: _convert("b_nbr"),
    "miswired": lambda: _convert("g_aux024", sample=SAMPLE, aux=(1, 2, 4)),
    "found": lambda: as_json(check(DRAFTERS / "g_aux024", sample=SAMPLE, aux=(1, 3, 5), find_wiring=True)),
    "validated": lambda: as_json(check(DRAFTERS / "d_fcnorm_normout", *ENGINES)),
    "unproved": lambda: _convert("h_fullvocab", target=None, target_arch="LlamaForCausalLM"),
    "planned": lambda: _convert("e_2layers", dry_run=True),
    "nonsense": lambda: _convert("e_2layers", aux=(1, 1, 9)),
    "unreadable": _error,
}


@cache
def document(name: str) -> Document:
    """The document of a run; not to be changed."""
    return RUNS[name]()

"""Every code of the catalogue is shown by a fault put into a real drafter (tests/faults), and by nothing healthy."""

from __future__ import annotations

import functools
import importlib
import inspect
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from converter.errors import InputError
from converter.findings import Finding
from converter.pipeline import convert, validate
from converter.rules import loading
from tests.faults.rows import ELSEWHERE, FAULTS, SGLANG, Fault
from tests.support import DATA, SAMPLE, TARGET, quiet, request

CATALOGUE = loading.load("", "findings")["findings"]
FETCHED = "models--org--target/snapshots/0"  # as huggingface_hub keeps a repository: what the target is called is known
HEALTHY = {"engines": (SGLANG,), "target": TARGET / "config.json"}


def in_conversion(fault: Fault, by_default: bool = False) -> bool:
    return fault.writes if fault.writes is not None else by_default or "to" in {**fault.options, **fault.fault}


def place(fault: Fault, folder: Path) -> dict[str, Any]:
    """The drafter with its fault in `folder`, and the options of its run."""
    options = {**HEALTHY, **fault.options, **fault.fault, "source": folder / "in"}
    shutil.copytree(DATA / fault.drafter, folder / "in")
    fault.change(folder / "in")
    if fault.target is not None:
        options["target"] = target = folder / FETCHED
        target.mkdir(parents=True)
        shutil.copy(TARGET / "config.json", target)
        fault.target(target)
    if fault.sample is not None:
        (folder / "sample").mkdir()
        shutil.copy(SAMPLE, folder / "sample")
        fault.sample(folder / "sample")
        options["sample"] = folder / "sample"
    return options


def run(options: dict[str, Any], out: Path | None) -> list[Finding]:
    """What is said of a conversion, or without OUT of a validation, whether it ends in a report or an exception."""
    if options.get("to"):
        options = {k: v for k, v in options.items() if k != "engines"}
    try:
        if out is not None:
            return convert(request(out=out, **options), quiet).findings
        report = validate(request(**options))
    except InputError as problem:
        return [problem.finding]
    return [*report.findings, *(f for verdict in report.verdicts.values() for f in verdict)]


@functools.cache
def codes_without_fault(drafter: str, options: frozenset[tuple[str, Any]], converts: bool) -> frozenset[str]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out" if converts else None
        return frozenset(f.code for f in run({"source": DATA / drafter, **dict(options)}, out))


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{f.code} {f.title}" for f in FAULTS])
def test_a_fault_shows_its_code_and_no_other(fault: Fault, tmp_path: Path) -> None:
    options = place(fault, tmp_path)
    severity = CATALOGUE[fault.code]["severity"]
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    out = tmp_path / "out"
    found = run(options, out if in_conversion(fault, by_default=severity == "error") else None)
    mine = [f for f in found if f.code == fault.code]
    assert {f.severity for f in mine} == {severity}, [f.code for f in found]
    assert any(fault.where in f.where and bool(fault.where) == bool(f.where) for f in mine), [f.where for f in mine]
    others = {f.code: f.caused_by for f in found if f.severity == "error" and f.code != fault.code}
    assert others.keys() == fault.follows
    causes = {f.caused_by for f in mine}
    assert all(cause == fault.code or code in causes for code, cause in others.items())
    if severity != "error":
        shutil.rmtree(out, ignore_errors=True)
    # A refusal leaves nothing behind, and nobody touches what is read.
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{f.code} {f.title}" for f in FAULTS])
def test_without_the_fault_there_is_no_such_code(fault: Fault) -> None:
    # Beside a target's config may lie what the fault changes.
    target = {"target": TARGET} if fault.target is not None else {}
    options = frozenset({**HEALTHY, **target, **fault.options}.items())
    assert fault.code not in codes_without_fault(fault.drafter, options, in_conversion(fault))


def test_every_code_of_the_catalogue_is_shown_by_a_row_or_by_a_test_elsewhere() -> None:
    rows = Counter(fault.code for fault in FAULTS)
    assert {code for code, count in rows.items() if count > 1} == set(), "one row each"
    assert not rows.keys() & ELSEWHERE.keys()
    missing = CATALOGUE.keys() - rows.keys() - ELSEWHERE.keys()
    assert not missing, f"add a row for {', '.join(sorted(missing))} to tests/faults/rows.py (its package says how)"
    assert not (rows.keys() | ELSEWHERE.keys()) - CATALOGUE.keys()


@pytest.mark.parametrize("code", ELSEWHERE)
def test_what_is_shown_elsewhere_is_shown_there(code: str) -> None:
    module, _, name = ELSEWHERE[code].partition("::")
    assert name.startswith("test_") and f'"{code}"' in inspect.getsource(getattr(importlib.import_module(module), name))

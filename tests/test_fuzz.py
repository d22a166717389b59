"""Each fuzz target over its corpus, or over a few examples that are always the same; make fuzz tries more."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import run
from tests.fuzz.drawn import run as draw
from tests.fuzz.guard import watched

CORPUS = Path(run.__file__).parent / "corpus"


def target(name: str) -> Any:
    return importlib.import_module(f"tests.fuzz.{name}")


@pytest.mark.parametrize("name", run.GUIDED)
def test_corpus(name: str) -> None:
    module, files = target(name), sorted((CORPUS / name).iterdir())
    assert files
    module.one(module.seeds()[0])  # what is imported late is imported before anybody watches
    for file in files:
        with watched(*module.folders()):
            module.one(file.read_bytes())


@pytest.mark.parametrize("name", run.GUIDED)
def test_mutants_are_of_the_form_and_differ(name: str) -> None:
    from random import Random

    module = target(name)
    for seed in module.seeds():
        mutants = {module.mutate(seed, Random(n)) for n in range(10)}
        assert None not in mutants and len(mutants) > 5
    assert module.mutate(b"\xff\xfe", Random(0)) is None


@pytest.mark.parametrize("name", run.DRAWN)
def test_examples(name: str) -> None:
    module = target(name)
    module.one(b"")
    assert draw(module, 40, derandomize=True) >= 40


def test_every_target_has_a_corpus_and_it_is_small() -> None:
    assert {p.name for p in CORPUS.iterdir()} == {*run.GUIDED}
    sizes = [p.stat().st_size for p in CORPUS.rglob("*") if p.is_file()]
    assert sum(sizes) < 1_000_000 and max(sizes) <= 2 * run.LONGEST


def test_an_unknown_target_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["run", "nothing"])
    with pytest.raises(SystemExit):
        run.main()
    assert "no target is called nothing" in capsys.readouterr().err


def test_a_record_replaces_the_rows_of_its_targets() -> None:
    page = "before\n<!-- of tests/fuzz/run.py -->\n<!-- end -->\nafter\n"
    for name, count in (("seal", 1), ("header", 2), ("seal", 3)):
        page = run.recorded(page, [run.Result(name, count, 1.0, "5", "6", "nothing").row()])
    rows = [line.split(" | ")[:3] for line in page.splitlines() if line.startswith("| ")]
    assert rows[1:] == [["| header", "2", "2"], ["| seal", "3", "3"]]
    assert page.startswith("before\n") and page.endswith("<!-- end -->\nafter\n")


def test_what_a_crash_leaves_is_ignored_by_git() -> None:
    assert "tests/fuzz/crashes/" in (CORPUS.parent.parent.parent / ".gitignore").read_text().split(os.linesep)

"""That `make bench` finds its scripts, and the places of its tables in docs/benchmarks.md."""

from __future__ import annotations

import runpy
import sys

import pytest

from tests.support import ROOT

sys.path.append(str(ROOT / "benchmarks"))  # where its scripts find each other
BENCH = runpy.run_path(str(ROOT / "benchmarks" / "bench.py"))
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", BENCH["TABLES"])
def test_a_table_takes_its_place_and_nothing_else_changes(name: str) -> None:
    assert (ROOT / "benchmarks" / BENCH["TABLES"][name][0]).is_file()
    new = BENCH["written"](PAGE, name, r"| \1 & a table |")
    before, _, rest = PAGE.partition(f"<!-- bench: {name} -->\n")
    after = rest.partition(f"<!-- end: {name} -->\n")[2]
    assert new == f"{before}<!-- bench: {name} -->\n\n| \\1 & a table |\n\n<!-- end: {name} -->\n{after}"


def test_every_place_in_the_page_has_a_script() -> None:
    assert PAGE.count("<!-- bench: ") == len(BENCH["TABLES"])


def test_a_page_without_the_place_is_left_alone() -> None:
    with pytest.raises(ValueError, match="no one place for cast"):
        BENCH["written"]("# Benchmarks\n", "cast", "| |")

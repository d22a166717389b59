"""What keeps a sealed drafter from leaving: no seal, other files than those sealed, too little proof."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from converter import gate, seal
from converter.findings import LEVELS, Level
from tests.support import DRAFTERS, run


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sealed") / "out"
    run(DRAFTERS / "a_plain", out)
    return out


@pytest.fixture
def folder(sealed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sealed, tmp_path / "out"))


def codes(folder: Path, require: Level = "none") -> list[str]:
    files = seal.listing(folder)
    weights = {name for name in files if name.endswith(".safetensors")}
    return [f.code for f in gate.may_leave(seal.read_seal(folder), files, weights, str(folder), require)]


def test_an_output_as_it_was_written_may_leave(folder: Path) -> None:
    assert codes(folder) == []


def test_what_is_not_sealed_stays(folder: Path) -> None:
    (folder / seal.NAME).unlink()
    assert codes(folder) == ["H413"]
    for damaged, words in (
        (False, "out is not sealed"),
        (True, f"out is not sealed: nothing can be read from its {seal.NAME}"),
    ):
        assert [f.message for f in gate.may_leave(None, {}, (), "out", damaged=damaged)] == [words]


@pytest.mark.parametrize(
    "change",
    [
        lambda f: (f / "config.json").write_text((f / "config.json").read_text() + " "),
        lambda f: (f / "config.json").write_text((f / "config.json").read_text().replace("0", "1", 1)),
        lambda f: (f / "model.safetensors").unlink(),
        lambda f: (f / "more.safetensors").write_bytes(b""),
    ],
)
def test_what_was_changed_stays(folder: Path, change: Any) -> None:
    change(folder)
    assert codes(folder) == ["C233"]


def test_a_file_beside_the_weights_is_nobodys_business(folder: Path) -> None:
    (folder / "README.md").write_text("mine")
    assert codes(folder) == []


@pytest.mark.parametrize("level", LEVELS)
def test_the_level_must_reach_what_is_required(folder: Path, level: Level) -> None:
    document = json.loads((folder / seal.NAME).read_text())
    document["proof"]["level"] = level
    (folder / seal.NAME).write_text(json.dumps(document))
    allowed = [required for required in LEVELS if codes(folder, required) == []]
    assert allowed == list(LEVELS[: LEVELS.index(level) + 1])
    assert codes(folder, "measured") == ([] if level == "measured" else ["H414"])


def test_a_seal_that_states_nonsense_proves_nothing(folder: Path) -> None:
    for proof in ({"level": "certain"}, {"level": 7}, [], None):
        document = json.loads((folder / seal.NAME).read_text()) | {"proof": proof}
        (folder / seal.NAME).write_text(json.dumps(document))
        assert codes(folder, "agreement") == ["H414"]

"""The recipe of docs/samples.md, run as it stands on the bundled target.

Its states are compared with those that speculators' own extraction recorded in the bundled sample,
and a drafter is proved on what it writes.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.support import DRAFTERS, SAMPLE, TARGET, eagle3

from . import environment
from .conftest import Engines

pytestmark = pytest.mark.engines

RECIPE = Path(__file__).parents[2] / "docs" / "samples.md"
BUNDLED = SAMPLE
SETTINGS = {"TARGET": str(TARGET), "POINTS": [0, 1, 2, 3, 4, 5, 6]}
AGAIN = f"""
from safetensors.torch import load_file
recorded, again = load_file({str(BUNDLED)!r}), {{}}
for k in range(4):
    again[f"{{k}}.states"], again[f"{{k}}.choices"] = capture(recorded[f"s{{k}}.input_ids"])
save_file(again, "again.safetensors")
"""


@pytest.fixture(scope="module")
def made(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the recipe was run."""
    folder = tmp_path_factory.mktemp("recipe")
    blocks = re.findall(r"```python\n(.*?)```", RECIPE.read_text(), re.DOTALL)
    assert len(blocks) == 1
    recipe = blocks[0].replace('dtype="auto"', 'dtype="float32"')  # as the bundled sample was recorded
    for name, value in SETTINGS.items():
        recipe, count = re.subn(rf"^{name} = .*$", f"{name} = {value!r}", recipe, flags=re.MULTILINE)
        assert count == 1
    done = subprocess.run(
        [engines.environment.python, "-c", recipe + AGAIN],
        cwd=folder,
        env=environment.clean_variables(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_its_states_are_those_that_were_recorded(made: Path) -> None:
    again, recorded = load_file(made / "again.safetensors"), load_file(BUNDLED)
    for k in range(4):
        torch.testing.assert_close(again[f"{k}.states"], recorded[f"s{k}.hidden_states"], rtol=0, atol=1e-4)
        assert torch.equal(again[f"{k}.choices"], recorded[f"s{k}.target_greedy_next"])


def test_a_drafter_is_proved_on_what_it_writes(made: Path, tmp_path: Path) -> None:
    sample = made / "sample.safetensors"
    with safe_open(sample, "pt") as file:
        assert file.metadata() == {"capture_points": "0 1 2 3 4 5 6"}
    done = eagle3("convert", DRAFTERS / "g_aux024", tmp_path / "out", "--sample", sample)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "engine = trained on the sample's states" in done.stdout

"""Random faults, for long (make soak). What may be pushed to the Hub belongs here, too, once the command pushes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.rooms import Drafters, names
from tests.support import ROOT

pytestmark = pytest.mark.soak

KILLS = int(os.environ.get("SOAK_KILLS", "200"))
FORMS = {"single": 1, "sharded": 3}


@pytest.fixture(scope="module", params=FORMS)
def drafters(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drafters]:
    """About 30 MB."""
    folder = tmp_path_factory.mktemp("drafters")
    made = Drafters(folder, shards=FORMS[request.param])
    yield made
    made.check_unharmed()
    shutil.rmtree(folder)


def start(source: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "converter", "convert", str(source), str(out), "-q", *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.parametrize("before", ["absent", "old"])
def test_random_kills(before: str, drafters: Drafters, tmp_path: Path, record_property: Any) -> None:
    """A quarter of them here: the command as users start it, killed between its start and what it takes in whole."""
    moments = random.Random(f"{before} {drafters.digests['new']}")
    room = tmp_path / "room"
    room.mkdir()
    out, options = room / "out", ["--force"] if before == "old" else []
    began = time.monotonic()
    whole = start(drafters.drafter, out)
    assert whole.wait(120) == 0
    longest = 1.1 * (time.monotonic() - began)
    shutil.rmtree(out)
    figures: Counter[str] = Counter()
    left = 0
    for _ in range(KILLS // 4):
        if before == "old":
            drafters.put_old(out)
        process = start(drafters.drafter, out, *options)
        # Half of the moments in the last third, where it writes.
        time.sleep(moments.uniform(0, longest) if moments.random() < 0.5 else moments.uniform(0.6, 1.0) * longest)
        process.send_signal(moments.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        process.communicate(timeout=120)
        figures["torn"] += 1
        state = drafters.state(out)
        assert state in (before, "new")
        drafters.check_untouched()
        figures["torn"] -= 1
        figures[state] += 1
        left += len(names(room)) > (state != "absent")
        drafters.convert(drafters.drafter, out, force=state != "absent")
        assert names(room) == ["out"]
        assert drafters.state(out) == "new"
        shutil.rmtree(out)
    record_property("figures", ("random kills", dict(figures)))
    record_property("figures", (f"of them left a staging folder to the next run: {left}", {}))


def test_runs_that_meet(drafters: Drafters, tmp_path: Path, record_property: Any) -> None:
    """Again and again three runs for one OUT, one of them killed."""
    moments = random.Random(1)
    figures: Counter[str] = Counter()
    for turn in range(20):
        room = tmp_path / str(turn)
        room.mkdir()
        drafters.put_old(room / "out")
        running = [start(drafters.drafter, room / "out", "--force") for _ in range(3)]
        time.sleep(moments.uniform(0.3, 1.5))
        running[0].kill()
        said = [(process.communicate(timeout=120)[0], process.returncode) for process in running]
        assert not any("Traceback" in words for words, _ in said), said
        assert 0 in [code for _, code in said[1:]], said
        figures[drafters.state(room / "out")] += 1
        drafters.convert(drafters.drafter, room / "out", force=True)
        assert names(room) == ["out"]
        shutil.rmtree(room)
    record_property("figures", ("three runs for one OUT, one killed", dict(figures)))

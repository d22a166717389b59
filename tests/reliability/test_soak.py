"""Random faults, for long (make soak)."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from converter.publish.card import card_of_folder
from tests.hub_client import leaks
from tests.hub_handler import Fault, Hub
from tests.hub_repository import Repository, files_of
from tests.hub_server import hub_server
from tests.reliability.conftest import SEED
from tests.reliability.rooms import Command, Drafters, Ended, names, stamps, tree
from tests.reliability.wire import Wire, wire_to
from tests.support import ROOT, run

pytestmark = pytest.mark.soak

KILLS = int(os.environ.get("SOAK_KILLS", "200"))
PUSHES = int(os.environ.get("SOAK_PUSHES", "200"))
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
    moments = random.Random(f"{SEED} {before} {len(names(drafters.drafter))}")
    room = tmp_path / "room"
    room.mkdir()
    out, options = room / "out", ["--force"] if before == "old" else []
    began = time.monotonic()
    whole = start(drafters.drafter, out)
    assert whole.communicate(timeout=120)[0] == "" and whole.returncode == 0
    longest = 1.1 * (time.monotonic() - began)
    shutil.rmtree(out)
    figures: Counter[str] = Counter()
    left: Counter[str] = Counter()
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
        left[state] += len(names(room)) > (state != "absent")
        drafters.convert(drafters.drafter, out, force=state != "absent")
        assert names(room) == ["out"]
        assert drafters.state(out) == "new"
        shutil.rmtree(out)
    record_property("figures", ("random kills", dict(figures)))
    record_property("figures", ("of them left a staging folder, which the next run removed", dict(left)))


def test_runs_that_meet(drafters: Drafters, tmp_path: Path, record_property: Any) -> None:
    """Again and again three runs for one OUT, one of them killed."""
    moments = random.Random(f"{SEED} meet {len(names(drafters.drafter))}")
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


# --- pushes ---------------------------------------------------------------------------------------------------

OWNER = "hf_owner_6b1f0e93"
Digests = dict[str, str]


@dataclass
class Pushing:
    """A Hub at the other end of a wire, and a client of it that pushes `folder`.

    before    what every repository has: another drafter, in more files
    expected  path -> SHA-256 of what it has afterwards, but for the card, which has its name
    """

    hub: Hub
    wire: Wire
    command: Command
    folder: Path
    before: dict[str, Path | bytes | None]
    expected: Digests = field(default_factory=dict)

    def create(self, name: str) -> Repository:
        return self.hub.create(name, self.before)

    def push(self, name: str) -> Ended:
        return self.command.run("push", self.folder, name, "--yes", "--require", "none")

    def state(self, repository: Repository, old: str) -> str:
        """old or new, and whole; anything else fails."""
        head = repository.refs["main"]
        entries = repository.entries(head)
        for entry in entries.values():
            data = repository.blob(entry.sha256).read_bytes()
            assert (hashlib.sha256(data).hexdigest(), len(data)) == (entry.sha256, entry.size)
            assert not entry.large or entry.sha256 in repository.objects
        if head == old:
            return "old"
        card, _ = card_of_folder(self.folder, repository.name)
        card_digest = hashlib.sha256(card.encode()).hexdigest()
        assert {e.path: e.sha256 for e in entries.values()} == {**self.expected, "README.md": card_digest}
        assert set(repository.refs) == {"main"} and len(names(repository.folder / "commits")) == 3
        return "new"


@pytest.fixture
def pushing(tmp_path: Path) -> Iterator[Pushing]:
    made = Drafters(tmp_path, scale=1, vocabulary=1024)
    assert run(tmp_path / "another", tmp_path / "cut", target=None, max_shard_size=100_000).outcome == "converted"
    with hub_server(tmp_path / "server") as hub, wire_to(*map(port_of, (hub.url, hub.storage))) as (wire, urls):
        hub.url, hub.storage = urls
        hub.tokens, hub.writing, hub.parts = {OWNER: "org"}, {OWNER}, 100_000
        before = files_of(tmp_path / "cut")
        first = hub.create("org/first", before)
        (tmp_path / "command").mkdir()
        command = Command(
            tmp_path / "command", ["push", made.new, "org/first", "--yes", "--require", "none"], HF_ENDPOINT=hub.url,
            HF_HUB_OFFLINE="0", HF_HUB_DISABLE_XET="1", HF_HOME=str(tmp_path / "home"), HF_TOKEN=OWNER,
        )  # fmt: skip
        yield Pushing(hub, wire, command, made.new, before)
        command.close()
        assert first.refs["main"]
    assert leaks([OWNER], [tmp_path], []) == []


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_pushes_with_random_cuts(pushing: Pushing, record_property: Any) -> None:
    """A push over an older drafter: its connection ends at a random byte of a random message, the Hub is busy at a
    random request, or a signal comes at a random byte. The branch is the old commit or the new one whole.
    """
    draw = random.Random(f"{SEED} pushes")
    hub, wire, folder = pushing.hub, pushing.wire, pushing.folder
    assert pushing.push("org/first").code == 0  # the one that made the client ready has sent it all
    there = hub.repositories["org/first"]
    pushing.expected = {e.path: e.sha256 for e in there.entries(there.refs["main"]).values()}
    pushing.create("org/count")
    hub.asked.clear()
    wire.begin()
    assert pushing.push("org/count").code == 0
    marks, requests = [*wire.marks, wire.passed], [(a.method, a.path) for a in hub.asked]
    local = tree(folder), stamps(folder)
    ends: dict[str, Counter[str]] = {}
    said = []

    def somewhere() -> int:
        n = draw.randrange(len(marks) - 1)
        return draw.randint(marks[n] + 1, marks[n + 1])

    for turn in range(PUSHES):
        name = f"org/push{turn}"
        repository = pushing.create(name)
        old = repository.refs["main"]
        what, number = draw.choices(["cut", "busy", "signal"], [5, 2, 3])[0], 0
        wire.begin()
        if what == "cut":
            wire.begin([somewhere() for _ in range(draw.choice([1, 1, 1, 2, 4, 8]))], reset=draw.random() < 0.5)
        elif what == "busy":
            method, path = draw.choice(requests)
            hub.faults = [
                Fault(path.replace("org/count", name), draw.choice([429, 503]), retry_after="0", method=method,
                      times=draw.choice([1, 1, 2, 3, 9]))
            ]  # fmt: skip
        else:
            number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            wire.begin([somewhere()], then=partial(pushing.command.kill, number))
        ended = pushing.push(name)
        label = f"push {turn} ({what} {number or ''}): {ended}"
        hub.faults = []
        wire.begin()
        figures = ends.setdefault(what, Counter())
        figures["torn"] += 1
        state = pushing.state(repository, old)
        figures["torn"] -= 1
        figures[state] += 1
        assert "Traceback" not in ended.said, label
        assert ended.code in ((0, 4) if what != "signal" else (0, 4, 130, -signal.SIGKILL)), label
        assert state == "new" or ended.code != 0, label
        assert state == "old" or "othing was committed" not in ended.said, label
        again = pushing.push(name)
        assert again.code == 0 and pushing.state(repository, old) == "new", f"{label}, then {again}"
        assert (tree(folder), stamps(folder)) == local
        said += [ended.said, again.said]
        del hub.repositories[name]
        shutil.rmtree(repository.folder)
    assert leaks([OWNER], [], said) == []
    for what, figures in ends.items():
        record_property("figures", (f"random pushes: {what}", dict(figures)))

"""OUT is absent, as it was, or new and whole: the real command, killed, interrupted, raced and out of space."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Union

import pytest

from converter import seal
from tests.reliability.rooms import Drafters, names, tree
from tests.support import DRAFTERS, ROOT, eagle3, run

KILLS = 20
# The other threads of the process that forks wait for messages.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drafters]:
    folder = tmp_path_factory.mktemp("drafters")
    made = Drafters(folder)
    yield made
    made.check_unharmed()
    shutil.rmtree(folder)


@pytest.fixture
def room(tmp_path: Path, drafters: Drafters) -> Iterator[Path]:
    """An empty folder for OUT, removed at once because the files are large."""
    folder = tmp_path / "room"
    folder.mkdir()
    yield folder
    drafters.check_untouched()
    shutil.rmtree(folder)


# --- running the command ------------------------------------------------------------------------------------


class Forked:
    """`eagle3 convert` in a copy of this process, with Popen's words: it writes at once, where a new process would
    import and read rules first. `limit` is the size in bytes at which the disk is full for it.
    """

    def __init__(self, *words: object, limit: int = 0) -> None:
        self._said, theirs = multiprocessing.Pipe(duplex=False)
        self._process = multiprocessing.get_context("fork").Process(target=self._run, args=(words, limit, theirs))
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid, self.kill = self._process.pid, self._process.kill

    @staticmethod
    def _run(words: tuple[object, ...], limit: int, said: Connection) -> None:
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        done = eagle3("convert", *words)
        said.send((done.stdout, done.stderr))
        sys.exit(done.returncode)

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        return self._process.exitcode

    def communicate(self, timeout: float = 60) -> tuple[str, str]:
        """Output and errors; nothing of one that was killed."""
        try:
            assert self._said.poll(timeout)
            said: tuple[str, str] = self._said.recv()
        except EOFError:
            said = ("", "")
        self._process.join(timeout)
        return said

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode


Running = Union["subprocess.Popen[str]", Forked]


def start_anew(source: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    """The command in a process of its own, as users start it."""
    return subprocess.Popen(
        [sys.executable, "-m", "converter", "convert", str(source), str(out), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def finish(process: Running) -> tuple[int | None, str]:
    """Exit code and what was said; a traceback always fails."""
    stdout, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stdout + stderr
    return process.returncode, stdout + stderr


def wait_until(condition: Callable[[], bool], process: Running) -> bool:
    """Look every half millisecond; False where the process ended before."""
    deadline = time.monotonic() + 60
    while not condition():
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    return True


def staged(room: Path, file: str = "") -> bool:
    return any((p / file).exists() for p in room.glob(".*.eagle3-staging-*"))


def stopped_while_writing(room: Path, source: Path, *options: str) -> Forked:
    """A run that stands still in the middle of writing (SIGSTOP), until it is told to go on (SIGCONT)."""
    for _ in range(5):
        process = Forked(source, room / "out", *options)
        if wait_until(lambda: staged(room, "model.safetensors"), process):
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if staged(room) and not staged(room, seal.NAME):
                return process
        process.send_signal(signal.SIGCONT)
        finish(process)
        shutil.rmtree(room / "out")
    pytest.fail("the run could not be stopped while it wrote")


# --- killed -------------------------------------------------------------------------------------------------


# How long after a file is in the staging folder a kill comes at the latest, in seconds.
LATEST = [*[("", 0.12)] * 5, *[("config.json", 0.01)] * 2, (seal.NAME, 0.0), (seal.NAME, 0.003)]


@pytest.mark.parametrize("before", ["absent", "old"])
def test_killed_at_any_moment(before: str, room: Path, drafters: Drafters) -> None:
    """A tenth of the moments while it starts, most of them while it writes, the rest around the rename."""
    moments = random.Random(before)
    out, options = room / "out", ["--force"] if before == "old" else []
    seen: dict[str, int] = {"absent": 0, "old": 0, "new": 0}
    left = 0
    for kill in range(KILLS):
        if before == "old":
            drafters.put_old(out)
        if kill % 10 == 0:
            starting = start_anew(drafters.drafter, out, *options)
            time.sleep(moments.uniform(0, 0.3))
            starting.kill()
            starting.communicate()
        else:
            file, latest = LATEST[kill % 10 - 1]
            writing = Forked(drafters.drafter, out, *options)
            wait_until(partial(staged, room, file), writing)
            time.sleep(moments.uniform(0, latest))
            writing.kill()
            writing.communicate()
        state = drafters.state(out)
        assert state in (before, "new")
        drafters.check_untouched()
        seen[state] += 1
        left += len(names(room)) > (state != "absent")
        again = run(drafters.drafter, out, target=None, force=state != "absent")
        assert again.outcome == "converted"
        assert names(room) == ["out"]
        assert drafters.state(out) == "new"
        shutil.rmtree(out)
    # Else the moments came too late to mean anything; how many there are of each depends on the machine.
    assert seen[before] >= 2
    assert left >= 1


def test_the_next_command_after_a_kill(room: Path, drafters: Drafters) -> None:
    process = stopped_while_writing(room, drafters.drafter)
    process.kill()
    process.communicate()
    assert staged(room)
    assert finish(Forked(drafters.drafter, room / "out"))[0] == 0
    assert names(room) == ["out"]
    assert drafters.state(room / "out") == "new"


# --- interrupted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("before", ["absent", "old"])
def test_interrupted(number: signal.Signals, before: str, room: Path, drafters: Drafters) -> None:
    if before == "old":
        drafters.put_old(room / "out")
    process = stopped_while_writing(room, drafters.drafter, *(["--force"] if before == "old" else []))
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    code, said = finish(process)
    assert code == 130
    assert "interrupted" in said
    assert names(room) == (["out"] if before == "old" else [])
    assert drafters.state(room / "out") == before


# --- two at the same time -----------------------------------------------------------------------------------


def test_one_overtakes_the_other(room: Path, drafters: Drafters) -> None:
    """The second keeps its hands off the staging folder of the first, which then finds OUT taken."""
    slow = stopped_while_writing(room, drafters.drafter)
    assert finish(Forked(drafters.drafter, room / "out"))[0] == 0
    assert staged(room)
    inode = (room / "out").stat().st_ino
    slow.send_signal(signal.SIGCONT)
    code, said = finish(slow)
    assert code == 4
    assert "appeared meanwhile" in said
    assert names(room) == ["out"]
    assert (room / "out").stat().st_ino == inode
    assert drafters.state(room / "out") == "new"


def test_two_at_the_same_time(room: Path, drafters: Drafters) -> None:
    both = [start_anew(drafters.drafter, room / "out") for _ in range(2)]
    codes = sorted(finish(process)[0] for process in both)
    assert codes[0] == 0
    assert codes[1] in (2, 4)
    assert names(room) == ["out"]
    assert drafters.state(room / "out") == "new"


def test_two_that_may_both_replace(room: Path, drafters: Drafters) -> None:
    drafters.put_old(room / "out")
    both = [Forked(drafters.drafter, room / "out", "--force") for _ in range(2)]
    assert 0 in [finish(process)[0] for process in both]
    assert names(room) == ["out"]
    assert drafters.state(room / "out") == "new"


def test_in_that_changes_meanwhile(room: Path, drafters: Drafters) -> None:
    changing = room / "in"
    shutil.copytree(drafters.drafter, changing)
    process = stopped_while_writing(room, changing)
    os.utime(changing / "model.safetensors", ns=(1, 1))
    process.send_signal(signal.SIGCONT)
    code, said = finish(process)
    assert code == 3
    assert "F109" in said
    assert names(room) == ["in"]


# --- the disk -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0], ids=["at once", "half way", "at the last byte"])
@pytest.mark.parametrize("before", ["absent", "old"])
def test_full_disk(share: float, before: str, room: Path, drafters: Drafters) -> None:
    if before == "old":
        drafters.put_old(room / "out")
    limit = max(1, int((drafters.new / "model.safetensors").stat().st_size * share) - 1)
    process = Forked(drafters.drafter, room / "out", *(["--force"] if before == "old" else []), limit=limit)
    code, said = finish(process)
    assert code == 4
    assert "cannot write" in said and "as it was" in said
    assert names(room) == (["out"] if before == "old" else [])
    assert drafters.state(room / "out") == before


@pytest.mark.parametrize("out", ["file/out", "file/deep/out", "link/out"])
def test_a_place_where_nothing_can_be_written(out: str, room: Path) -> None:
    """Fails for every user, also for one who may write everywhere."""
    (room / "file").write_text("mine")
    (room / "link").symlink_to("gone")
    done = eagle3("convert", DRAFTERS / "a_plain", room / out)
    assert done.returncode == 4
    assert "cannot write" in done.stderr
    assert names(room) == ["file", "link"]
    assert (room / "file").read_text() == "mine"


def test_a_name_that_is_too_long(room: Path) -> None:
    assert eagle3("convert", DRAFTERS / "a_plain", room / ("x" * 256)).returncode == 4
    assert names(room) == []


# --- OUT as a link ------------------------------------------------------------------------------------------


def test_out_is_a_link_to_an_old_one(room: Path, drafters: Drafters) -> None:
    drafters.put_old(room / "target")
    (room / "out").symlink_to("target")
    assert finish(Forked(drafters.drafter, room / "out"))[0] == 2
    assert finish(Forked(drafters.drafter, room / "out", "--force"))[0] == 0
    assert names(room) == ["out", "target"]
    assert not (room / "out").is_symlink()
    assert drafters.state(room / "out") == "new"
    assert drafters.state(room / "target") == "old"


@pytest.mark.parametrize("target", ["in", "."])
def test_out_is_a_link_into_in(target: str, room: Path) -> None:
    source = room / "in"
    shutil.copytree(DRAFTERS / "a_plain", source)
    before = tree(source)
    (room / "out").symlink_to(target)
    assert eagle3("convert", source, room / "out", "--force").returncode == 2
    assert tree(source) == before
    assert names(room) == ["in", "out"]

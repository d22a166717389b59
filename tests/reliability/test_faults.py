"""Faults at fixed points of a conversion: every call on IN and below OUT's folder, every block, every 1/50 of OUT.

After each, OUT is absent, as it was, or new and whole; IN is as it was; the next run works and leaves nothing behind.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from converter.checkpoint.staging import recover
from converter.source import SIGNATURE
from tests.reliability.rooms import Command, Drafters, Ended, Point, names, space

pytestmark = pytest.mark.faults

EVERY = int(os.environ.get("FAULTS_EVERY", "1"))  # 3: every third of the faults
BLOCK = 96 << 10  # bytes moved at once here, so that a small drafter has many blocks
FORMS: dict[str, dict[str, Any]] = {
    "single": {}, "sharded": {"shards": 2}, "cut and signed": {"size": 200_000, "signed": True},
}  # fmt: skip
CHANGING = ("copy", "write", "open", "mkdir", "rename", "fsync", "remove", "lock")  # what a kill can come between


@pytest.fixture(scope="module", params=FORMS)
def drafters(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drafters]:
    made = Drafters(tmp_path_factory.mktemp("drafters"), scale=2, vocabulary=2048, **FORMS[request.param])
    yield made
    made.check_unharmed()


class Room:
    """An empty folder for OUT, in the state that a run begins with."""

    def __init__(self, folder: Path, drafters: Drafters, command: Command, before: str) -> None:
        self.folder, self.drafters, self.command, self.before = folder, drafters, command, before
        self.out = folder / "out"
        self.words = ["convert", drafters.drafter, self.out, *drafters.words, *(["--force"] if before == "old" else [])]
        self.figures: Counter[str] = Counter()
        self.problems: list[str] = []

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if self.before == "old":
            self.drafters.put_old(self.out)

    def points(self, *under: Path) -> list[Point]:
        self.reset()
        found = []
        for folder in under:
            found += self.command.points(*self.words, under=[folder], block=BLOCK)
            self.reset()
        return found

    def run(self, fault: str = "", **options: Any) -> Ended:
        self.reset()
        return self.command.run(*self.words, fault=fault, block=BLOCK, **options)

    def state(self, aside: bool) -> str:
        """aside: it was said that the old one lies there, since no rename works any more."""
        state = self.drafters.state(self.out)
        assert state in (self.before, "new") or (state == "absent" and aside), state
        self.drafters.check_untouched()
        return state

    def next_run(self, state: str) -> None:
        """It works, and cleans up."""
        self.drafters.convert(self.drafters.drafter, self.out, force=state != "absent")
        assert names(self.folder) == ["out"], f"after the next run: {names(self.folder)}"
        assert self.drafters.state(self.out) == "new"

    def each(self, cases: list[tuple[str, str]], look: Callable[[Ended, str, str], None], **options: Any) -> None:
        """Run under each fault (label, fault) and look at what came of it; all that is wrong is told together."""
        every = EVERY * (3 if self.drafters.words else 1)  # most of their calls are those that the other forms make
        cases = [case for n, case in enumerate(cases) if n % every == 0 or SIGNATURE in case[0]]
        assert cases
        for label, fault in cases:
            ended = self.run(fault, **options)
            try:
                state = "torn"
                state = self.state("the next run puts it back" in ended.said)
                self.figures[state] += 1
                assert "Traceback" not in ended.said, ended.said[-1500:]
                look(ended, state, label)
            except AssertionError as problem:
                self.figures["torn"] += state == "torn"
                self.problems.append(f"{label}: {problem}\n  exit {ended.code}: {ended.said.strip()[-400:]}")
        shutil.rmtree(self.folder)
        assert not self.problems, f"{len(self.problems)} of {len(cases)}\n" + "\n".join(self.problems)


@pytest.fixture(params=["absent", "old"])
def room(
    request: pytest.FixtureRequest, tmp_path: Path, drafters: Drafters, command: Command, record_property: Any
) -> Iterator[Room]:
    made = Room(tmp_path / "room", drafters, command, request.param)
    yield made
    what = request.node.originalname.removeprefix("test_").replace("_", " ")
    record_property("figures", (what, dict(made.figures)))


def label(point: Point, what: object) -> str:
    return f"{what} at {point.call} {point.at} of {point.pattern.rpartition('/')[2]}"


def thinned(points: list[Point]) -> list[Point]:
    """Without most of the calls that only look at a file again."""
    return [p for p in points if p.call not in ("stat", "read", "from") or p.at <= 2 or p.at % 5 == 0]


def test_killed_at_every_step(room: Room) -> None:
    points = [p for p in room.points(room.folder) if p.call in CHANGING]

    def look(ended: Ended, state: str, label: str) -> None:
        assert ended.code == -signal.SIGKILL
        room.next_run(state)

    room.each([(label(p, "KILL"), p.kills(signal.SIGKILL)) for p in points], look)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_interrupted_at_every_step(number: signal.Signals, room: Room) -> None:
    points = thinned([p for p in room.points(room.folder, room.drafters.drafter) if p.call != "stat"])

    def look(ended: Ended, state: str, label: str) -> None:
        assert ended.code == 130
        assert "interrupted" in ended.said
        assert names(room.folder) == ([] if state == "absent" else ["out"])

    room.each([(label(p, number.name), p.kills(number)) for p in points], look)


def test_an_input_that_cannot_be_read(room: Room) -> None:
    """EIO at every call on IN."""
    points = thinned(room.points(room.drafters.drafter))

    def look(ended: Ended, state: str, label: str) -> None:
        assert ended.code in (0, 3)
        assert (state == "new") == (ended.code == 0)
        assert ended.code == 0 or "error" in ended.said
        assert names(room.folder) == ([] if state == "absent" else ["out"])

    room.each([(label(p, "EIO"), p.fails(errno.EIO)) for p in points], look)


# A full disk has a test of its own.
ERRORS = {
    "open": (errno.EIO, errno.EACCES), "mkdir": (errno.ENOSPC, errno.EROFS), "list": (errno.EIO,),
    "write": (errno.EIO,), "copy": (errno.EIO,), "read": (errno.EIO,), "stat": (errno.EIO,), "remove": (errno.EIO,),
    "fsync": (errno.EIO, errno.EDQUOT), "lock": (errno.ENOLCK, errno.EWOULDBLOCK),
    "rename": (errno.EIO, errno.EXDEV, errno.EACCES, errno.EROFS, errno.EBUSY, errno.EINVAL, errno.ENOSYS),
}  # fmt: skip


def test_an_output_that_fails(room: Room) -> None:
    """The errors that each call below OUT's folder may have; once, and of the first of each from then on."""
    points = thinned([p for p in room.points(room.folder) if p.call in ERRORS])

    def look(ended: Ended, state: str, label: str) -> None:
        assert ended.code in (0, 4)
        if ended.code == 0:
            assert state == "new"
        elif state != room.before:
            assert "is in place" in ended.said or "puts it back" in ended.said
        if names(room.folder) != ([] if state == "absent" else ["out"]):
            call = label.partition(" at ")[2].split()[0]  # what cannot be looked at cannot be removed
            assert call in ("remove", "list", "lock") or "always" in label, names(room.folder)
            if any(".eagle3-old-" in name for name in names(room.folder)):
                recover(room.out)
                assert room.drafters.state(room.out) == "old"
                state = "old"
            room.next_run(state)

    cases = [
        (label(p, f"{errno.errorcode[n]} {times or 'always'}"), p.fails(n, times))
        for p in points
        for n in ERRORS[p.call]
        for times in ((1, 0) if p.at == 1 else (1,))
    ]
    room.each(cases, look)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=["ENOSPC", "EDQUOT"])
def test_full_at_every_fiftieth(number: int, room: Room) -> None:
    size = sum(p.stat().st_size for p in room.drafters.new.iterdir())
    steps = [n * size // 50 for n in range(50)] + [size - 1]

    def look(ended: Ended, state: str, label: str) -> None:
        assert ended.code == 4
        assert "cannot write" in ended.said and "as it was" in ended.said
        assert os.strerror(number) in ended.said
        assert state == room.before
        assert names(room.folder) == ([] if state == "absent" else ["out"])

    room.each([(f"{n:,} bytes", space(f"{room.folder}*", n, number)) for n in steps], look)

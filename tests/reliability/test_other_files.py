"""What is written beside OUT: reports, baselines, samples, temporary files of pickles. Whole, or as they were."""

from __future__ import annotations

import errno
import json
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from converter.checkpoint.reader import open_checkpoint
from converter.source import SIGNATURE
from tests.reliability.rooms import Command, Drafters, Ended, Point, names
from tests.support import DRAFTERS, SAMPLE, TARGET, eagle3

pytestmark = pytest.mark.faults

DRAFTER = DRAFTERS / "a_plain"
FAULTS = [
    ("KILL", lambda p: p.kills(signal.SIGKILL)),
    ("TERM", lambda p: p.kills(signal.SIGTERM)),
    ("EIO", lambda p: p.fails(errno.EIO)),
    ("ENOSPC", lambda p: p.fails(errno.ENOSPC)),
]
CHANGING = ("copy", "write", "open", "mkdir", "rename", "fsync", "remove")


def sweep(command: Command, folder: Path, file: Path, words: list[object], record: Any, what: str) -> None:
    """`file` is as it lies in `folder`, or new after a fault at any step; the next run leaves it new, and nothing else
    beside what was there.
    """
    before = Path(shutil.copytree(folder, folder.with_name("before")))
    there, old = names(before), file.read_bytes()

    def reset() -> None:
        shutil.rmtree(folder)
        shutil.copytree(before, folder)

    points = [p for p in command.points(*words, under=[folder]) if p.call in CHANGING]
    assert {"write", "rename", "fsync"} <= {p.call for p in points}
    figures: Counter[str] = Counter()
    for point in points:
        for name, fault in FAULTS:
            reset()
            ended = command.run(*words, fault=fault(point))
            label = f"{name} at {point}: {ended}"
            assert "Traceback" not in ended.said, label
            state = "old" if file.read_bytes() == old else "new"
            figures[state] += 1
            if state == "new":
                whole(file)
            if name != "KILL":
                assert ended.code in (0, 2, 3, 4, 130), label  # 2: a baseline that cannot be read; 3: what is signed
                assert names(folder) == there or point.call == "remove", label
            after = command.run(*words)
            assert after.code == 0, f"{label}: {after}"
            assert names(folder) == there, label
            assert file.read_bytes() != old
            whole(file)
    record("figures", (what, dict(figures)))


def whole(file: Path) -> None:
    if file.suffix in (".json", ".sig"):
        json.loads(file.read_text())
    elif file.suffix == ".safetensors":
        assert open_checkpoint(file).tensors
    else:
        assert file.read_text().rstrip().endswith(("</html>", "```")) or len(file.read_text()) > 1000


def test_a_report(command: Command, tmp_path: Path, record_property: Any) -> None:
    folder = tmp_path / "room"
    folder.mkdir()
    (folder / "report.json").write_text("{}")
    words = ["validate", DRAFTER, "--engine", "sglang", "--report", folder / "report.json", "-q"]
    sweep(command, folder, folder / "report.json", words, record_property, "--report")


def test_a_laid_out_report(command: Command, tmp_path: Path, record_property: Any) -> None:
    folder = tmp_path / "room"
    folder.mkdir()
    (folder / "page.html").write_text("old")
    assert eagle3("validate", DRAFTER, "--report", tmp_path / "report.json", "-q").returncode == 0
    words = ["report", tmp_path / "report.json", "-o", folder / "page.html"]
    sweep(command, folder, folder / "page.html", words, record_property, "report -o")


def test_a_baseline(command: Command, tmp_path: Path, record_property: Any) -> None:
    folder = tmp_path / "room"
    folder.mkdir()
    (folder / "baseline.json").write_text('{"schema": "eagle3-convert/baseline/1", "accepted": []}')
    words = ["validate", DRAFTER, "--engine", "sglang", "--write-baseline", folder / "baseline.json", "-q"]
    sweep(command, folder, folder / "baseline.json", words, record_property, "--write-baseline")


def test_a_signature(command: Command, tmp_path: Path, record_property: Any) -> None:
    """Of a folder that is sealed and signed; what a killed run left there is in nobody's way."""
    made = Drafters(tmp_path, scale=1, vocabulary=1024, signed=True)
    file, key = made.old / SIGNATURE, tmp_path / "key.pem"
    words = ["seal", "sign", made.old, "--key", key, "--force"]
    sweep(command, made.old, file, words, record_property, "seal sign")
    assert made.state(made.old) == "old"
    step = Point("write", f"{made.old}/.{SIGNATURE}*", 1)
    assert command.run(*words, fault=step.kills(signal.SIGKILL)).code == -signal.SIGKILL
    assert len(names(made.old)) > len(names(made.new))
    made.convert(made.drafter, made.old, force=True)
    assert made.state(made.old) == "new"


def test_what_only_reads(command: Command, tmp_path: Path, record_property: Any) -> None:
    """EIO at each call on a sealed and signed folder: told as such by every command, and never a traceback."""
    made = Drafters(tmp_path, scale=1, vocabulary=1024, signed=True)
    folder, figures, problems = made.new, Counter[str](), list[str]()
    for words in (
        ["seal", "verify", folder, "--signed", tmp_path / "key.pub"],
        ["card", folder],
        ["inspect", folder],
        ["diff", folder, made.old],
    ):
        well = command.run(*words)
        points = [p for p in command.points(*words, under=[folder], code=well.code) if p.at <= 2]
        assert points, words
        for point in points:
            ended = command.run(*words, fault=point.fails(errno.EIO))
            label = f"{words[:2]} at {point}: {ended}"
            told = ended.code in (well.code, 1, 3) and (ended.code == well.code or "error" in ended.said)
            if not told or "Traceback" in ended.said:
                problems.append(label)
            figures["new"] += 1
    assert not problems, "\n".join(problems)
    assert made.state(folder) == "new"
    record_property("figures", ("EIO under commands that only read", dict(figures)))


# --- samples --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    folder = tmp_path_factory.mktemp("heavy")
    proved = ["convert", DRAFTER, folder / "out", "--target", TARGET, "--sample", SAMPLE]
    started = Command(folder, sample_words(folder / "sample.safetensors"), proved)
    yield started
    started.close()


def sample_words(file: Path) -> list[object]:
    return ["sample", "--target", TARGET, "--limit", "1", "--max-new-tokens", "2", "-o", file, "-q"]


def test_a_sample(heavy: Command, tmp_path: Path, record_property: Any) -> None:
    """Killed anywhere, the same command goes on and leaves the sample alone."""
    folder, file = tmp_path / "room", tmp_path / "room" / "sample.safetensors"
    folder.mkdir()
    words = sample_words(file)
    points = [p for p in heavy.points(*words, under=[folder]) if p.call in CHANGING]
    assert points
    figures: Counter[str] = Counter()
    for n, point in enumerate(points):
        shutil.rmtree(folder)
        folder.mkdir()
        ended = heavy.run(*words, fault=FAULTS[n % 2][1](point))
        assert "Traceback" not in ended.said and ended.code in (130, -signal.SIGKILL), f"{point}: {ended}"
        figures["new" if file.exists() else "absent"] += 1
        if file.exists():
            whole(file)
        again = heavy.run(*words)
        assert again.code == (2 if figures["new"] and "exists" in again.said else 0), f"{point}: {again}"
        assert names(folder) == [file.name], f"{point}: {again}"
        whole(file)
    record_property("figures", ("sample -o", dict(figures)))


def test_a_sample_or_target_that_cannot_be_read(heavy: Command, tmp_path: Path, record_property: Any) -> None:
    """EIO on what a conversion is proved with, up to its digests in the seal: exit 3, and no OUT."""
    place, room = tmp_path / "place", tmp_path / "room"
    place.mkdir()
    sample = Path(shutil.copy(SAMPLE, place))
    target = Path(shutil.copytree(TARGET, place / "target"))
    words = ["convert", DRAFTER, room / "out", "--target", target, "--sample", sample]
    room.mkdir()
    points = [p for p in heavy.points(*words, under=[place]) if p.at <= 2 or p.at % 5 == 0]
    assert {p.pattern for p in points} > {str(sample), str(target / "config.json")}
    figures, problems = Counter[str](), list[str]()
    for point in points:
        shutil.rmtree(room)
        room.mkdir()
        ended = heavy.run(*words, fault=point.fails(errno.EIO))
        figures["absent" if ended.code else "new"] += 1
        if ended.code not in (0, 3) or "Traceback" in ended.said or names(room) != ["out"] * (ended.code == 0):
            problems.append(f"{point}: {ended}")
    assert not problems, "\n".join(problems)
    record_property("figures", ("EIO on samples and targets", dict(figures)))


# --- pickles --------------------------------------------------------------------------------------------------


@pytest.fixture
def pickled(tmp_path: Path) -> Path:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    folder = tmp_path / "in"
    folder.mkdir()
    shutil.copy(DRAFTER / "config.json", folder)
    torch.save(load_file(DRAFTER / "model.safetensors"), folder / "pytorch_model.bin")
    return folder


def pickle_words(pickled: Path, room: Path) -> list[object]:
    return ["convert", pickled, room / "out"]


def test_a_pickle_that_shrinks_while_it_is_read(heavy: Command, pickled: Path, tmp_path: Path) -> None:
    """What is mapped into memory and gone ends a process with SIGBUS: here it is an error, or nothing at all."""
    room, temporary = tmp_path / "room", tmp_path / "temporary"
    content = (pickled / "pytorch_model.bin").read_bytes()
    codes = set()
    for point in (
        Point("from", f"{pickled}/pytorch_model.bin", 1),
        Point("write", f"{temporary}/*/model.safetensors", 1),
        Point("write", f"{temporary}/*/model.safetensors", 2),
        Point("copy", f"{room}/*", 1),
    ):
        for folder in (room, temporary):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        (pickled / "pytorch_model.bin").write_bytes(content)
        stopped = heavy.run(*pickle_words(pickled, room), fault=point.kills(signal.SIGSTOP), TMPDIR=str(temporary))
        assert stopped.stopped, stopped
        with (pickled / "pytorch_model.bin").open("r+b") as file:
            file.truncate(4096)
        ended = heavy.go_on(stopped)
        assert (ended.code, names(room)) in [(0, ["out"]), (3, [])], f"{point}: {ended}"
        assert ended.code == 0 or "F109" in ended.said or "F101" in ended.said
        assert names(temporary) == []
        codes.add(ended.code)
    assert codes == {0, 3}


def test_the_temporary_files_of_pickles(heavy: Command, pickled: Path, tmp_path: Path, record_property: Any) -> None:
    """Gone with the run, or with the next one where it was killed; a full disk is told as what it is."""
    room, temporary = tmp_path / "room", tmp_path / "temporary"

    def run(fault: str = "") -> Ended:
        shutil.rmtree(room, ignore_errors=True)
        room.mkdir()
        return heavy.run(*pickle_words(pickled, room), fault=fault, TMPDIR=str(temporary))

    temporary.mkdir()
    room.mkdir()
    points = [
        p
        for p in heavy.points(*pickle_words(pickled, room), under=[temporary], TMPDIR=str(temporary))
        if p.call in CHANGING and "/eagle3-pickle-" in p.pattern
    ]
    assert points
    left = 0
    figures: Counter[str] = Counter()
    for point in points:
        below = Path(point.pattern).relative_to(temporary).parts[1:]
        here = Point(point.call, "/".join(map(str, (temporary, "eagle3-pickle-*", *below))), point.at)
        assert run(here.kills(signal.SIGKILL)).code == -signal.SIGKILL, point
        left += bool(names(temporary))
        figures["absent"] += 1
        assert run().code == 0
        assert names(temporary) == [], point
        stopped = run(here.kills(signal.SIGTERM))
        figures["absent"] += 1
        if not (stopped.code == -signal.SIGTERM and names(room) == ["out"]):  # else the command was at its end
            assert stopped.code == 130 and names(temporary) == [] and names(room) == [], f"{point}: {stopped}"
        if point.call in ("copy", "write", "mkdir"):
            full = run(here.fails(errno.ENOSPC, times=0))
            figures["absent" if full.code else "new"] += 1
            assert full.code in (0, 4), f"{point}: {full}"
            assert full.code == 0 or ("TMPDIR" in full.said and "No space left" in full.said), f"{point}: {full}"
            assert names(temporary) == []
    assert left
    record_property("figures", ("temporary files of pickles", dict(figures)))

"""Where IN and OUT may lie, what they may be called, who may not write, and what changes under the command's hands."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.reliability.rooms import Command, Drafters, Ended, Point, names, tree
from tests.support import ROOT, eagle3

pytestmark = pytest.mark.faults

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drafters]:
    made = Drafters(tmp_path_factory.mktemp("drafters"), scale=1, vocabulary=1024)
    yield made
    made.check_unharmed()


@pytest.fixture
def source(tmp_path: Path, drafters: Drafters) -> Path:
    """A copy of IN, to be changed."""
    return Path(shutil.copytree(drafters.drafter, tmp_path / "in"))


# --- what changes while it is read ----------------------------------------------------------------------------


def truncate(share: float) -> Callable[[Path], None]:
    return lambda file: os.truncate(file, int(file.stat().st_size * share))


def append(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(b"more")


def overwrite(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(-100, 2)
        opened.write(b"x" * 50)


def replace(file: Path) -> None:
    other = file.with_name("other")
    shutil.copy(file, other)
    other.replace(file)


CHANGES = {
    "shrinks": truncate(0.5), "is emptied": truncate(0), "grows": append, "is overwritten": overwrite,
    "is replaced": replace, "is gone": Path.unlink,
}  # fmt: skip


def changed_while_it_stands(command: Command, source: Path, point: Point, file: str, how: str, **options: int) -> Ended:
    """What a conversion says whose input changed at `point`; it leaves nothing."""
    room = source.with_name("room")
    room.mkdir()
    fault = point.kills(signal.SIGSTOP)
    stopped = command.run("convert", source, room / "out", fault=fault, **options)
    assert stopped.stopped, stopped
    CHANGES[how](source / file)
    ended = command.go_on(stopped)
    assert ended.code == 3 and names(room) == [], ended
    return ended


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("moment", [("from", WEIGHTS, 1), ("from", WEIGHTS, 4), ("open", "LICENSE", 1)], ids=str)
def test_weights_that_change(how: str, moment: tuple[str, str, int], command: Command, source: Path) -> None:
    call, name, at = moment
    point = Point(call, f"{source}/{name}", at)
    ended = changed_while_it_stands(command, source, point, WEIGHTS, how, block=32 << 10)
    assert "F109" in ended.said or "F100" in ended.said, ended


@pytest.mark.parametrize("how", CHANGES)
def test_a_config_that_changes(how: str, command: Command, source: Path) -> None:
    """Else the seal would state the digest of a config that nobody read."""
    point = Point("from", f"{source}/{WEIGHTS}", 1)
    ended = changed_while_it_stands(command, source, point, "config.json", how)
    assert "F109" in ended.said or "F100" in ended.said, ended


@pytest.mark.parametrize("how", ["shrinks", "grows", "is overwritten"])
def test_a_file_that_goes_along_changes(how: str, command: Command, source: Path) -> None:
    point = Point("from", f"{source}/LICENSE", 1)
    assert "F109" in changed_while_it_stands(command, source, point, "LICENSE", how).said


@pytest.mark.parametrize("change", ["notes", "no seal"])
def test_an_old_out_that_becomes_somebody_elses(
    change: str, command: Command, drafters: Drafters, tmp_path: Path
) -> None:
    """--force may not take what came after it had looked."""
    room = tmp_path / "room"
    room.mkdir()
    drafters.put_old(room / "out")
    fault = Point("from", f"{drafters.drafter}/{WEIGHTS}", 1).kills(signal.SIGSTOP)
    stopped = command.run("convert", drafters.drafter, room / "out", "--force", fault=fault)
    if change == "notes":
        (room / "out" / "notes.txt").write_text("mine")
    else:
        (room / "out" / "eagle3-seal.json").unlink()
    before = tree(room / "out")
    ended = command.go_on(stopped)
    assert ended.code == 4 and "meanwhile" in ended.said, ended
    assert tree(room / "out") == before
    assert names(room) == ["out"]


# --- where they lie -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["in", "in/deep/out", ".", "in/../in", "link/out"])
def test_in_and_out_in_each_other(place: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("in")
    before = tree(source)
    for force in ([], ["--force"]):
        assert eagle3("convert", source, tmp_path / place, *force).returncode == 2
    assert tree(source) == before
    assert names(tmp_path) == ["in", "link"]


def test_an_in_of_links_into_out(drafters: Drafters, tmp_path: Path) -> None:
    """The weights of IN are OUT's own: replaced, they would be gone."""
    out, source = tmp_path / "out", tmp_path / "in"
    shutil.copytree(drafters.drafter, source)
    assert eagle3("convert", source, out, "--to", "speculators").returncode == 0
    shutil.rmtree(source)
    source.mkdir()
    for name in ("config.json", WEIGHTS):
        (source / name).symlink_to(out / name)
    before = tree(out)
    done = eagle3("convert", source, out, "--force")
    assert done.returncode == 2 and "link" in done.stderr
    assert tree(out) == before


def test_an_in_of_links_to_blobs(drafters: Drafters, tmp_path: Path) -> None:
    """As huggingface_hub keeps a repository."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for n, file in enumerate(sorted(drafters.drafter.iterdir())):
        shutil.copy(file, blobs / str(n))
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(n)))
    before = tree(blobs)
    assert eagle3("convert", snapshot, tmp_path / "out").returncode == 0
    assert drafters.state(tmp_path / "out") == "new"
    assert not any(p.is_symlink() for p in (tmp_path / "out").iterdir())
    assert tree(blobs) == before


def test_out_on_another_device(drafters: Drafters, tmp_path: Path) -> None:
    """OUT's parent is a link to a folder of a memory disk, or of the disk where the temporary files are in memory."""
    here = tmp_path.stat().st_dev
    other = next((p for p in map(Path, ("/dev/shm", "/var/tmp")) if p.is_dir() and p.stat().st_dev != here), None)
    assert other is not None, "this test needs a second file system at /dev/shm or /var/tmp"
    place = other / f"eagle3-test-{os.getpid()}"
    place.mkdir()
    try:
        (tmp_path / "link").symlink_to(place)
        for force in ([], ["--force"]):
            assert eagle3("convert", drafters.drafter, tmp_path / "link" / "out", *force).returncode == 0
            assert drafters.state(place / "out") == "new"
            assert names(place) == ["out"]
    finally:
        shutil.rmtree(place)


ODD = {
    "255 bytes": "x" * 255, "255 bytes of characters": "層" * 85, "spaces": " a b ", "a dash": "-q",
    "a line end": "a\nb", "no text": os.fsdecode(b"\xff\xfe"), "markup": "[bold]a",
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_names(name: str, command: Command, drafters: Drafters, tmp_path: Path) -> None:
    room, out = tmp_path / "room", tmp_path / "room" / ODD[name]
    room.mkdir()
    source = tmp_path / "sources" / ODD[name]
    shutil.copytree(drafters.drafter, source)
    for force in ([], ["--force"]):
        ended = command.run("convert", *force, "--", source, out)
        assert ended.code == 0 and "Traceback" not in ended.said, ended
        assert names(room) == [ODD[name]]
        assert drafters.state(out) == "new"


@pytest.mark.parametrize("name", ["255 bytes", "no text", "a line end"])
def test_odd_names_of_reports_and_baselines(name: str, command: Command, drafters: Drafters, tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    file = ODD[name].removesuffix("x" * 5) + ".json"
    for option in ("--report", "--write-baseline"):
        ended = command.run("validate", drafters.drafter, "--engine", "sglang", option, room / file)
        assert ended.code == 0 and "Traceback" not in ended.said, ended
        assert names(room) == [file]
        json.loads((room / file).read_text())
        (room / file).unlink()


def test_sparse_files(drafters: Drafters, tmp_path: Path) -> None:
    """Holes are zeros. The file is written again with every page of zeros left out."""
    source = tmp_path / "in"
    shutil.copytree(drafters.drafter, source)
    content, page = (source / WEIGHTS).read_bytes(), 4096
    with (source / WEIGHTS).open("wb") as file:
        for start in range(0, len(content), page):
            block = content[start : start + page]
            if any(block):
                file.seek(start)
                file.write(block)
        file.truncate(len(content))
    assert (source / WEIGHTS).read_bytes() == content
    assert eagle3("convert", source, tmp_path / "out").returncode == 0
    assert drafters.state(tmp_path / "out") == "new"


# --- who may not ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["parent", "old", "weights", "config.json", "in"])
def test_no_permission(what: str, command: Command, drafters: Drafters, source: Path, tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    if what == "old":
        drafters.put_old(room / "out")
    place = {"parent": room, "old": room / "out", "weights": source / WEIGHTS, "in": source}.get(what, source / what)
    before, mode = sorted(names(room)), stat.S_IMODE(place.stat().st_mode)
    place.chmod(0o555 if what in ("parent", "old") else 0)
    try:
        ended = command.run("convert", source, room / "out", "--force", powerless=True)
    finally:
        place.chmod(mode)
    assert ended.code == {"parent": 4, "old": 2}.get(what, 3), ended
    assert "Traceback" not in ended.said
    assert names(room) == before
    assert drafters.state(room / "out") == ("old" if what == "old" else "absent")


# --- several at once ------------------------------------------------------------------------------------------


def start(source: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "converter", "convert", str(source), str(out), "-q", *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
    )  # fmt: skip


def test_twenty_from_one_in(drafters: Drafters, tmp_path: Path) -> None:
    running = [start(drafters.drafter, tmp_path / "room" / f"out{n}") for n in range(20)]
    for process in running:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    assert names(tmp_path / "room") == sorted(f"out{n}" for n in range(20))
    assert {drafters.state(out) for out in (tmp_path / "room").iterdir()} == {"new"}
    drafters.check_untouched()


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["new", "force"])
def test_five_into_one_out(force: list[str], drafters: Drafters, tmp_path: Path) -> None:
    """One at least is done, the others too or with a clear error; OUT is whole."""
    if force:
        drafters.put_old(tmp_path / "out")
    running = [start(drafters.drafter, tmp_path / "out", *force) for _ in range(5)]
    ended = [(p.communicate(timeout=300)[0], p.returncode) for p in running]
    assert 0 in [code for _, code in ended]
    for said, code in ended:
        assert code in (0, 2, 4) and "Traceback" not in said, said
        assert code == 0 or "error" in said
    assert names(tmp_path) == ["out"]
    assert drafters.state(tmp_path / "out") == "new"

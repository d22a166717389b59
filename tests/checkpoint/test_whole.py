"""Files that are as they were or new and whole, and the steps that no signal breaks."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from converter.checkpoint import leftovers, staging, whole
from converter.checkpoint.scratch import Scratch
from converter.checkpoint.staging import Staging
from converter.checkpoint.whole import write_whole
from converter.errors import InputError
from converter.findings import error
from converter.signals import interruptible, unbroken


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_new_and_again(tmp_path: Path) -> None:
    file = tmp_path / ("x" * 255)
    for text in ("層", "other"):
        write_whole(file, text)
        assert file.read_text(encoding="utf-8") == text
        assert names(tmp_path) == [file.name]
    write_whole(file, [b"a", memoryview(b"b")])
    assert file.read_bytes() == b"ab"


def test_permissions_stay_and_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_to() -> None:
    read, write = os.pipe()
    write_whole(Path(f"/dev/fd/{write}"), "said")
    os.close(write)
    with os.fdopen(read) as opened:
        assert opened.read() == "said"


def test_what_fails_leaves_the_old_one(tmp_path: Path) -> None:
    def pieces() -> Any:
        yield b"half"
        raise OSError(28, "full")

    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError, match="full"):
        write_whole(tmp_path / "file", pieces())
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_what_killed_runs_left_goes_and_what_others_write_stays(tmp_path: Path) -> None:
    left, others = (tmp_path / f".file.eagle3-writing-{n * 12}" for n in "01")
    left.touch()
    others.touch()
    held = leftovers.lock(others)
    write_whole(tmp_path / "file", "new")
    assert names(tmp_path) == [others.name, "file"]
    leftovers.unlock(held)


def test_a_lock_that_is_always_held_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(path: Path) -> int:
        raise leftovers.Held

    monkeypatch.setattr(whole, "lock", held)
    with pytest.raises(OSError, match="other runs keep removing"):
        write_whole(tmp_path / "file", "new")
    assert names(tmp_path) == []


def test_a_signal_waits_for_the_end_of_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interruptible():
        with unbroken():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.raise_signal(number)
                done.append(number)
        done.append("after")
    assert len(done) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_lock_that_a_signal_broke_is_told_as_the_interrupt(number: int) -> None:
    lock = threading.Lock()
    with pytest.raises(KeyboardInterrupt), interruptible():
        try:
            signal.raise_signal(number)
        finally:
            lock.release()
    with pytest.raises(KeyboardInterrupt), interruptible():  # whatever it is taken for in between
        try:
            try:
                signal.raise_signal(number)
            finally:
                lock.release()
        except RuntimeError as problem:
            raise InputError(error("F101", "it cannot be read")) from problem
    with pytest.raises(RuntimeError, match="release unlocked lock"), interruptible():
        lock.release()
    with pytest.raises(OSError, match="gone"), interruptible():  # each the cause of the other
        try:
            raise RuntimeError from OSError("gone")
        except RuntimeError as problem:
            assert problem.__cause__ is not None
            raise problem.__cause__ from problem
    with pytest.raises(InputError), interruptible():  # what an interrupt's cleaning up could not do is told
        try:
            signal.raise_signal(number)
        finally:
            raise InputError(error("F100", "it cannot be put back"))


@pytest.mark.parametrize("name", ["hidden_name", "lock"])
def test_an_interrupt_while_staging_begins(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(staging, name)

    def interrupted(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return original(*given)

    monkeypatch.setattr(staging, name, interrupted)
    with pytest.raises(KeyboardInterrupt), Staging(tmp_path / "deep" / "out"):
        pytest.fail("it was interrupted before")
    assert names(tmp_path) == []


def test_a_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, others = tmp_path / "eagle3-pickle-left", tmp_path / "eagle3-pickle-others"
    left.mkdir()
    others.mkdir()
    held = leftovers.lock(others)
    scratch = Scratch()
    assert names(tmp_path) == sorted([others.name, scratch.folder.name])
    scratch.close()
    assert names(tmp_path) == [others.name]
    leftovers.unlock(held)

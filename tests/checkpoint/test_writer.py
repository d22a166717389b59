"""Writing as a stream: the same bytes by every way of copying, true digests, and an end in every failure."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from safetensors.numpy import load_file, save_file

from converter.checkpoint import digest, writer
from converter.checkpoint.header import TensorInfo, build_header, read_header
from converter.checkpoint.reader import Checkpoint, open_checkpoint
from converter.checkpoint.writer import OutputTensor, WrittenFile, write_safetensors
from converter.errors import InputError
from tests.support import ROOT

WAYS = ["copy_file_range", "sendfile", "read and write"]


def missing(*_: Any) -> int:
    raise OSError(errno.EXDEV, "not between these file systems")


def force(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave only `way`: those before it fail as the system's calls do, or are not there at all."""
    if way != "copy_file_range":
        monkeypatch.setattr(os, "copy_file_range", missing, raising=False)
    if way == "read and write":
        monkeypatch.delattr(os, "sendfile", raising=False)
    monkeypatch.setattr(writer, "BLOCK", 1000)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    force(request.param, monkeypatch)
    return str(request.param)


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """Run `work` and fail, rather than wait for ever, where it does not end."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as problem:
            outcome.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcome, f"did not end within {seconds} s"
    return outcome[0]


def digest_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "digest"]


VALUES = {
    "a": np.arange(777, dtype="<f4"),
    "": np.arange(12, dtype="<i8").reshape(3, 4),
    "empty": np.zeros((0, 5), dtype="<f2"),
    "scalar": np.array(7, dtype="<i4"),
    "层": np.arange(5001, dtype="u1"),
    "flags": np.array([True, False, True]),
}


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Checkpoint]:
    save_file({n: VALUES[n] for n in ("a", "", "empty")}, tmp_path / "one")
    save_file({n: VALUES[n] for n in ("scalar", "层", "flags")}, tmp_path / "two")
    return {n: c for c in map(open_checkpoint, (tmp_path / "one", tmp_path / "two")) for n in c.tensors}


def outputs(sources: dict[str, Checkpoint], order: list[str]) -> list[OutputTensor]:
    return [OutputTensor(f"new.{n}" if n else "", t.info.dtype, t.info.shape, t) for n in order
            for t in [sources[n].tensors[n]]]  # fmt: skip


def check(written: WrittenFile, path: Path, values: dict[str, np.ndarray[Any, Any]]) -> None:
    file = path.read_bytes()
    header = read_header(path)
    assert written.name == path.name
    assert written.size == len(file)
    assert written.sha256 == hashlib.sha256(file).hexdigest()
    assert list(written.xxh3) == list(values)
    loaded = load_file(path)
    assert set(loaded) == set(values)
    for name, wanted in values.items():
        np.testing.assert_array_equal(loaded[name], wanted, strict=True)
        info = header.tensors[name]
        stored = file[header.data_start + info.start : header.data_start + info.end]
        assert written.xxh3[name] == xxhash.xxh3_128_hexdigest(stored)


ORDERS = [["a", "", "empty", "scalar", "层", "flags"], ["flags", "empty", "a", "层", "", "scalar"], ["empty"], []]


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: f"{len(o)} tensors")
def test_bytes_and_digests(order: list[str], way: str, sources: dict[str, Checkpoint], tmp_path: Path) -> None:
    moved: list[int] = []
    written = write_safetensors(
        tmp_path / "out", outputs(sources, order), {"format": "pt"}, progress=lambda n: moved.append(n)
    )
    check(written, tmp_path / "out", {f"new.{n}" if n else "": VALUES[n] for n in order})
    assert sum(moved) == written.size
    assert max(moved) <= 1000
    assert not digest_threads()


def test_in_the_order_of_the_input_the_file_is_the_same(
    way: str, sources: dict[str, Checkpoint], tmp_path: Path
) -> None:
    """Unchanged names and order give the input file again, byte for byte."""
    one = sources["a"]
    tensors = [OutputTensor(n, t.info.dtype, t.info.shape, t) for n, t in one.tensors.items()]
    write_safetensors(tmp_path / "out", tensors, {})
    assert (tmp_path / "out").read_bytes() == (tmp_path / "one").read_bytes()


@pytest.mark.parametrize("name", WAYS)
def test_each_way_is_really_taken(name: str, sources: dict[str, Checkpoint], tmp_path: Path) -> None:
    calls: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        force(name, patch)
        for function in ("_by_copy_file_range", "_by_sendfile", "_by_read_and_write"):
            original = getattr(writer, function)

            def counted(*arguments: int, original: Any = original, function: str = function) -> int:
                moved: int = original(*arguments)
                calls.append(function)
                return moved

            patch.setattr(writer, function, counted)
        write_safetensors(tmp_path / "out", outputs(sources, ORDERS[0]), {})
    assert set(calls) == {"_by_" + name.replace(" ", "_")}


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EIO])
@pytest.mark.parametrize("after", [0, 3])
def test_a_way_that_fails_on_the_way(
    number: int, after: int, sources: dict[str, Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail_after(monkeypatch, after, lambda: _raise(OSError(number, os.strerror(number))))
    monkeypatch.setattr(writer, "BLOCK", 500)
    written = write_safetensors(tmp_path / "out", outputs(sources, ORDERS[1]), {})
    check(written, tmp_path / "out", {f"new.{n}" if n else "": VALUES[n] for n in ORDERS[1]})


def test_a_file_system_where_copy_file_range_moves_nothing(
    sources: dict[str, Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some kernels say 0 as at the end of the file; only reading tells the two apart."""
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0, raising=False)
    written = write_safetensors(tmp_path / "out", outputs(sources, ORDERS[0]), {})
    check(written, tmp_path / "out", {f"new.{n}" if n else "": VALUES[n] for n in ORDERS[0]})


def _raise(problem: BaseException) -> int:
    raise problem


def _fail_after(monkeypatch: pytest.MonkeyPatch, count: int, fail: Callable[[], int]) -> None:
    """copy_file_range works `count` times, by reading and writing, and then does `fail`."""
    calls, read_and_write = [0], writer._by_read_and_write

    def copy(source: int, out: int, size: int, offset: int) -> int:
        calls[0] += 1
        return read_and_write(source, out, offset, size) if calls[0] <= count else fail()

    monkeypatch.setattr(os, "copy_file_range", copy, raising=False)


def test_without_digests(way: str, sources: dict[str, Checkpoint], tmp_path: Path) -> None:
    plain = write_safetensors(tmp_path / "out", outputs(sources, ORDERS[0]), {}, digest=False)
    assert (plain.sha256, plain.xxh3) == ("", {})
    write_safetensors(tmp_path / "other", outputs(sources, ORDERS[0]), {})
    assert (tmp_path / "out").read_bytes() == (tmp_path / "other").read_bytes()


def test_made_tensors_between_copied_ones(way: str, sources: dict[str, Checkpoint], tmp_path: Path) -> None:
    made = np.arange(6000, dtype="<i8").reshape(60, 100).T  # not contiguous
    order = ["a", "层", "flags"]
    tensors = outputs(sources, order)
    tensors[1] = OutputTensor("made", "I64", made.shape, tensors[1].stored, lambda: [made[:1], made[1:]])
    written = write_safetensors(tmp_path / "out", tensors, {})
    check(written, tmp_path / "out", {"new.a": VALUES["a"], "made": made, "new.flags": VALUES["flags"]})


def test_an_existing_file_is_not_touched(sources: dict[str, Checkpoint], tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(FileExistsError):
        write_safetensors(tmp_path / "out", outputs(sources, ORDERS[0]), {})
    assert (tmp_path / "out").read_text() == "mine"


def test_memory_stays_at_a_few_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    force("read and write", monkeypatch)
    monkeypatch.setattr(writer, "BLOCK", 1 << 20)
    size = 64 << 20
    header = build_header({"a": TensorInfo("U8", (size,), 0, size)}, {})
    with (tmp_path / "in").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)
    tensor = open_checkpoint(tmp_path / "in").tensors["a"]
    tracemalloc.start()
    try:
        write_safetensors(tmp_path / "out", [OutputTensor("a", "U8", (size,), tensor)], {})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 << 20
    assert (tmp_path / "out").stat().st_size == len(header) + size


# --- failures: always an error, never a wait without end, never a thread left behind ------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("digest", [True, False])
def test_a_disk_that_fails(
    number: int, digest: bool, sources: dict[str, Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: int) -> int:
        raise OSError(number, os.strerror(number))

    _fail_after(monkeypatch, 2, fail)
    monkeypatch.setattr(writer, "_by_sendfile", fail)
    monkeypatch.setattr(writer, "_by_read_and_write", fail)
    monkeypatch.setattr(writer, "BLOCK", 500)
    tensors = outputs(sources, ORDERS[0])
    problem = within(10, lambda: write_safetensors(tmp_path / "out", tensors, {}, digest=digest))
    assert isinstance(problem, OSError) and problem.errno == number
    assert not digest_threads()


FULL = """
import os, resource, sys, threading
from pathlib import Path
from converter.checkpoint import writer
from converter.checkpoint.reader import open_checkpoint

resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
for name in sys.argv[3:]:
    delattr(os, name)
for make in (False, True):
    checkpoint = open_checkpoint(Path(sys.argv[1]))
    tensors = [
        writer.OutputTensor(n, t.info.dtype, t.info.shape, t, (lambda n=n: checkpoint.parts(n)) if make else None)
        for n, t in checkpoint.tensors.items()
    ]
    try:
        writer.write_safetensors(Path(sys.argv[2] + str(make)), tensors, {})
    except OSError as problem:
        print(problem.strerror, threading.active_count())
"""


@pytest.mark.parametrize("without", [[], ["copy_file_range"], ["copy_file_range", "sendfile"]], ids=WAYS)
def test_a_file_that_may_not_grow(without: list[str], tmp_path: Path) -> None:
    save_file({"a": np.zeros(1_000_000, "<f4"), "b": np.zeros(1_000_000, "<f4")}, tmp_path / "in")
    without = [name for name in without if hasattr(os, name)]
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "in"), str(tmp_path / "out"), *without],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.stdout.splitlines() == [f"{os.strerror(errno.EFBIG)} 1"] * 2, done.stderr


@pytest.mark.parametrize("keep", [0, 1])
def test_a_source_cut_short_while_it_is_copied(
    keep: int, way: str, sources: dict[str, Checkpoint], tmp_path: Path
) -> None:
    def progress(count: int) -> None:
        os.truncate(tmp_path / "two", keep * (tmp_path / "two").stat().st_size // 2)

    problem = within(10, lambda: write_safetensors(tmp_path / "out", outputs(sources, ["层"]), {}, progress=progress))
    assert isinstance(problem, InputError) and problem.finding.code == "F109" and problem.finding.fix
    assert "two" in problem.finding.message
    assert not digest_threads()


def test_a_source_that_is_gone(sources: dict[str, Checkpoint], tmp_path: Path) -> None:
    (tmp_path / "two").unlink()
    problem = within(10, lambda: write_safetensors(tmp_path / "out", outputs(sources, ORDERS[0]), {}))
    assert isinstance(problem, InputError) and problem.finding.code == "F100"
    assert not digest_threads()


@pytest.mark.parametrize("size", [0, 5, 7, 100])
def test_a_made_tensor_of_another_size(size: int, sources: dict[str, Checkpoint], tmp_path: Path) -> None:
    [tensor] = outputs(sources, ["a"])
    tensors = [OutputTensor("made", "U8", (6,), tensor.stored, lambda: [np.zeros(size, "u1")]), tensor]
    problem = within(10, lambda: write_safetensors(tmp_path / "out", tensors, {}))
    assert isinstance(problem, ValueError) and "made" in str(problem)
    assert not digest_threads()


def test_making_fails(sources: dict[str, Checkpoint], tmp_path: Path) -> None:
    [tensor] = outputs(sources, ["a"])
    broken = OutputTensor("made", "U8", (6,), tensor.stored, lambda: _raise(MemoryError()))  # type: ignore[arg-type,return-value]
    assert isinstance(within(10, lambda: write_safetensors(tmp_path / "out", [tensor, broken], {})), MemoryError)
    assert not digest_threads()


def test_what_was_written_disappears(sources: dict[str, Checkpoint], tmp_path: Path) -> None:
    """A file cut while the digest follows is an error, not a digest of fewer bytes."""
    out, tensors = tmp_path / "out", outputs(sources, ["a", "层"])
    size = write_safetensors(tmp_path / "whole", tensors, {}).size
    done: list[int] = []

    def progress(count: int) -> None:
        done.append(count)
        if sum(done) == size:  # before the digest hears of the last block
            os.truncate(out, 0)

    problem = within(10, lambda: write_safetensors(out, tensors, {}, progress=progress))
    assert isinstance(problem, OSError) and problem.errno == errno.EIO
    assert not digest_threads()


def test_an_interrupt_does_not_wait_for_the_digest(
    sources: dict[str, Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest is far behind (200 slow blocks); what is still to be read does not matter any more."""
    fill = digest.fill

    def slow(*arguments: Any) -> bool:
        time.sleep(0.1)
        return fill(*arguments)

    def interrupt(count: int) -> None:
        done.append(count)
        if len(done) > 200:
            raise KeyboardInterrupt

    done: list[int] = []
    monkeypatch.setattr(digest, "fill", slow)
    monkeypatch.setattr(digest, "BLOCK", 20)
    monkeypatch.setattr(writer, "BLOCK", 20)
    problem = within(8, lambda: write_safetensors(tmp_path / "out", outputs(sources, ["层"]), {}, progress=interrupt))
    assert isinstance(problem, KeyboardInterrupt)
    assert not digest_threads()


@pytest.mark.parametrize("what", ["digests", "scan"])
def test_an_interrupt_ends_threads_wherever_it_comes(what: str, tmp_path: Path) -> None:
    """A lock that is held at that moment would never be let go, or be let go twice."""
    words = [sys.executable, "-m", "tests.checkpoint.interrupted_threads", what, str(tmp_path)]
    subprocess.run(words, check=True, timeout=60, cwd=ROOT)

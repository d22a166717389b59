"""Writes a safetensors file as a stream: unchanged bytes are moved by the kernel, changed tensors are made
one at a time, and a second thread digests what has been written, so memory stays at a few buffers.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from converter.checkpoint.header import DTYPE_BITS, TensorInfo, build_header
from converter.checkpoint.reader import StoredTensor, preadinto
from converter.errors import InputError
from converter.findings import error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK = 8 << 20  # bytes moved by one system call, so that progress shows and signals are served
_CANNOT = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}

Progress = Callable[[int], None]


@dataclass(frozen=True)
class OutputTensor:
    """A tensor to write: its bytes are those of `stored`, or what `make` returns (called while writing)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: StoredTensor
    make: Callable[[], NDArray[np.generic]] | None = None

    @property
    def nbytes(self) -> int:
        bits = DTYPE_BITS[self.dtype]
        for n in self.shape:
            bits *= n
        return bits // 8


@dataclass(frozen=True)
class WrittenFile:
    """sha256 is the file's LFS id; xxh3 the XXH3-128 digest of each tensor's bytes; both empty without digests."""

    name: str
    size: int
    sha256: str
    xxh3: Mapping[str, str]


def write_safetensors(
    path: Path,
    tensors: Sequence[OutputTensor],
    metadata: Mapping[str, str],
    *,
    digest: bool = True,
    progress: Progress = lambda n: None,
) -> WrittenFile:
    """Write `tensors` in the order given and sync the file to disk.

    Raises OSError where the disk fails and InputError F109 where a source file is shorter than it was.
    """
    infos: dict[str, TensorInfo] = {}
    cursor = 0
    for tensor in tensors:
        infos[tensor.name] = TensorInfo(tensor.dtype, tensor.shape, cursor, cursor + tensor.nbytes)
        cursor += tensor.nbytes
    header = build_header(infos, metadata)
    with path.open("xb", buffering=0) as out:
        digester = _Digester(out.fileno(), path, header, infos) if digest else None
        try:
            _write_all(out.fileno(), header, progress, digester)
            for run in _runs(tensors):
                make = run[0].make
                if make is None:
                    _copy(out.fileno(), run, progress, digester)
                    continue
                data = make().tobytes()
                if len(data) != run[0].nbytes:
                    raise ValueError(f"{run[0].name} was made of {len(data):,} bytes, not {run[0].nbytes:,}")
                _write_all(out.fileno(), data, progress, digester)
            if digester:
                digester.finish()
        finally:
            if digester:
                digester.stop()
        os.fsync(out.fileno())
    return WrittenFile(
        path.name,
        len(header) + cursor,
        digester.sha256.hexdigest() if digester else "",
        digester.xxh3 if digester else {},
    )


def _runs(tensors: Sequence[OutputTensor]) -> Iterator[list[OutputTensor]]:
    """Neighbours that lie side by side in one input file, unchanged, are copied as one range."""
    run: list[OutputTensor] = []
    for tensor in tensors:
        if run:
            last = run[-1]
            joins = (
                last.make is None
                and tensor.make is None
                and tensor.stored.file == last.stored.file
                and tensor.stored.offset == last.stored.offset + last.nbytes
            )
            if not joins:
                yield run
                run = []
        run.append(tensor)
    if run:
        yield run


def _copy(out: int, run: list[OutputTensor], progress: Progress, digester: _Digester | None) -> None:
    source, offset = run[0].stored.file, run[0].stored.offset
    end = offset + sum(t.nbytes for t in run)
    with source.open("rb", buffering=0) as file:
        ways = [_by_copy_file_range, _by_sendfile, _by_read_and_write]
        while offset < end:
            try:
                moved = ways[0](file.fileno(), out, offset, min(BLOCK, end - offset))
            except OSError as problem:
                if problem.errno in _CANNOT and len(ways) > 1:
                    del ways[0]
                    continue
                raise
            if moved == 0 and len(ways) > 1:  # the end of the file, or a file system that this way cannot read
                del ways[0]
                continue
            if moved == 0:
                raise InputError(error("F109", f"{source.name} became shorter while it was read", where=str(source)))
            offset += moved
            _start_writeback(out)
            progress(moved)
            if digester:
                digester.advance(moved)


def _by_copy_file_range(source: int, out: int, offset: int, count: int) -> int:
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, "copy_file_range")
    return os.copy_file_range(source, out, count, offset)


def _by_sendfile(source: int, out: int, offset: int, count: int) -> int:
    if not hasattr(os, "sendfile"):
        raise OSError(errno.ENOSYS, "sendfile")
    return os.sendfile(out, source, offset, count)


def _by_read_and_write(source: int, out: int, offset: int, count: int) -> int:
    buffer = memoryview(bytearray(count))
    got = preadinto(source, buffer, offset)
    view = buffer[:got]
    while view:
        view = view[os.write(out, view) :]
    return got


def _write_all(out: int, data: bytes, progress: Progress, digester: _Digester | None) -> None:
    view = memoryview(data)
    while view:
        wrote = os.write(out, view[:BLOCK])
        view = view[wrote:]
        _start_writeback(out)
        progress(wrote)
        if digester:
            digester.advance(wrote)


_SYNC_FILE_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None) if os.name == "posix" else None
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h


def _start_writeback(out: int) -> None:
    """Have the disk begin with what is written so far, so that the sync at the end waits for little.

    A hint, on Linux only: it does not wait, and whatever goes wrong is for the sync to report.
    """
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(out, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)


class _Digester(threading.Thread):
    """Follows the writer through the file: SHA-256 of the whole, XXH3-128 of each tensor."""

    def __init__(self, out: int, path: Path, header: bytes, infos: Mapping[str, TensorInfo]) -> None:
        super().__init__(name="digest", daemon=True)
        self._path = path
        self._spans = [(None, len(header)), *((name, info.nbytes) for name, info in infos.items())]
        self._written = 0
        self._stopped = False
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self.sha256 = hashlib.sha256()
        self.xxh3: dict[str, str] = {}
        self.start()

    def advance(self, count: int) -> None:
        with self._changed:
            self._written += count
            self._changed.notify()

    def finish(self) -> None:
        """Wait until everything written has been digested."""
        self.join()
        if self._failure:
            raise self._failure

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self.join()

    def run(self) -> None:
        try:
            self._digest()
        except BaseException as problem:
            self._failure = problem

    def _digest(self) -> None:
        import xxhash

        position = 0
        buffer = memoryview(bytearray(BLOCK))
        with self._path.open("rb", buffering=0) as file:
            for name, length in self._spans:
                fast = xxhash.xxh3_128()
                end = position + length
                while position < end:
                    want = min(BLOCK, end - position)
                    if not self._wait_for(position + want):
                        return
                    got = preadinto(file.fileno(), buffer[:want], position)
                    if got == 0:
                        raise OSError(errno.EIO, "the written file is shorter than what was written", str(self._path))
                    self.sha256.update(buffer[:got])
                    if name is not None:
                        fast.update(buffer[:got])
                    position += got
                if name is not None:
                    self.xxh3[name] = fast.hexdigest()

    def _wait_for(self, position: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._written >= position)
            return not self._stopped

"""Writes a safetensors file as a stream: unchanged bytes are moved by the kernel, changed tensors are made
one at a time, and two threads digest what has been written, so memory stays at a few buffers.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from converter.checkpoint.digest import Digester
from converter.checkpoint.header import TensorInfo, build_header, nbytes_of
from converter.checkpoint.jsonfile import unreadable
from converter.checkpoint.reader import Checkpoint, Stamp, StoredTensor, preadinto

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK = 8 << 20  # bytes moved by one system call, so that progress shows and signals are served

Progress = Callable[[int], None]


@dataclass(frozen=True)
class OutputTensor:
    """A tensor to write: its bytes are those of `stored`, or the pieces that `make` yields, in order, while writing."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: StoredTensor
    make: Callable[[], Iterable[NDArray[np.generic]]] | None = None

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.dtype, self.shape)


@dataclass(frozen=True)
class WrittenFile:
    """What was written, read back once; without digests all but name and size are empty.

    sha256      the file's LFS id
    xxh3        XXH3-128 of each tensor's bytes
    not_finite  tensor -> how many of its values are NaN or infinite, where any are
    """

    name: str
    size: int
    sha256: str = ""
    xxh3: Mapping[str, str] = field(default_factory=dict)
    not_finite: Mapping[str, int] = field(default_factory=dict)


def write_safetensors(
    path: Path,
    tensors: Sequence[OutputTensor],
    metadata: Mapping[str, str],
    *,
    digest: bool = True,
    progress: Progress = lambda n: None,
) -> WrittenFile:
    """Write `tensors` in the order given and sync the file to disk.

    Raises OSError where the disk fails; of a source file InputError F100 where it cannot be read, and F109 where it is
    shorter than it was.
    """
    with writing(path, tensors, metadata, digest=digest, progress=progress) as finish:
        return finish()


@contextmanager
def writing(
    path: Path,
    tensors: Sequence[OutputTensor],
    metadata: Mapping[str, str],
    *,
    digest: bool = True,
    progress: Progress = lambda n: None,
) -> Iterator[Callable[[], WrittenFile]]:
    """Write as `write_safetensors` does, and go on while the digests follow: what is yielded waits for them and tells
    them, and leaving the `with` block gives them up.
    """
    infos: dict[str, TensorInfo] = {}
    cursor = 0
    for tensor in tensors:
        infos[tensor.name] = TensorInfo(tensor.dtype, tensor.shape, cursor, cursor + tensor.nbytes)
        cursor += tensor.nbytes
    header = build_header(infos, metadata)
    size = len(header) + cursor
    with ExitStack() as stack:
        with path.open("xb", buffering=0) as out:
            digester = Digester(path, len(header), infos) if digest else None
            if digester:
                stack.callback(digester.stop)
            _write_all(out.fileno(), header, progress, digester)
            for run in _runs(tensors):
                make = run[0].make
                if make is None:
                    first, last = run[0].stored, run[-1]
                    end = last.stored.offset + last.nbytes
                    _copy(out.fileno(), first.file, first.offset, end, progress, digester)
                    continue
                made = sum(_write_all(out.fileno(), _bytes(part), progress, digester) for part in make())
                if made != run[0].nbytes:
                    raise ValueError(f"{run[0].name} was made of {made:,} bytes, not {run[0].nbytes:,}")
            os.fsync(out.fileno())

        def finish() -> WrittenFile:
            if digester is None:
                return WrittenFile(path.name, size)
            digester.finish()
            return WrittenFile(path.name, size, digester.sha256, digester.xxh3, digester.not_finite)

        yield finish


def _bytes(values: NDArray[np.generic]) -> memoryview:
    """The bytes of an array, copied only where it is not contiguous."""
    import numpy as np

    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


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


def copy_file(source: Path, target: Path) -> None:
    """Copy a file as it is and sync it.

    Raises OSError where the disk fails; of `source` InputError F100 where it cannot be read, and F109 where it was
    changed meanwhile.
    """
    stamp = Stamp.of(source)
    with target.open("xb", buffering=0) as out:
        _copy(out.fileno(), source, 0, stamp.size)
        os.fsync(out.fileno())
    if Stamp.of(source) != stamp:
        raise Checkpoint.changed(source)


def _copy(
    out: int,
    source: Path,
    offset: int,
    end: int,
    progress: Progress = lambda n: None,
    digester: Digester | None = None,
) -> None:
    """Bytes offset..end-1 of `source`, by the best way that this system has for the two files. Why a way failed it does
    not say, not even on which side; the last one, which reads and writes, does.
    """
    ways = [_by_copy_file_range, _by_sendfile, _by_read_and_write]
    with _opened(source) as file:
        while offset < end:
            count = min(BLOCK, end - offset)
            try:
                moved = ways[0](file.fileno(), out, offset, count)
            except _Unreadable as problem:
                raise unreadable(source, problem) from problem
            except OSError:
                if len(ways) == 1:
                    raise
                moved = 0
            if moved == 0 and len(ways) > 1:  # or the end of the file, or a file system that this way cannot read
                del ways[0]
                continue
            if moved == 0:
                raise Checkpoint.changed(source)
            offset += moved
            _start_writeback(out)
            progress(moved)
            if digester:
                digester.advance(moved)


def _opened(source: Path) -> FileIO:
    try:
        return source.open("rb", buffering=0)
    except OSError as problem:
        raise unreadable(source, problem) from problem


class _Unreadable(OSError):
    """It was the reading that failed."""


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
    try:
        got = preadinto(source, buffer, offset)
    except OSError as problem:
        raise _Unreadable(*problem.args) from problem
    view = buffer[:got]
    while view:
        view = view[os.write(out, view) :]
    return got


def _write_all(out: int, data: bytes | memoryview, progress: Progress, digester: Digester | None) -> int:
    view = memoryview(data)
    while view:
        wrote = os.write(out, view[:BLOCK])
        view = view[wrote:]
        _start_writeback(out)
        progress(wrote)
        if digester:
            digester.advance(wrote)
    return len(data)


_SYNC_FILE_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None) if os.name == "posix" else None
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h


def _start_writeback(out: int) -> None:
    """Have the disk begin with what is written so far, so that the sync at the end waits for little.

    A hint, on Linux only: it does not wait, and whatever goes wrong is for the sync to report.
    """
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(out, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)

"""Reads a file while it is written: SHA-256 of the whole, XXH3-128 of each tensor, values that are no numbers."""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from converter.checkpoint.finite import count_not_finite
from converter.checkpoint.header import TensorInfo
from converter.checkpoint.reader import preadinto

_BLOCK = 1 << 20  # bytes digested at once: small enough for a core's cache, a multiple of every element's size


class Digester:
    """Follows the writer of `path`: a header of `header_size` bytes, then the tensors of `infos` side by side.

    Nothing makes SHA-256 faster than a core is, so it has a thread to itself; all else is looked at in another.
    """

    def __init__(self, path: Path, header_size: int, infos: Mapping[str, TensorInfo]) -> None:
        self._written = _Written()
        self._whole = _Whole(path, self._written, header_size + sum(info.nbytes for info in infos.values()))
        self._tensors = _Tensors(path, self._written, header_size, infos)
        self._started: list[_Follower] = []
        try:
            for follower in (self._whole, self._tensors):
                follower.start()
                self._started.append(follower)
        except BaseException:  # no more threads to be had, an interrupt
            self.stop()
            raise

    @property
    def sha256(self) -> str:
        return self._whole.sha256.hexdigest()

    @property
    def xxh3(self) -> Mapping[str, str]:
        return self._tensors.xxh3

    @property
    def not_finite(self) -> Mapping[str, int]:
        return self._tensors.not_finite

    def advance(self, count: int) -> None:
        """The writer has written `count` more bytes."""
        self._written.add(count)

    def finish(self) -> None:
        """Wait until everything written has been digested; raises what went wrong meanwhile."""
        for follower in self._started:
            follower.join()
        for follower in self._started:
            if follower.failure is not None:
                raise follower.failure

    def stop(self) -> None:
        """Give up where it is."""
        self._written.stop()
        for follower in self._started:
            follower.join()


class _Written:
    """How far the writer is."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()
        self.stopped = False

    def add(self, count: int) -> None:
        with self._changed:
            self._count += count
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def wait_for(self, position: int) -> bool:
        """Wait until `position` bytes are written; False where nothing more will be."""
        with self._changed:
            self._changed.wait_for(lambda: self.stopped or self._count >= position)
            return not self.stopped


class _Follower(threading.Thread):
    def __init__(self, path: Path, written: _Written) -> None:
        super().__init__(name="digest", daemon=True)
        self._path = path
        self._written = written
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with self._path.open("rb", buffering=0) as file:
                self._follow(file.fileno())
        except BaseException as problem:
            self.failure = problem

    def _follow(self, fd: int) -> None:
        raise NotImplementedError

    def _blocks(self, fd: int, position: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
        """Bytes position..end-1 in blocks, each as soon as it is written; fewer where the writing is given up."""
        while position < end:
            block = buffer[: min(_BLOCK, end - position)]
            if not self._written.wait_for(position + len(block)):
                return
            got = 0
            while got < len(block):
                step = preadinto(fd, block[got:], position + got)
                if step == 0:
                    raise OSError(errno.EIO, "the written file is shorter than what was written", str(self._path))
                got += step
            yield block
            position += len(block)


class _Whole(_Follower):
    def __init__(self, path: Path, written: _Written, size: int) -> None:
        super().__init__(path, written)
        self._size = size
        self.sha256 = hashlib.sha256()

    def _follow(self, fd: int) -> None:
        for block in self._blocks(fd, 0, self._size, memoryview(bytearray(_BLOCK))):
            self.sha256.update(block)


class _Tensors(_Follower):
    def __init__(self, path: Path, written: _Written, start: int, infos: Mapping[str, TensorInfo]) -> None:
        super().__init__(path, written)
        self._start = start
        self._infos = infos
        self.xxh3: dict[str, str] = {}
        self.not_finite: dict[str, int] = {}

    def _follow(self, fd: int) -> None:
        import xxhash

        buffer, position = memoryview(bytearray(_BLOCK)), self._start
        for name, info in self._infos.items():
            fast, bad, end = xxhash.xxh3_128(), 0, position + info.nbytes
            for block in self._blocks(fd, position, end, buffer):
                fast.update(block)
                bad += count_not_finite(block, info.dtype)
            if self._written.stopped:
                return
            self.xxh3[name] = fast.hexdigest()
            if bad:
                self.not_finite[name] = bad
            position = end

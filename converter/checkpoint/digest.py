"""Reads a file while it is written: SHA-256 of the whole, XXH3-128 of each tensor, values that are no numbers."""

from __future__ import annotations

import errno
import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue

from converter.checkpoint.finite import count_not_finite
from converter.checkpoint.header import TensorInfo
from converter.checkpoint.reader import BLOCK, fill
from converter.signals import unbroken


class Digester:
    """Follows the writer of `path`: a header of `header_size` bytes, then the tensors of `infos` side by side.

    Nothing makes SHA-256 faster than a core is, so it has a thread to itself; all else is looked at in another.
    """

    def __init__(self, path: Path, header_size: int, infos: Mapping[str, TensorInfo]) -> None:
        self._written = 0
        self._whole = _Whole(path, header_size + sum(info.nbytes for info in infos.values()))
        self._tensors = _Tensors(path, header_size, infos)
        self._followers: tuple[_Follower, ...] = (self._whole, self._tensors)
        self._started: list[_Follower] = []
        try:
            for follower in self._followers:
                with unbroken():  # start() waits for the thread with a lock
                    follower.start()
                    self._started.append(follower)
        except BaseException:  # no more threads to be had, an interrupt
            self.stop()
            raise

    @property
    def sha256(self) -> str:
        """In hex, of all bytes, once `finish` has returned."""
        return self._whole.sha256.hexdigest()

    @property
    def xxh3(self) -> Mapping[str, str]:
        """XXH3-128 in hex of each tensor's bytes, once `finish` has returned."""
        return self._tensors.xxh3

    @property
    def not_finite(self) -> Mapping[str, int]:
        """Tensor -> how many of its values are NaN or infinite, where any are; once `finish` has returned."""
        return self._tensors.not_finite

    def advance(self, count: int) -> None:
        """The writer has written `count` more bytes."""
        self._written += count
        for follower in self._followers:
            follower.news.put(self._written)

    def finish(self) -> None:
        """Wait until everything written has been digested; raises what went wrong meanwhile."""
        for follower in self._started:
            follower.join()
        for follower in self._started:
            if follower.failure is not None:
                raise follower.failure

    def stop(self) -> None:
        """Give up where it is."""
        for follower in self._followers:
            follower.give_up()
        for follower in self._started:
            follower.join()


class _Follower(threading.Thread, ABC):
    """news: how many bytes are written by now. Its put() holds no lock of Python's when an interrupt comes, which would
    then never be let go, as that of a Condition.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(name="digest", daemon=True)
        self._path = path
        self._written = 0
        self._given_up = False
        self.news: SimpleQueue[int] = SimpleQueue()
        self.failure: BaseException | None = None

    def give_up(self) -> None:
        """Nothing more will be written, or wanted."""
        self._given_up = True
        self.news.put(0)

    def run(self) -> None:
        try:
            with self._path.open("rb", buffering=0) as file:
                self._follow(file.fileno())
        except BaseException as problem:
            self.failure = problem

    @abstractmethod
    def _follow(self, fd: int) -> None:
        """Digest what is written, until all of it is or it is given up."""

    def _wait_for(self, position: int) -> bool:
        """Wait until `position` bytes are written; False where it is given up."""
        while self._written < position and not self._given_up:
            self._written = max(self._written, self.news.get())
        return not self._given_up

    def _blocks(self, fd: int, position: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
        """Bytes position..end-1 in blocks, each as soon as it is written; fewer where the writing is given up."""
        while position < end:
            block = buffer[: min(BLOCK, end - position)]
            if not self._wait_for(position + len(block)):
                return
            if not fill(fd, block, position):
                raise OSError(errno.EIO, "the written file is shorter than what was written", str(self._path))
            yield block
            position += len(block)


class _Whole(_Follower):
    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path)
        self._size = size
        self.sha256 = hashlib.sha256()

    def _follow(self, fd: int) -> None:
        for block in self._blocks(fd, 0, self._size, memoryview(bytearray(BLOCK))):
            self.sha256.update(block)


class _Tensors(_Follower):
    def __init__(self, path: Path, start: int, infos: Mapping[str, TensorInfo]) -> None:
        super().__init__(path)
        self._start = start
        self._infos = infos
        self.xxh3: dict[str, str] = {}
        self.not_finite: dict[str, int] = {}

    def _follow(self, fd: int) -> None:
        import xxhash

        buffer, position = memoryview(bytearray(BLOCK)), self._start
        for name, info in self._infos.items():
            fast, bad, end = xxhash.xxh3_128(), 0, position + info.nbytes
            for block in self._blocks(fd, position, end, buffer):
                fast.update(block)
                bad += count_not_finite(block, info.dtype)
            if self._given_up:
                return
            self.xxh3[name] = fast.hexdigest()
            if bad:
                self.not_finite[name] = bad
            position = end

"""Reads a file while it is written: SHA-256 of the whole, XXH3-128 of each tensor, values that are no numbers.
And later again the tensors.
"""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Mapping
from pathlib import Path

from converter.checkpoint.finite import count_not_finite
from converter.checkpoint.header import TensorInfo, read_header
from converter.checkpoint.jsonfile import unreadable
from converter.checkpoint.reader import preadinto
from converter.errors import InputError
from converter.findings import error

_BLOCK = 1 << 20  # bytes digested at once: small enough for a core's cache, a multiple of every element's size


class Digester(threading.Thread):
    """Follows the writer of `path`: a header of `header_size` bytes, then the tensors of `infos` side by side."""

    def __init__(self, path: Path, header_size: int, infos: Mapping[str, TensorInfo]) -> None:
        super().__init__(name="digest", daemon=True)
        self._path = path
        self._header_size = header_size
        self._infos = infos
        self._written = 0
        self._stopped = False
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self.sha256 = hashlib.sha256()
        self.xxh3: dict[str, str] = {}
        self.not_finite: dict[str, int] = {}
        self.start()

    def advance(self, count: int) -> None:
        """The writer has written `count` more bytes."""
        with self._changed:
            self._written += count
            self._changed.notify()

    def finish(self) -> None:
        """Wait until everything written has been digested; raises what went wrong meanwhile."""
        self.join()
        if self._failure:
            raise self._failure

    def stop(self) -> None:
        """Give up where it is."""
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

        buffer = memoryview(bytearray(_BLOCK))
        with self._path.open("rb", buffering=0) as file:
            position = self._span(file.fileno(), 0, self._header_size, buffer, None, "")
            for name, info in self._infos.items():
                fast = xxhash.xxh3_128()
                position = self._span(file.fileno(), position, info.nbytes, buffer, fast, name)
                if self._stopped:
                    return
                self.xxh3[name] = fast.hexdigest()

    def _span(self, fd: int, position: int, length: int, buffer: memoryview, fast: object, name: str) -> int:
        """Digest `length` bytes from `position`; the position after them."""
        import xxhash

        end = position + length
        while position < end:
            want = min(_BLOCK, end - position)
            if not self._wait_for(position + want):
                return position
            block = buffer[:want]
            got = 0
            while got < want:
                step = preadinto(fd, block[got:], position + got)
                if step == 0:
                    raise OSError(errno.EIO, "the written file is shorter than what was written", str(self._path))
                got += step
            self.sha256.update(block)
            if isinstance(fast, xxhash.xxh3_128):
                fast.update(block)
                bad = count_not_finite(block, self._infos[name].dtype)
                if bad:
                    self.not_finite[name] = self.not_finite.get(name, 0) + bad
            position += want
        return position

    def _wait_for(self, position: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._written >= position)
            return not self._stopped


def tensor_digests(path: Path) -> dict[str, str]:
    """XXH3-128 in hex of the bytes of each tensor of a safetensors file. Raises InputError as `read_header` does, and
    F109 where the file is cut short meanwhile.
    """
    import xxhash

    header, found = read_header(path), {}
    block = memoryview(bytearray(_BLOCK))
    try:
        with path.open("rb", buffering=0) as file:
            for name, info in header.tensors.items():
                fast, left = xxhash.xxh3_128(), info.nbytes
                file.seek(header.data_start + info.start)
                while left:
                    got = file.readinto(block[: min(_BLOCK, left)])
                    if not got:
                        raise InputError(
                            error("F109", f"{path.name} became shorter while it was read", where=str(path))
                        )
                    fast.update(block[:got])
                    left -= got
                found[name] = fast.hexdigest()
    except OSError as problem:
        raise unreadable(path, problem) from problem
    return found

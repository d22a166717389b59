"""Folders for temporary files that go with the process, also where it was killed: then the next one removes them."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from converter.checkpoint.leftovers import Held, lock, remove, remove_if_left, unlock
from converter.errors import OutputError
from converter.signals import unbroken

PREFIX = "eagle3-pickle-"
_TRIES = 100


class Scratch:
    """A folder that nobody else may enter (TMPDIR says where), removed with this object or when the process ends."""

    def __init__(self) -> None:
        """Raises OutputError where there can be none."""
        with unbroken(), writing_to_scratch():
            _clean()
            for _ in range(_TRIES):
                self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
                with suppress(Held):
                    held = lock(self.folder)
                    if self.folder.exists():
                        break
                    unlock(held)
                remove(self.folder)
            else:
                raise OSError(errno.EBUSY, "other runs keep removing what is written there")
            self._end = weakref.finalize(self, _end, self.folder, held, os.getpid())

    def close(self) -> None:
        with unbroken():
            self._end()


@contextmanager
def writing_to_scratch() -> Iterator[None]:
    """OSErrors inside are those of the folder for temporary files: raised as OutputError."""
    try:
        yield
    except OSError as problem:
        raise OutputError(
            f"cannot write a temporary copy to {tempfile.gettempdir()}: {problem.strerror or problem}; TMPDIR names "
            "another folder"
        ) from problem


def _end(folder: Path, held: int | None, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of it
        remove(folder)
        unlock(held)


def _clean() -> None:
    """What killed processes of the same user left."""
    if not hasattr(os, "getuid"):
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                remove_if_left(folder)

"""A file that is what it was or new and whole: written under a hidden name beside it, synced, then renamed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from converter.checkpoint.leftovers import WRITING, Held, hidden_name, leftovers, lock, remove_if_left, sync, unlock
from converter.errors import OutputError
from converter.signals import unbroken

_TRIES = 100


def write_whole(path: Path, data: str | Iterable[bytes | memoryview]) -> None:
    """Write text as UTF-8, or the pieces of `data`, to `path`; a link is followed, permissions stay. What is no file
    (a pipe, a terminal) is written to as it is. Raises OSError.
    """
    pieces = [data.encode()] if isinstance(data, str) else data
    place = Path(os.path.realpath(path))
    mode = _mode(path)
    if mode is not None and not stat.S_ISREG(mode):
        with path.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        return
    with unbroken(), replacing(place) as staged, staged.open("r+b") as file:
        for piece in pieces:
            file.write(piece)


@contextmanager
def replacing(place: Path, mode: int | None = None) -> Iterator[Path]:
    """An empty file beside `place`, no link, which takes its place at the end of the block, or goes. Raises OSError.

    mode  its permissions; None: those of the file that is there, or a new file's
    """
    before = _mode(place)
    if mode is None and before is not None:
        mode = stat.S_IMODE(before)
    begun: list[tuple[Path, int | None]] = []
    try:
        with unbroken():
            for left in leftovers(place, WRITING):
                remove_if_left(left)
            begun.append(_begin(place))
        [(staged, _)] = begun
        yield staged
        with unbroken():
            sync(staged)
            if mode is not None:
                staged.chmod(mode)
            staged.replace(place)
    finally:
        with unbroken():
            for staged, held in begun:
                with suppress(OSError):  # it has taken its place
                    staged.unlink()
                unlock(held)
    sync(place.parent)


def write_output(path: Path, text: str) -> None:
    """The same of a file that the user asked for. Raises OutputError."""
    try:
        write_whole(path, text)
    except OSError as problem:
        raise OutputError(f"cannot write {path}: {problem.strerror or problem}") from problem


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _begin(place: Path) -> tuple[Path, int | None]:
    """An empty file under a hidden name, and its lock."""
    for _ in range(_TRIES):
        staged = place.parent / hidden_name(place, WRITING)
        staged.touch(exist_ok=False)
        try:
            with suppress(Held):
                held = lock(staged)
                if staged.exists():
                    return staged, held
                unlock(held)
        except OSError:
            staged.unlink(missing_ok=True)
            raise
        # Another run's clean-up came between: take another name.
        staged.unlink(missing_ok=True)
    raise OSError(errno.EBUSY, "other runs keep removing what is written there", str(place))

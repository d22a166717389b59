"""A folder that appears whole or not at all.

Everything is written to a staging folder beside OUT, which takes OUT's place by one rename (an exchange of
the two where the system has it, so that an old OUT is never absent). The staging folder is locked while its
owner lives; the next run for the same OUT removes what a killed one left, and puts back an old OUT that was
moved aside but not replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path

from converter.checkpoint.leftovers import (
    OLD,
    STAGING,
    Held,
    hidden_name,
    leftovers,
    lock,
    remove,
    remove_if_left,
    sync,
    unlock,
)
from converter.errors import OutputError
from converter.signals import unbroken

_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2  # linux/fs.h
_AT_FDCWD = -100
_TRIES = 100


class Staging:
    """The staging folder of OUT: write into `folder`, then `commit()`; leaving the `with` block discards it."""

    def __init__(self, out: Path) -> None:
        self.out = normal(out)
        self.committed = False
        self._made: list[Path] = []
        self._lock: int | None = None

    def __enter__(self) -> Staging:
        try:
            with unbroken():
                self._make()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _make(self) -> None:
        recover(self.out)
        self._made = [p for p in self.out.parents if not p.exists()]
        for again in range(_TRIES, -1, -1):
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.folder = self.out.parent / hidden_name(self.out, STAGING)
            try:
                self.folder.mkdir()
            except FileNotFoundError:  # another run that failed took the parents that it had made with it
                if not again:
                    raise
                continue
            with contextlib.suppress(Held):
                self._lock = lock(self.folder)
                if self.folder.exists():
                    return
                unlock(self._lock)
                self._lock = None
            # Another run's clean-up came between mkdir and lock: take another name.
        raise OSError(errno.EBUSY, "other runs keep removing what is written there", str(self.folder))

    def _leave(self) -> None:
        with unbroken():
            if not self.committed:
                if hasattr(self, "folder"):
                    remove(self.folder)
                for parent in self._made:
                    with contextlib.suppress(OSError):  # somebody else uses it meanwhile
                        parent.rmdir()
            unlock(self._lock)
            self._lock = None

    def commit(self, replace: bool) -> None:
        """Sync the folder and put it in OUT's place; `replace` says that an old OUT may be there.

        Raises OutputError where OUT has come into being meanwhile and may not be replaced, and OSError; `committed`
        says whether OUT is the new one.
        """
        for file in self.folder.iterdir():
            sync(file)
        sync(self.folder)
        with unbroken():
            self._put_in_place(replace)
            self.committed = True
        try:
            for parent in (self.out.parent, *(p.parent for p in self._made)):
                sync(parent)
        except OSError as problem:
            raise OutputError(
                f"{self.out} is in place, but {parent} could not be synced ({problem.strerror}): a power cut could "
                "undo it. Look after the disk, then give the command again with --force"
            ) from problem

    def _put_in_place(self, replace: bool) -> None:
        if replace and os.path.lexists(self.out):
            self._replace()
            return
        try:
            _rename(self.folder, self.out, _RENAME_NOREPLACE)
        except OSError as problem:
            if problem.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise OutputError(f"{self.out} has appeared meanwhile; nothing was written there") from problem
            raise

    def _replace(self) -> None:
        try:
            _rename(self.folder, self.out, _RENAME_EXCHANGE)
        except OSError as problem:
            if problem.errno not in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
                raise
        else:
            remove(self.folder)
            return
        aside = self.out.parent / hidden_name(self.out, OLD)
        try:
            self.out.rename(aside)
            self.folder.rename(self.out)
        except BaseException:  # an interrupt too
            if os.path.lexists(aside) and not os.path.lexists(self.out):
                try:
                    aside.rename(self.out)
                except OSError as problem:
                    raise OutputError(
                        f"cannot write {self.out}: {problem.strerror}. As it was before it lies in {aside}; the next "
                        "run puts it back"
                    ) from problem
            raise
        remove(aside)


def normal(out: Path) -> Path:
    """OUT as an absolute path without `..`; not resolved, because OUT may be a link, which is then replaced itself."""
    return Path(os.path.normpath(Path.cwd() / out))


def recover(out: Path) -> None:
    """Clean up what killed runs left beside `out`; an old OUT that lost its place gets it back."""
    if not out.parent.is_dir():
        return
    for aside in leftovers(out, OLD):
        if os.path.lexists(out):
            remove(aside)
        else:
            with contextlib.suppress(OSError):  # its run is alive and was faster
                aside.rename(out)
    for folder in leftovers(out, STAGING):
        if folder.is_symlink() or not folder.is_dir():  # an old OUT that was exchanged but not yet removed
            remove(folder)
        else:
            remove_if_left(folder)


def _rename(source: Path, target: Path, flags: int) -> None:
    """renameat2 where the C library has it; else a plain rename (never for an exchange).

    A plain rename of a folder replaces nothing but an empty folder, so it may stand in for NOREPLACE.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if renameat2 is not None:
        code = renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags)
        if code == 0:
            return
        number = ctypes.get_errno()
        unsupported = number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
        empty = flags == _RENAME_NOREPLACE and number == errno.EEXIST and _is_empty(target)
        if not (flags == _RENAME_NOREPLACE and (unsupported or empty)):
            raise OSError(number, os.strerror(number), str(target))
    elif flags == _RENAME_EXCHANGE:
        raise OSError(errno.ENOSYS, "no exchange rename here", str(target))
    source.rename(target)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())

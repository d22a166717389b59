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
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from converter.errors import OutputError

_STAGING = ".eagle3-staging-"
_OLD = ".eagle3-old-"
_TOKEN = 6  # random bytes of a hidden name
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2  # linux/fs.h
_AT_FDCWD = -100


class Staging:
    """The staging folder of OUT: write into `folder`, then `commit()`; leaving the `with` block discards it."""

    def __init__(self, out: Path) -> None:
        self.out = normal(out)
        recover(self.out)
        self._made = [p for p in self.out.parents if not p.exists()]
        self.out.parent.mkdir(parents=True, exist_ok=True)
        while True:
            self.folder = self.out.parent / _hidden_name(self.out, _STAGING)
            self.folder.mkdir()
            with contextlib.suppress(_Held):
                self._lock = _lock(self.folder)
                if self.folder.exists():
                    break
                _unlock(self._lock)
            # Another run's clean-up came between mkdir and lock: take another name.
        self._committed = False

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._committed:
            _remove(self.folder)
            for parent in self._made:
                with contextlib.suppress(OSError):  # somebody else uses it meanwhile
                    parent.rmdir()
        _unlock(self._lock)

    def commit(self, replace: bool) -> None:
        """Sync the folder and put it in OUT's place; `replace` says that an old OUT may be there.

        Raises OutputError where OUT has come into being meanwhile and may not be replaced.
        """
        for file in self.folder.iterdir():
            _sync(file)
        _sync(self.folder)
        if replace and os.path.lexists(self.out):
            self._replace()
        else:
            try:
                _rename(self.folder, self.out, _RENAME_NOREPLACE)
            except OSError as problem:
                if problem.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise OutputError(f"{self.out} has appeared meanwhile; nothing was written there") from problem
                raise
        self._committed = True
        _sync(self.out.parent)

    def _replace(self) -> None:
        try:
            _rename(self.folder, self.out, _RENAME_EXCHANGE)
        except OSError as problem:
            if problem.errno not in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
                raise
        else:
            _remove(self.folder)
            return
        aside = self.out.parent / _hidden_name(self.out, _OLD)
        try:
            self.out.rename(aside)
            self.folder.rename(self.out)
        except BaseException:  # an interrupt too
            if os.path.lexists(aside) and not os.path.lexists(self.out):
                aside.rename(self.out)
            raise
        _remove(aside)


def normal(out: Path) -> Path:
    """OUT as an absolute path without `..`; not resolved, because OUT may be a link, which is then replaced itself."""
    return Path(os.path.normpath(Path.cwd() / out))


def recover(out: Path) -> None:
    """Clean up what killed runs left beside `out`; an old OUT that lost its place gets it back."""
    if not out.parent.is_dir():
        return
    for aside in _leftovers(out, _OLD):
        if os.path.lexists(out):
            _remove(aside)
        else:
            aside.rename(out)
    for folder in _leftovers(out, _STAGING):
        if folder.is_symlink() or not folder.is_dir():  # an old OUT that was exchanged but not yet removed
            _remove(folder)
            continue
        with contextlib.suppress(_Held, OSError):  # its owner is alive, or another user
            lock = _lock(folder)
            if lock is not None:
                _remove(folder)
                _unlock(lock)


def _leftovers(out: Path, kind: str) -> Iterator[Path]:
    prefix = f".{_short(out)}{kind}"
    yield from sorted(
        p for p in out.parent.iterdir() if p.name.startswith(prefix) and len(p.name) == len(prefix) + 2 * _TOKEN
    )


def _hidden_name(out: Path, kind: str) -> str:
    return f".{_short(out)}{kind}{secrets.token_hex(_TOKEN)}"


def _short(out: Path) -> str:
    """OUT's name; one that is too long for a hidden name (255 bytes) is cut and told from others by a digest."""
    name = os.fsencode(out.name)
    if len(name) <= 200:
        return out.name
    return name[:180].decode(errors="ignore") + hashlib.sha256(name).hexdigest()[:16]


def _remove(path: Path) -> None:
    """Remove a folder with what it holds, or a link or file itself; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


class _Held(Exception):
    """The folder is another run's, or already gone."""


def _lock(folder: Path) -> int | None:
    """An exclusive lock on `folder`, released by the kernel when its holder dies; raises _Held.

    None on Windows and on file systems that have no folder locks (NFS): there, staging folders of other runs
    are left alone.
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fd = os.open(folder, os.O_RDONLY)
    except FileNotFoundError as problem:
        raise _Held from problem
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(fd)
        if isinstance(problem, (BlockingIOError, PermissionError)):
            raise _Held from problem
        return None
    return fd


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def _sync(path: Path) -> None:
    if os.name == "nt":
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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

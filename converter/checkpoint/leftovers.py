"""Hidden names beside what is being written, held by locks that die with their owner: what a killed run leaves is
known as such, and the next run removes it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

STAGING = ".eagle3-staging-"  # a folder that is being written
OLD = ".eagle3-old-"  # a folder that was moved aside
WRITING = ".eagle3-writing-"  # a file that is being written
_TOKEN = 6  # random bytes of a hidden name
_KINDS = "|".join(map(re.escape, (STAGING, OLD, WRITING)))
_HIDDEN = re.compile(rf"\..*({_KINDS})[0-9a-f]{{{2 * _TOKEN}}}", re.S)


class Held(Exception):
    """The folder or file is another run's, or already gone."""


def hidden_name(path: Path, kind: str) -> str:
    """A new name beside `path`."""
    return f".{_short(path)}{kind}{secrets.token_hex(_TOKEN)}"


def is_hidden(name: str) -> bool:
    """Whether it is one of these names, beside whatever file."""
    return _HIDDEN.fullmatch(name) is not None


def leftovers(path: Path, kind: str) -> Iterator[Path]:
    """What lies beside `path` under such names, another run's that is alive among them."""
    prefix = f".{_short(path)}{kind}"
    yield from sorted(
        p for p in path.parent.iterdir() if p.name.startswith(prefix) and len(p.name) == len(prefix) + 2 * _TOKEN
    )


def _short(path: Path) -> str:
    """A name that is too long for a hidden one (255 bytes) is cut and told from others by a digest."""
    name = os.fsencode(path.name)
    if len(name) <= 200:
        return path.name
    return name[:180].decode(errors="ignore") + hashlib.sha256(name).hexdigest()[:16]


def remove(path: Path) -> None:
    """Remove a folder with what it holds, or a link or file itself; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def remove_if_left(path: Path) -> None:
    """Remove a folder or file whose owner is dead."""
    with suppress(Held, OSError):
        held = lock(path)
        if held is not None:
            remove(path)
            unlock(held)


def lock(path: Path) -> int | None:
    """An exclusive lock on a folder or file, released by the kernel when its holder dies. Raises Held, and OSError
    where it cannot be opened.

    None on Windows and on file systems that have no such locks (NFS): there, what other runs left stays.
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError as problem:
        raise Held from problem
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(fd)
        if isinstance(problem, (BlockingIOError, PermissionError)):
            raise Held from problem
        return None
    return fd


def unlock(held: int | None) -> None:
    """Let go of what `lock` returned."""
    if held is not None:
        os.close(held)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, outlive a power cut."""
    if os.name == "nt":
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

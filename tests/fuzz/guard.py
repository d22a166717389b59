"""What no file of a stranger may bring about, told by Python's audit events (sys.addaudithook)."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from converter.checkpoint.scratch import PREFIX

# Other ends of a wire, other processes, and pickle's way to any function there is.
_NEVER = (
    "socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn",
    "pickle.find_class", "os.kill", "os.chmod", "os.chown", "os.setxattr",
)  # fmt: skip
# Which arguments are a path that is changed, and the descriptor of the folder that it is relative to.
_CHANGES = {
    "os.remove": ((0, 1),), "os.rmdir": ((0, 1),), "os.mkdir": ((0, 2),), "os.truncate": ((0, None),),
    "os.utime": ((0, 3),), "os.rename": ((0, 2), (1, 3)), "os.link": ((1, 3),), "os.symlink": ((1, 2),),
}  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CODE = (".py", ".pyc", ".so", ".pth")


class Breach(BaseException):
    """No Exception: code that catches those must not hide it."""


_folders: tuple[str, ...] | None = None  # None: nobody watches
_breaches: list[str] = []
_hooked = False


@contextmanager
def watched(*folders: Path) -> Iterator[None]:
    """While this runs, changes are allowed inside `folders` only, and code in them is not run. Raises Breach."""
    global _folders, _hooked
    if not _hooked:  # a hook stays for as long as the process lives
        sys.addaudithook(_hook)
        _hooked = True
    _temporary()  # an event of tempfile's own first look would wait for itself
    _breaches.clear()
    _folders = tuple(map(_real, folders))
    try:
        yield
    finally:
        _folders = None
    if _breaches:  # one that was raised and caught on the way
        raise Breach(_breaches[0])


@cache
def _real(folder: Path) -> str:
    return f"{folder.resolve()}{os.sep}"


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _folders is None:
        return
    if event == "open":
        path, _, flags = args
        if isinstance(flags, int) and flags & _WRITES:
            _inside(event, path)
        elif isinstance(path, (str, bytes)) and os.fsdecode(path).endswith(_CODE) and _is_inside(path):
            _breach(f"opened code: {path!r}")
    elif event == "os.mkdir" and os.path.isdir(args[0]):  # noqa: PTH112 - whatever is given
        pass
    elif event in _CHANGES:
        for at, base in _CHANGES[event]:
            relative = base is not None and isinstance(args[base], int) and args[base] >= 0
            _inside(event, f"/proc/self/fd/{args[base]}/{os.fsdecode(args[at])}" if relative else args[at])
    elif event in ("exec", "compile"):
        file = getattr(args[0], "co_filename", None) if event == "exec" else args[1]
        if isinstance(file, (str, bytes)) and _is_inside(file):
            _breach(f"{event} of {file!r}")
    elif event in _NEVER:
        _breach(f"{event} {args!r:.200}")


def _inside(event: str, path: Any) -> None:
    if isinstance(path, (str, bytes)) and os.fsdecode(path) != os.devnull and not (_is_inside(path) or _scratch(path)):
        _breach(f"{event} of {path!r}")


def _is_inside(path: str | bytes) -> bool:
    real = os.path.realpath(os.fsdecode(path))
    return any(real.startswith(folder) for folder in _folders or ())


def _scratch(path: str | bytes) -> bool:
    """Whether it is a temporary copy of a pickle, which is promised (SECURITY.md)."""
    return os.path.realpath(os.fsdecode(path)).startswith(f"{_temporary()}{os.sep}{PREFIX}")


@cache
def _temporary() -> str:
    return os.path.realpath(tempfile.gettempdir())


def _breach(what: str) -> None:
    _breaches.append(what)
    raise Breach(what)

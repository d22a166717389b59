"""What no file of a stranger may bring about, told by Python's audit events (sys.addaudithook)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Other ends of a wire, other processes, and pickle's way to any function there is.
_NEVER = (
    "socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn",
    "pickle.find_class", "os.kill", "os.chmod", "os.chown", "os.setxattr", "os.putenv",
)  # fmt: skip
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.utime")
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
    _breaches.clear()
    _folders = tuple(f"{folder.resolve()}{os.sep}" for folder in folders)
    try:
        yield
    finally:
        _folders = None
    if _breaches:  # one that was raised and caught on the way
        raise Breach(_breaches[0])


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _folders is None:
        return
    if event == "open":
        path, _, flags = args
        if isinstance(flags, int) and flags & _WRITES:
            _inside(event, path)
        elif isinstance(path, (str, bytes)) and os.fsdecode(path).endswith(_CODE) and _is_inside(path):
            _breach(f"opened code: {path!r}")
    elif event == "os.mkdir" and os.path.isdir(args[0]):  # noqa: PTH112 - asked for whether it is there or not
        pass
    elif event in _CHANGES:
        for path in args[: 2 if event == "os.rename" else 1]:
            _inside(event, path)
    elif event in ("exec", "compile"):
        file = getattr(args[0], "co_filename", None) if event == "exec" else args[1]
        if isinstance(file, (str, bytes)) and _is_inside(file):
            _breach(f"{event} of {file!r}")
    elif event in _NEVER:
        _breach(f"{event} {args!r:.200}")


def _inside(event: str, path: Any) -> None:
    if isinstance(path, (str, bytes)) and os.fsdecode(path) != os.devnull and not _is_inside(path):
        _breach(f"{event} of {path!r}")


def _is_inside(path: str | bytes) -> bool:
    real = os.path.realpath(os.fsdecode(path))
    return any(real.startswith(folder) for folder in _folders or ())


def _breach(what: str) -> None:
    _breaches.append(what)
    raise Breach(what)

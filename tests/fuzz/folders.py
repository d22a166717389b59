"""Folders in memory whose one hostile file is written anew for each input."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path


def made(name: str) -> Path:
    """An empty folder that goes with the process, on tmpfs where there is one."""
    shm = Path("/dev/shm")
    place = shm if shm.is_dir() and os.access(shm, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix=f"eagle3-fuzz-{name}-", dir=place)).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class Hostile:
    """A file that is kept open and written over: faster than a new one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR)

    def write(self, data: bytes) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)

"""Where paths lead."""

from __future__ import annotations

import os
from pathlib import Path


def real(path: Path) -> Path:
    """`path` without links; links in a circle stay, where Path.resolve raises RuntimeError (before Python 3.13)."""
    return Path(os.path.realpath(path))


def is_here(path: Path, *, folder: bool = False) -> bool:
    """Whether a stranger's name is that of a file, or of a folder, here; Path raises where no file could have it."""
    try:
        return path.is_dir() if folder else path.is_file()
    except OSError:  # too long
        return False

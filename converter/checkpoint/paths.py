"""Where paths lead."""

from __future__ import annotations

import os
from pathlib import Path


def real(path: Path) -> Path:
    """`path` without links; links in a circle stay, where Path.resolve raises RuntimeError (before Python 3.13)."""
    return Path(os.path.realpath(path))

"""A text file that appears whole or stays as it was."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from converter.errors import OutputError


def write_whole(file: Path, text: str) -> None:
    """Write `text`, its line ends as they are, in place of `file`; a link stays one. Raises OutputError."""
    place = file.resolve()
    staged = place.parent / f".{place.name}.{os.getpid()}"
    try:
        with staged.open("x", encoding="utf-8", newline="") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        if place.exists():
            shutil.copymode(place, staged)
        staged.replace(place)
    except OSError as problem:
        raise OutputError(f"cannot write {file}: {problem.strerror}") from problem
    finally:
        staged.unlink(missing_ok=True)

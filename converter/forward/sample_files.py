"""The files of a sample, told apart by what they hold."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from converter.checkpoint.jsonfile import unreadable
from converter.checkpoint.reader import open_checkpoint
from converter.forward.sample_forms import Opened, natural
from converter.forward.sample_pickles import open_pickle
from converter.forward.sample_tensors import open_tensors

_ENDINGS = (".safetensors", ".pt", ".pth", ".ckpt", ".ckpt.gz", ".bin")


def find_files(path: Path) -> list[Path]:
    """The files that a path may mean: itself, or all below it in natural order.

    speculators 0.9.0 keeps its files in `hidden_states` of its data folder (speculators/cli/generate_offline_data.py),
    SpecForge in folders such as `rows_0-5000` (scripts/prepare_hidden_states.py of its repository).
    """
    if path.is_file():
        return [path]
    inner = path / "hidden_states"
    found = []
    for folder, folders, names in os.walk(inner if inner.is_dir() else path):
        folders[:] = [f for f in folders if not f.startswith(".")]
        found += [Path(folder) / n for n in names if n.endswith(_ENDINGS) and not n.startswith(".")]
    return sorted(found, key=lambda p: natural(str(p)))


def open_file(path: Path, width: int) -> Opened | None:
    """Open one file; `width` is the target's hidden size. None where it holds none of the forms.

    Raises InputError: what the readers of checkpoints raise, F120 for a file of a form that is not in order, F121
    where states are not `width` wide.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe, to which nobody may ever write, or a device without an end
            raise OSError(errno.EINVAL, "it is not a file")
        with path.open("rb") as file:
            first = file.read(9)
    except OSError as problem:
        raise unreadable(path, problem) from problem
    zipped, packed = first[:2] == b"\x1f\x8b", first[:2] == b"PK" or first[:1] == b"\x80"
    # The length of a safetensors header may begin with the same bytes, but then a JSON object follows it.
    if (zipped or packed) and first[8:] != b"{":
        return open_pickle(path, width, gzipped=zipped)
    return open_tensors(path, open_checkpoint(path))

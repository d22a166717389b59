"""Vocabulary maps that lie beside a checkpoint, held against the one in it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING

from converter.checkpoint.pickled import open_pickles
from converter.drafter.spec import DrafterSpec
from converter.drafter.vocab import VocabularyMap
from converter.errors import InputError
from converter.findings import Finding, warning

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# As trainers name them: speculators' data folder (0.9.0 train/data.py), SpecForge's cache (0.2.0
# data/preprocessing.py:738-768), whose file holds d2t and t2d.
NAMES = ("d2t.npy", "t2d.npy", "vocab_mapping.pt")


def check_stray_maps(folder: Path, vocab: VocabularyMap, spec: DrafterSpec) -> list[Finding]:
    """V213 for each file that is another map than the checkpoint's; one that cannot be read says nothing."""
    findings = []
    for file in (folder / name for name in NAMES):
        arrays = _arrays(file) if file.is_file() else {}
        differs = next(filter(None, (_difference(n, a, vocab, spec) for n, a in arrays.items())), "")
        if differs:
            findings.append(_another(file, differs))
    return findings


def _another(file: Path, differs: str) -> Finding:
    return warning(
        "V213",
        f"{file.name} beside the checkpoint is another vocabulary map than the one in it, which is used",
        where=str(file),
        found=differs,
        expected="the same map, or no file",
        why="one of the two is of another run; a loader that takes the file names other tokens than were trained",
        fix=(f"take {file.name} away, if the map of the checkpoint is the right one",),
    )


def _arrays(file: Path) -> Mapping[str, NDArray[np.generic]]:
    """d2t and t2d of a file; none where it is damaged, or a pickle and torch is not installed."""
    import numpy as np

    if file.suffix == ".npy":
        try:
            with file.open("rb") as opened:  # np.load would take a zip archive or a pickle of this name as well
                return {file.stem: np.lib.format.read_array(opened, allow_pickle=False)}
        except (OSError, EOFError, MemoryError, RecursionError):
            return {}
        except (ValueError, TypeError, ArithmeticError, SyntaxError, TokenError):
            return {}  # numpy 2.4.6 lets through what its reading of the header as Python raises
    if importlib.util.find_spec("torch") is None:
        return {}
    try:
        checkpoint = open_pickles([file])
        return {name: checkpoint.read(name) for name in ("d2t", "t2d") if name in checkpoint.tensors}
    except InputError:
        return {}


def _difference(name: str, array: NDArray[np.generic], vocab: VocabularyMap, spec: DrafterSpec) -> str:
    """What in `array` is not the map; "" where it is, d2t read as offsets or as ids."""
    import numpy as np

    ids = vocab.ids
    size = spec.vocab_size if name == "t2d" else len(ids)
    if array.shape != (size,) or array.dtype.kind not in "biu":
        return f"{name} is {array.dtype} {list(array.shape)}, where {size:,} entries are expected"
    if name == "t2d":
        marked = np.zeros(size, dtype=bool)
        marked[ids] = True
        wrong = int(np.count_nonzero(marked != array.astype(bool)))
        return f"{wrong:,} of {size:,} marks of t2d differ" if wrong else ""
    stored = array.astype(np.int64)
    wrong = min(int(np.count_nonzero(read != ids)) for read in (stored, stored + np.arange(size)))
    return f"{wrong:,} of {size:,} entries of d2t differ" if wrong else ""

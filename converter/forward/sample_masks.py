"""The loss mask of speculators' hidden states, which lies in the dataset beside them.

speculators 0.9.0: hs_N.safetensors belongs to row N of the dataset, whose columns are input_ids, loss_mask and seq_len
(cli/generate_offline_data.py, data_generation/preprocessing.py, train/data.py). datasets 4.0.0 saves it as Arrow
streams that state.json names. They are read with pyarrow where that is installed, and it is no dependency.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from converter.checkpoint.jsonfile import read_object
from converter.errors import InputError
from converter.findings import Finding, error, note
from converter.forward.sample_forms import Stored

_STATE = "state.json"


def _dataset_beside(file: Path) -> Path | None:
    """The folder that datasets' save_to_disk wrote: that of the file, or the one above."""
    return next((f for f in (file.parent, file.parent.parent) if (f / _STATE).is_file()), None)


def can_read() -> bool:
    """Whether pyarrow is installed."""
    return importlib.util.find_spec("pyarrow") is not None


class Masks:
    """The rows of a dataset folder. Raises InputError F101 or F110 where it cannot be read."""

    def __init__(self, folder: Path) -> None:
        arrow, stream = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.ipc")
        files = read_object(folder / _STATE).get("_data_files")
        names = [f.get("filename") for f in files if isinstance(f, dict)] if isinstance(files, list) else []
        self._tables: list[Any] = []
        for name in names:
            path = folder / Path(str(name)).name
            try:
                table = stream.open_stream(arrow.memory_map(str(path))).read_all()
                self._tables.append(table.select(["input_ids", "loss_mask"]))
            except (OSError, ValueError, KeyError) as problem:  # pyarrow's own errors are ValueErrors and KeyErrors
                raise InputError(
                    error(
                        "F101",
                        f"{path.name} of the dataset beside the hidden states cannot be read",
                        where=str(path),
                        found=str(problem)[:200],
                        expected="an Arrow stream with the columns input_ids and loss_mask",
                        fix=("name the folder hidden_states moved away from its dataset to go on without a mask",),
                    )
                ) from problem

    def of(self, file: Path, tokens: Tensor) -> Tensor | None:
        """[T] bool: the mask of hs_N.safetensors; None where row N is not there or has other tokens [T]."""
        number = re.search(r"([0-9]{1,9})$", file.stem)
        index = int(number[1]) if number else -1
        for table in self._tables:
            if 0 <= index < len(table):
                ids, mask = (table.column(c)[index].as_py() for c in ("input_ids", "loss_mask"))
                same = isinstance(ids, list) and isinstance(mask, list) and len(mask) == len(ids) == len(tokens)
                return torch.tensor(mask).bool() if same and ids == tokens.tolist() else None
            index -= len(table)
        return None


class MaskOf:
    """Loss masks: of the file, else of the dataset beside it, else every token but the first."""

    def __init__(self) -> None:
        self._datasets: dict[Path, Masks] = {}
        self._without = 0
        self._why = ""

    def of(self, stored: Stored) -> Tensor:
        """[T] bool: which tokens of a sequence count. Raises InputError as Masks does."""
        if stored.mask is not None:
            return stored.mask
        folder = _dataset_beside(stored.file)
        if folder is None:
            self._why = "no dataset (state.json with *.arrow) in the folder of the states or the one above"
        elif not can_read():
            self._why = f"reading it from the dataset {folder} needs pyarrow:  pip install pyarrow"
        else:
            if folder not in self._datasets:
                self._datasets[folder] = Masks(folder)
            found = self._datasets[folder].of(stored.file, stored.tokens)
            if found is not None:
                return found
            self._why = f"the dataset {folder} has no row of that number with these tokens"
        self._without += 1
        counts = torch.ones(len(stored.tokens), dtype=torch.bool)
        counts[:1] = False
        return counts

    def notes(self, path: Path, sequences: int) -> Iterator[Finding]:
        """F126 where sequences were without a mask, of as many as were taken."""
        if self._without:
            yield note(
                "F126",
                f"{self._without:,} of {sequences:,} sequences have no loss mask, so all their tokens count",
                where=str(path),
                found=self._why,
                why="prompts count as well then; the trainer's own accuracy is over what the target wrote",
                fix=(
                    "keep state.json and *.arrow of the trainer in the folder above hidden_states, and install pyarrow",
                ),
            )

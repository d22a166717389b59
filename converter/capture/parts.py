"""FILE.part: the finished sequences of a sample that is being made, and the record of what was asked for.

A file for each sequence, so that a run that was stopped goes on where it was; at the end they are merged as a stream.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter.checkpoint.header import TensorInfo, build_header
from converter.checkpoint.jsonfile import dumped, in_text, read_object
from converter.checkpoint.leftovers import is_hidden, sync
from converter.checkpoint.reader import Checkpoint
from converter.checkpoint.whole import write_whole
from converter.checkpoint.writer import OutputTensor, Progress, write_safetensors
from converter.errors import InputError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_RECORD = "request.json"
_MERGED = "merged.json"  # which file on disk the sequences became
_SCHEMA = "eagle3-convert/sample-part/1"
# Widest first, so that every tensor of the merged file starts on a multiple of its own width.
TENSORS = ("input_ids", "target_next", "hidden_states", "loss_mask")


@dataclass(frozen=True)
class Part:
    """A finished sequence: its positions that count, those of them that hold the target's choice, and `replaced`."""

    checkpoint: Checkpoint
    counted: int
    greedy: int
    replaced: int


class Parts:
    """The folder FILE.part, held by one run; leaving the `with` block keeps what is finished.

    done   the finished sequences, by their places in the request
    """

    def __init__(self, out: Path, record: Mapping[str, Any]) -> None:
        """Raises UsageError where the folder is of another request, not ours, or in use."""
        self.folder = part_folder(out)
        self._record = in_text({"schema": _SCHEMA, **record})
        self._check()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        file = self.folder / _RECORD
        if not file.exists():
            write_whole(file, dumped(self._record))
        self.done: dict[int, Part] = {}
        for path in sorted(self.folder.iterdir()):
            if path.suffix == ".tmp" or is_hidden(path.name):
                path.unlink()
            elif path.suffix == ".safetensors":
                with suppress(InputError, ValueError, KeyError):  # damaged: it is made again
                    self.done[int(path.stem)] = _read_part(path)

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def _check(self) -> None:
        if not os.path.lexists(self.folder):
            return
        file = self.folder / _RECORD
        if not file.is_file() and self.folder.is_dir() and all(is_hidden(p.name) for p in self.folder.iterdir()):
            return  # stopped before the record was there
        there = read_object(file) if file.is_file() else {}
        if there.get("schema") != _SCHEMA:
            raise UsageError(f"{self.folder} is not of this tool; move it away, or give another -o")
        names = [name for name, value in self._record.items() if there.get(name) != value]
        if names:
            some = "; ".join(f"{n}: {_short(there.get(n))} there, {_short(self._record[n])} asked for" for n in names)
            raise UsageError(
                f"{self.folder} holds sequences of another request ({some}). Give that request again to finish it, "
                f"another -o, or remove the folder"
            )

    def add(
        self, index: int, tensors: Mapping[str, tuple[str, NDArray[np.generic]]], numbers: Mapping[str, int]
    ) -> None:
        """Keep a sequence.

        tensors   those of TENSORS, each with its dtype as safetensors names it
        numbers   counted, greedy and replaced, as in Part
        """
        infos, cursor = {}, 0
        for name in TENSORS:
            dtype, values = tensors[name]
            infos[name] = TensorInfo(dtype, values.shape, cursor, cursor + values.nbytes)
            cursor += values.nbytes
        header = build_header(infos, {name: str(value) for name, value in numbers.items()})
        path = self.folder / f"{index:06d}.safetensors"
        write_whole(path, [header, *(_bytes(tensors[name][1]) for name in TENSORS)])
        self.done[index] = _read_part(path)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors that are finished."""
        return sum(part.checkpoint.nbytes for part in self.done.values())

    def merge(self, out: Path, metadata: Mapping[str, str], progress: Progress) -> int:
        """Put the sequences together as `out`, in order, and remove the folder. Returns the file's size."""
        order = sorted(self.done)
        tensors = [_output(self.done[k], n, name) for name in TENSORS for n, k in enumerate(order)]
        staged = self.folder / "merged.tmp"
        staged.unlink(missing_ok=True)
        written = write_safetensors(staged, tensors, metadata, digest=False, progress=progress)
        stat = staged.stat()
        write_whole(self.folder / _MERGED, json.dumps([stat.st_dev, stat.st_ino]))
        staged.replace(out)
        sync(out.parent)
        _remove(self.folder)
        return written.size


def remove_finished(out: Path) -> None:
    """Remove FILE.part where `out` is what was made of it: a run that was killed just then left it."""
    merged = part_folder(out) / _MERGED
    with suppress(OSError, ValueError):
        stat = out.stat()
        if json.loads(merged.read_text(encoding="utf-8")) == [stat.st_dev, stat.st_ino]:
            _remove(merged.parent)
    if out.is_file():
        with suppress(OSError):  # only where nothing more is left of it
            merged.parent.rmdir()


def _remove(folder: Path) -> None:
    """Last what tells that the rest is no longer needed: a run that is killed here leaves it to the next."""
    with suppress(OSError):
        for file in folder.iterdir():
            if file.name != _MERGED:
                file.unlink()
        (folder / _MERGED).unlink()
        folder.rmdir()


def part_folder(out: Path) -> Path:
    """FILE.part of FILE."""
    return out.with_name(out.name + ".part")


def _output(part: Part, number: int, name: str) -> OutputTensor:
    stored = part.checkpoint.tensors[name]
    return OutputTensor(f"s{number}.{name}", stored.info.dtype, stored.info.shape, stored)


def _read_part(path: Path) -> Part:
    """Raises InputError, KeyError or ValueError where the file is no whole part."""
    checkpoint = Checkpoint([path], sharded=False)
    numbers = checkpoint.metadata[path.name]
    for name in TENSORS:
        checkpoint.tensors[name]
    return Part(checkpoint, int(numbers["counted"]), int(numbers["greedy"]), int(numbers["replaced"]))


def _bytes(values: NDArray[np.generic]) -> memoryview:
    import numpy as np

    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _lock(folder: Path) -> int | None:
    """Held until closed or its owner dies; None where the system has no folder locks. Raises UsageError."""
    try:
        import fcntl
    except ImportError:
        return None
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as problem:
        os.close(fd)
        raise UsageError(f"another run is writing to {folder}; wait for it, or give another -o") from problem
    except OSError:
        os.close(fd)
        return None
    return fd


def _short(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."

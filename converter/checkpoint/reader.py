"""A checkpoint on disk: one safetensors file, or shards with their index. Tensors are read only when asked for."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

from converter.checkpoint.header import TensorInfo, read_header
from converter.checkpoint.jsonfile import read_object, unreadable
from converter.checkpoint.paths import is_here
from converter.errors import InputError
from converter.findings import error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

BLOCK = 1 << 20  # bytes looked at together: small enough for a core's cache, a multiple of every element's size
_PART = 2 << 20  # bytes of rows that `parts` reads at once: what is made of them is still in a core's cache

# How numpy holds each dtype; 8- and 16-bit floats that numpy lacks are held as their bits.
NUMPY_DTYPES: Mapping[str, str] = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4",
    "I64": "<i8", "U64": "<u8", "F64": "<f8", "F32": "<f4", "F16": "<f2", "C64": "<c8", "BF16": "<u2",
    "F8_E5M2": "u1", "F8_E4M3": "u1", "F8_E8M0": "u1", "F8_E4M3FNUZ": "u1", "F8_E5M2FNUZ": "u1",
}  # fmt: skip


@dataclass(frozen=True)
class Stamp:
    """What tells that a file was changed or replaced while it was read."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """Raises InputError F100 where `path` cannot be looked at."""
        try:
            stat = path.stat()
        except OSError as problem:
            raise unreadable(path, problem) from problem
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: `offset` counts bytes from the start of the file.

    whole, first   where it is a run of another tensor's rows: that tensor's name, and the first of them
    """

    name: str
    file: Path
    offset: int
    info: TensorInfo
    whole: str = ""
    first: int = 0

    def rows(self, first: int, count: int) -> StoredTensor:
        """Rows first..first+count-1 as a tensor of their own, `name[first:end]`: in a file they lie together."""
        size = self.info.nbytes // self.info.shape[0]
        start = self.info.start + first * size
        info = TensorInfo(self.info.dtype, (count, *self.info.shape[1:]), start, start + count * size)
        name = run_name(self.name, first, count)
        return StoredTensor(name, self.file, self.offset + first * size, info, self.name, first)


def run_name(name: str, first: int, count: int) -> str:
    """What a run of a tensor's rows is called."""
    return f"{name}[{first}:{first + count}]"


class Checkpoint:
    """The tensors of a checkpoint by name, in the order of their bytes on disk.

    files     the safetensors files, in the index's order
    sharded   true where an index names the files
    metadata  the `__metadata__` of each file, by file name
    """

    def __init__(self, files: list[Path], sharded: bool) -> None:
        self.files = files
        self.sharded = sharded
        self.metadata: dict[str, Mapping[str, str]] = {}
        self.tensors: dict[str, StoredTensor] = {}
        self._stamps: dict[Path, Stamp] = {}
        for file in files:
            self._stamps[file] = Stamp.of(file)
            header = read_header(file)
            self.metadata[file.name] = header.metadata
            for name, info in sorted(header.tensors.items(), key=lambda item: item[1].start):
                if name in self.tensors:
                    raise InputError(
                        error(
                            "F106",
                            f"the tensor {name} is in two files",
                            where=f"{self.tensors[name].file.name}, {file.name}",
                            fix=("keep one of the files, or write an index that says which holds the tensor",),
                        )
                    )
                self.tensors[name] = StoredTensor(name, file, header.data_start + info.start, info)

    def cut(self, runs: Mapping[str, Sequence[int]]) -> Checkpoint:
        """The same checkpoint with tensors cut into runs of rows (name -> rows of each run), which take their place."""
        other = copy.copy(self)  # with what keeps a temporary file, where that is what is read
        other.tensors = {}
        for stored in self.tensors.values():
            parts, first = [], 0
            for count in runs.get(stored.name, ()):
                parts.append(stored.rows(first, count))
                first += count
            other.tensors |= {part.name: part for part in parts or [stored]}
        return other

    @property
    def count(self) -> int:
        """How many tensors the files hold."""
        return len({tensor.whole or tensor.name for tensor in self.tensors.values()})

    @property
    def nbytes(self) -> int:
        """Bytes of all files, headers included."""
        return sum(stamp.size for stamp in self._stamps.values())

    def read(self, name: str) -> NDArray[np.generic]:
        """The values of tensor `name` (bf16 and fp8 as their bits).

        Raises InputError: F100 unreadable, F105 a dtype narrower than a byte, F109 the file has become shorter.
        """
        tensor = self.tensors[name]
        return self._span(tensor, 0, tensor.info.nbytes).reshape(tensor.info.shape)

    def picked(self, name: str, indexes: Sequence[int]) -> NDArray[np.generic]:
        """Parts of tensor `name` along the first axis, [len(indexes), ...], with one opening; raises as `read` does."""
        import numpy as np

        tensor = self.tensors[name]
        shape = tensor.info.shape
        dtype = self._dtype(tensor)
        size = tensor.info.nbytes // max(shape[0], 1)
        values = np.empty((len(indexes), size // dtype.itemsize), dtype)
        with self.opened(tensor) as file:
            for into, index in zip(values, indexes, strict=True):
                if not 0 <= index < shape[0]:
                    raise IndexError(f"{name} {list(shape)} has no part {index}")
                file.seek(tensor.offset + index * size)
                if file.readinto(into) != size:
                    raise self.changed(tensor.file)
        return values.reshape(len(indexes), *shape[1:])

    def rows(self, name: str, start: int, count: int) -> NDArray[np.generic]:
        """Parts start..start+count-1 along the first axis, or as many of them as there are; raises as `read` does."""
        tensor = self.tensors[name]
        shape = tensor.info.shape
        size = tensor.info.nbytes // max(shape[0], 1)
        count = max(min(count, shape[0] - start), 0)
        return self._span(tensor, start * size, count * size).reshape(count, *shape[1:])

    def part_rows(self, name: str, index: int, start: int, count: int) -> NDArray[np.generic]:
        """Rows start..start+count-1 of part `index`, for a tensor [P, R, ...]; raises as `read` does."""
        tensor = self.tensors[name]
        parts, rows = tensor.info.shape[:2]
        if not 0 <= index < parts:
            raise IndexError(f"{name} {list(tensor.info.shape)} has no part {index}")
        size = tensor.info.nbytes // max(parts * rows, 1)
        count = max(min(count, rows - start), 0)
        values = self._span(tensor, (index * rows + start) * size, count * size)
        return values.reshape(count, *tensor.info.shape[2:])

    def parts(self, name: str) -> Iterator[NDArray[np.generic]]:
        """The whole tensor, some megabytes of rows at a time; raises as `read` does."""
        tensor = self.tensors[name]
        shape = tensor.info.shape
        if not shape or not tensor.info.nbytes:
            yield self.read(name)
            return
        count = max(_PART * shape[0] // tensor.info.nbytes, 1)
        for start in range(0, shape[0], count):
            yield self.rows(name, start, count)

    @contextmanager
    def opened(self, tensor: StoredTensor) -> Iterator[BufferedReader]:
        """The file that holds `tensor`, open. All values are read through this, so that a checkpoint whose bytes are
        elsewhere has one place to bring them here. Raises InputError F100 where the file cannot be read.
        """
        try:
            with tensor.file.open("rb") as file:
                yield file
        except OSError as problem:
            raise unreadable(tensor.file, problem) from problem

    def blocks(self, tensor: StoredTensor, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """Bytes start..end-1 of `tensor` in blocks of a megabyte at most, each with the place where it begins and valid
        until the next. Raises InputError F100 and F109.
        """
        buffer = memoryview(bytearray(min(BLOCK, end - start)))
        with self.opened(tensor) as file:
            while start < end:
                block = buffer[: min(len(buffer), end - start)]
                if not fill(file.fileno(), block, tensor.offset + start):
                    raise self.changed(tensor.file)
                yield start, block
                start += len(block)

    def _span(self, tensor: StoredTensor, start: int, size: int) -> NDArray[np.generic]:
        import numpy as np

        dtype = self._dtype(tensor)
        with self.opened(tensor) as file:
            file.seek(tensor.offset + start)
            data = file.read(size)
        if len(data) != size:
            raise self.changed(tensor.file)
        return np.frombuffer(data, dtype=dtype)

    @staticmethod
    def _dtype(tensor: StoredTensor) -> np.dtype[np.generic]:
        import numpy as np

        dtype = NUMPY_DTYPES.get(tensor.info.dtype)
        if dtype is None:
            raise InputError(
                error(
                    "F105",
                    f"{tensor.name} has the packed dtype {tensor.info.dtype}",
                    where=tensor.file.name,
                    why="its values must be read, and here only those that fill whole bytes are",
                    fix=("convert the drafter as it was before it was quantised, and quantise it then",),
                )
            )
        return np.dtype(dtype)

    def assert_unchanged(self) -> None:
        """Raise InputError F109 where a file was written to since it was opened."""
        for file, stamp in self._stamps.items():
            try:
                same = Stamp.of(file) == stamp
            except InputError:
                same = False
            if not same:
                raise self.changed(file)

    @staticmethod
    def changed(file: Path) -> InputError:
        """F109: what to raise where `file` is not what it was."""
        return InputError(
            error(
                "F109",
                f"{file.name} changed while it was read",
                where=str(file),
                fix=("wait until training or the download has finished, then run the command again",),
            )
        )


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a folder, or one `*.safetensors` file.

    Raises InputError: F100 missing or unreadable, F107 no weights, F108 index and files disagree, and
    whatever `read_header` raises.
    """
    if path.is_file():
        _refuse_lone_shard(path)
        return Checkpoint([path], sharded=False)
    if not path.exists():
        raise InputError(error("F100", f"{path} does not exist", where=str(path), fix=("check the path",)))
    index, single = path / INDEX, path / SINGLE
    found = sorted(p for p in path.glob("*.safetensors") if p.is_file() or not p.exists())  # links to nothing too
    if os.path.lexists(index):
        return _open_shards(path, index, found)
    if single in found:
        return Checkpoint([single], sharded=False)
    if len(found) == 1:
        _refuse_lone_shard(found[0])
        return Checkpoint(found, sharded=False)
    if found:
        raise several_files(str(path), [p.name for p in found], str(found[0]))
    raise _no_weights(path)


def several_files(folder: str, names: Sequence[str], first: str) -> InputError:
    """`first` is how a user names one of the files."""
    return InputError(
        error(
            "F108",
            f"{folder} holds several safetensors files and no {INDEX}",
            where=folder,
            found=", ".join(names),
            fix=(f"name the file to convert, e.g. {first}",),
        )
    )


def two_forms(folder: str, single: str) -> InputError:
    """`single` is how a user names the one file."""
    return InputError(
        error(
            "F108",
            f"{folder} holds both {SINGLE} and an index of other files",
            where=folder,
            why="engines differ in which of the two they load",
            fix=(f"name the one to convert, e.g. {single}",),
        )
    )


def _refuse_lone_shard(file: Path) -> None:
    """One file that is named as one of several is a part of a checkpoint."""
    part = re.search(r"-([0-9]{5})-of-([0-9]{5})\.safetensors$", file.name)
    if part and part[2] != "00001":
        whole = (file.parent / INDEX).is_file()
        missing = "" if whole else f", and the others and {INDEX} are not there"
        raise InputError(
            error(
                "F108",
                f"{file.name} is one of {int(part[2])} shards{missing}",
                where=str(file.parent),
                fix=(f"name the folder: {file.parent}" if whole else "download the folder again, whole",),
            )
        )


def _open_shards(folder: Path, index: Path, found: list[Path]) -> Checkpoint:
    weight_map = read_object(index).get("weight_map")
    if not (isinstance(weight_map, dict) and weight_map and all(isinstance(v, str) for v in weight_map.values())):
        raise InputError(error("F108", f"{INDEX} has no weight_map of tensor to file", where=str(index)))
    names = sorted(set(weight_map.values()))
    for name in names:
        if Path(name).name != name or name in ("", ".", ".."):
            raise InputError(error("F108", f"{INDEX} names a file outside the folder: {name!r}", where=str(index)))
    missing = [name for name in names if not is_here(folder / name)]
    if missing:
        raise InputError(
            error(
                "F108",
                f"{len(missing)} of {len(names)} shards are missing",
                where=str(folder),
                found=f"no {', '.join(missing)}",
                fix=("download the folder again: its index names files that are not there",),
            )
        )
    if not all(name.endswith(".safetensors") for name in names):
        wrong = next(name for name in names if not name.endswith(".safetensors"))
        raise InputError(
            error("F108", f"{INDEX} names a shard that is no safetensors file: {wrong!r:.80}", where=str(index))
        )
    single = folder / SINGLE
    if single in found and SINGLE not in names:
        raise two_forms(str(folder), str(single))
    checkpoint = Checkpoint([folder / name for name in names], sharded=True)
    there = {name: tensor.file.name for name, tensor in checkpoint.tensors.items()}
    if there != weight_map:
        wrong = sorted(n for n in there.keys() | weight_map.keys() if there.get(n) != weight_map.get(n))
        raise InputError(
            error(
                "F108",
                f"{INDEX} and the files disagree about {len(wrong)} tensors",
                where=str(index),
                found=f"e.g. {wrong[0]}: {there.get(wrong[0], 'in no file')}",
                expected=str(weight_map.get(wrong[0], "not in the index")),
            )
        )
    return checkpoint


def _no_weights(path: Path) -> InputError:
    inner = [p for p in path.iterdir() if p.is_dir() and any(p.glob("*.safetensors"))] if path.is_dir() else []
    if inner:
        newest = max(inner, key=lambda p: max(f.lstat().st_mtime for f in p.glob("*.safetensors")))
        names = sorted((p.name for p in inner), key=natural)
        return InputError(
            error(
                "F107",
                f"{path} holds {len(inner)} checkpoints, not one",
                where=str(path),
                found=", ".join(names),
                fix=(f"name one of them; the newest is {newest}",),
            )
        )
    others = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in path.glob(pattern))
    return InputError(
        error(
            "F107",
            f"no weights in {path}",
            where=str(path),
            found=f"only {', '.join(others)}" if others else "no safetensors file",
            expected=f"{SINGLE}, or shards with {INDEX}",
            fix=("name the file that holds the weights",) if others else (),
        )
    )


def natural(name: str) -> list[tuple[int, str]]:
    """2 before 10, words by letter."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"([0-9]{1,9})", name)]


def preadinto(fd: int, buffer: memoryview, offset: int) -> int:
    """os.preadv into `buffer` where the system has it, else a read at the offset. Returns bytes read."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [buffer], offset)
    os.lseek(fd, offset, os.SEEK_SET)
    data = os.read(fd, len(buffer))
    buffer[: len(data)] = data
    return len(data)


def fill(fd: int, buffer: memoryview, offset: int) -> bool:
    """Read the file's bytes from `offset` on into all of `buffer`; False where the file ends before. Raises OSError."""
    got = 0
    while got < len(buffer):
        step = preadinto(fd, buffer[got:], offset + got)
        if step == 0:
            return False
        got += step
    return True

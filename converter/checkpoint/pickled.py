"""PyTorch pickles (`.bin`, `.pt`, `.pth`, `.ckpt`), read by torch's weights-only loader and by nothing else.

The tensors are written to a temporary safetensors file, so that everything after this knows one format.
"""

from __future__ import annotations

import importlib.util
import io
import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from converter.checkpoint.header import TensorInfo, build_header
from converter.checkpoint.jsonfile import read_object, unreadable
from converter.checkpoint.reader import Checkpoint, Stamp
from converter.checkpoint.scratch import Scratch, writing_to_scratch
from converter.checkpoint.writer import copy_file
from converter.errors import InputError, OutputError, UsageError
from converter.findings import error

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = ("pytorch_model.bin", "model.bin", "model.pt", "model.pth")
_NAMES = (*WEIGHTS, "training_state.pt")
INDEX = "pytorch_model.bin.index.json"
ENDINGS = (".bin", ".pt", ".pth", ".ckpt")
_UNFOLDS = 4  # times the file that its tensors may fill; an embedding that is the head as well is stored once
# Where checkpoints of training runs keep the model, first found first taken.
_INNER = ("state_dict", "model_state_dict", "model", "draft_state_dict", "module")


def find_pickles(path: Path) -> list[Path]:
    """The pickle files of a checkpoint: `path` itself, shards named by an index, or one file of a usual name."""
    if path.is_file():
        return [path] if path.suffix in ENDINGS else []
    index = path / INDEX
    if index.is_file():
        weight_map = read_object(index).get("weight_map")
        files = sorted({str(v) for v in weight_map.values()}) if isinstance(weight_map, dict) else []
        if files and all(Path(f).name == f and (path / f).is_file() for f in files):
            return [path / f for f in files]
        fix = ("download the folder again, whole",)
        raise InputError(error("F108", f"{INDEX} names files that are not there", where=str(index), fix=fix))
    usual = [path / name for name in _NAMES if (path / name).is_file()]
    return usual[:1]


def open_pickles(files: list[Path]) -> Checkpoint:
    """Read the files into a checkpoint that lives until the process ends.

    Raises UsageError without torch, what `load_pickle` raises, and InputError: F104 a name that is no text, F105 a
    dtype or layout that safetensors has not, F107 no tensors, F114 more than one set of them.
    """
    if importlib.util.find_spec("torch") is None:
        install = "pip install 'eagle3-convert[torch]'"
        raise UsageError(f"{files[0].name} needs torch to be read, which is not installed:  {install}")
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= dict(_tensors(file, load_pickle(file)))
    if not tensors:
        raise InputError(
            error(
                "F107",
                f"{files[0].name} holds no model",
                where=str(files[0]),
                found="a training state (optimizer, step, ...) without weights",
                fix=("name the file or folder that holds the weights",),
            )
        )
    scratch = Scratch()
    path = scratch.folder / "model.safetensors"
    with writing_to_scratch():
        _write(path, tensors, ", ".join(file.name for file in files))
    _forget()
    return _Unpickled(path, scratch)


class _Unpickled(Checkpoint):
    """The tensors in their temporary file, which goes with it."""

    def __init__(self, path: Path, scratch: Scratch) -> None:
        super().__init__([path], sharded=False)
        self._scratch = scratch


def load_pickle(file: Path, unpacked: bytes | None = None) -> Any:
    """What the file holds, tensors left on disk where the format allows; `unpacked` is its content where it is gzipped.

    Raises InputError: F100 unreadable, F101 no PyTorch file, F109 changed while it was read, F114 more than tensors;
    OutputError where there is no room for a temporary copy.
    """
    import torch

    try:
        source = file if unpacked is None else io.BytesIO(unpacked)
        size = file.stat().st_size if unpacked is None else len(unpacked)
        zipped = zipfile.is_zipfile(source)
        if zipped:
            source = _private(file) if isinstance(source, Path) else source
            _refuse_compressed(file, source, size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols: whatever is not understood is refused anyway
            mapped = zipped and isinstance(source, Path)
            document = torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
        _refuse_unfolding(file, document, size)
        return document
    except OSError as problem:
        raise unreadable(file, problem) from problem
    except pickle.UnpicklingError as problem:
        raise InputError(
            error(
                "F114",
                f"{file.name} holds more than tensors, or is no PyTorch file",
                where=str(file),
                found=str(problem).splitlines()[0][:200],
                why="unpickling it could run code of whoever wrote it; only torch's weights-only loader is used",
                fix=("save the tensors with safetensors where the file comes from",),
            )
        ) from problem
    except (InputError, OutputError):
        raise
    except Exception as problem:  # torch promises no kinds of error for a damaged or hostile file
        raise InputError(
            error("F101", f"{file.name} is no readable PyTorch file", where=str(file), found=str(problem)[:200])
        ) from problem


_copied: tuple[Path, Stamp, Scratch] | None = None  # the last one: a sample's states are read one by one


def _private(file: Path) -> Path:
    """A copy that nobody else writes to: what is mapped into memory must not shrink, which would end the process."""
    global _copied
    stamp = Stamp.of(file)
    if _copied is None or _copied[:2] != (file, stamp):
        _forget()
        scratch = Scratch()
        with writing_to_scratch():
            copy_file(file, scratch.folder / "pickle")
        _copied = file, stamp, scratch
    return _copied[2].folder / "pickle"


def _forget() -> None:
    """Remove the copy here, where a signal ends the command: one that comes in a finalizer would be lost."""
    global _copied
    if _copied is not None:
        _copied[2].close()
    _copied = None


def _refuse_compressed(file: Path, source: Path | BinaryIO, size: int) -> None:
    """torch stores tensors uncompressed; a compressed entry could unfold to any size."""
    with zipfile.ZipFile(source) as archive:
        packed = [e for e in archive.infolist() if e.compress_type != zipfile.ZIP_STORED]
        total = sum(e.file_size for e in archive.infolist())
    if packed or total > size:
        raise InputError(
            error(
                "F114",
                f"{file.name} has compressed or overlapping entries, which torch never writes",
                where=str(file),
                found=f"{total:,} bytes of entries in a file of {size:,}",
                fix=("save the tensors again with torch.save, or with safetensors",),
            )
        )
    if not isinstance(source, Path):
        source.seek(0)


def _refuse_unfolding(file: Path, document: Any, size: int) -> None:
    """A tensor may say that one stored value is all of its values, or many tensors that they share what is stored."""
    values = sum(tensor.numel() * tensor.element_size() for tensor in _all_tensors(document))
    if values > _UNFOLDS * size:
        raise InputError(
            error(
                "F114",
                f"{file.name} holds tensors that are larger than the file",
                where=str(file),
                found=f"tensors of {values:,} bytes in a file of {size:,}",
                why="one stored value stands for many, or the same ones for many tensors, and all would be written out",
                fix=("save the tensors with safetensors where the file comes from",),
            )
        )


def _all_tensors(document: Any) -> Iterator[Tensor]:
    """Every tensor in it, in containers of any depth, those that hold themselves too."""
    import torch

    seen, waiting = set(), [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, torch.Tensor):
            yield node
        elif isinstance(node, Mapping | list | tuple | set) and id(node) not in seen:
            seen.add(id(node))
            waiting += node.values() if isinstance(node, Mapping) else node


def _tensors(file: Path, document: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the document, or of the first model inside it; raises F114 where it holds several sets."""
    import torch

    for _ in range(4):  # deep enough for every trainer known, and an end for one that holds itself
        if not isinstance(document, Mapping):
            return
        found = [(n, t) for n, t in document.items() if isinstance(t, torch.Tensor)]
        if found:
            others = [n for n, v in document.items() if isinstance(v, Mapping) and _any_tensor(v)]
            if others or not all(isinstance(n, str) for n, _ in found):
                raise InputError(
                    error(
                        "F114",
                        f"{file.name} holds more than one set of tensors, or unnamed ones",
                        where=str(file),
                        found=", ".join(map(str, others))[:120],
                        fix=("save the model's weights alone",),
                    )
                )
            yield from found
            return
        document = next((document[k] for k in _INNER if isinstance(document.get(k), Mapping)), None)


def _any_tensor(document: Mapping[Any, Any]) -> bool:
    import torch

    return any(isinstance(v, torch.Tensor) for v in document.values())


def _write(path: Path, tensors: Mapping[str, Tensor], source: str) -> None:
    import torch

    dtypes = {
        torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64", torch.bool: "BOOL",
        torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
        torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    }  # fmt: skip
    infos: dict[str, TensorInfo] = {}
    cursor = 0
    for name, value in tensors.items():
        if value.dtype not in dtypes or value.layout is not torch.strided or value.device.type != "cpu":
            kind = f"{value.dtype} {value.layout} on {value.device}"
            fix = ("save it as a dense tensor on the CPU, in a dtype that safetensors has",)
            raise InputError(error("F105", f"{name!r:.80} cannot be read: it is {kind}", where=source, fix=fix))
        size = value.numel() * value.element_size()
        infos[name] = TensorInfo(dtypes[value.dtype], tuple(value.shape), cursor, cursor + size)
        cursor += size
    try:
        header = build_header(infos, {"format": "pt"})
    except UnicodeEncodeError as problem:
        fix = ("save the tensors again under names that are text",)
        raise InputError(error("F104", "a tensor's name is no text", where=source, fix=fix)) from problem
    with path.open("xb") as out:
        out.write(header)
        for value in tensors.values():
            whole = value.detach().resolve_neg().resolve_conj().contiguous()
            flat = whole.as_strided((whole.numel(),), (1,))  # a single value may come with any stride
            out.write(flat.view(torch.uint8).numpy().data if flat.numel() else b"")

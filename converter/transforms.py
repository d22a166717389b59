"""The few operations on tensor values that a plan may name. Everything else is a copy of the input's bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from converter.checkpoint.reader import NUMPY_DTYPES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from converter.drafter.vocab import VocabularyMap

OFFSETS_FROM_IDS = "offsets from ids"
MARKS_FROM_IDS = "marks from ids"
PERMUTE_BLOCKS = "permute blocks"
SPLIT_ROWS = "split rows"  # a run of the input tensor's rows: its bytes are moved, not read
CAST = "cast"


@dataclass(frozen=True)
class Operation:
    """name: one of this module's constants; arguments: what it needs, as the plan and the seal show it."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "arguments": dict(self.arguments)}


def permute_blocks(values: NDArray[np.generic], order: tuple[int, ...]) -> NDArray[np.generic]:
    """Cut the last axis into len(order) equal blocks and put block order[i] in place i. [..., n*b] -> [..., n*b]"""
    import numpy as np

    blocks = np.split(values, len(order), axis=-1)
    return np.concatenate([blocks[i] for i in order], axis=-1)


def offsets_from_ids(vocabulary: VocabularyMap, vocab_size: int) -> NDArray[np.generic]:
    """d2t as engines read it: target id - draft id, int64 [Vd]."""
    import numpy as np

    return vocabulary.ids - np.arange(len(vocabulary.ids), dtype=np.int64)


def marks_from_ids(vocabulary: VocabularyMap, vocab_size: int) -> NDArray[np.generic]:
    """t2d: true at the target ids that the draft vocabulary holds, bool [V]."""
    import numpy as np

    marks = np.zeros(vocab_size, dtype=np.bool_)
    marks[vocabulary.ids] = True
    return marks


# Operations that make a tensor of the vocabulary map alone.
MAP_OPERATIONS: Mapping[str, Callable[[VocabularyMap, int], NDArray[np.generic]]] = {
    OFFSETS_FROM_IDS: offsets_from_ids,
    MARKS_FROM_IDS: marks_from_ids,
}


def as_float32(values: NDArray[np.generic], dtype: str) -> NDArray[np.float32]:
    """Values as `checkpoint.read` gives them (bf16 as its bits) in fp32, exactly where fp32 can."""
    import numpy as np

    if dtype == "BF16":
        bits = values.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    return values.astype(np.float32)


def rounded(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """fp32 values rounded to what `dtype` can hold (to the nearest, ties to even)."""
    import numpy as np

    if dtype == "BF16":
        return as_float32(_as_bf16(values), "BF16")
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    return values


def _as_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of fp32 values in bf16, rounded to the nearest, ties to even."""
    import numpy as np

    bits = values.view(np.uint32)
    made = bits >> 16
    made &= 1
    made += bits
    made += 0x7FFF
    made >>= 16
    if values.size and np.isnan(values.min()):  # whose bits must not be carried over into another number's
        made = np.where(np.isnan(values), (bits >> 16) | 0x40, made)
    return made.astype(np.uint16)


def apply(operations: Sequence[Operation], values: NDArray[np.generic]) -> NDArray[np.generic]:
    """Rows of a tensor after the operations that work row by row (`permute blocks`, `cast`; of `split rows`, those that
    it takes)."""
    for operation in operations:
        if operation.name == PERMUTE_BLOCKS:
            values = permute_blocks(values, tuple(operation.arguments["order"]))
        elif operation.name == CAST:
            values = cast(values, operation.arguments["from"], operation.arguments["to"])
    return values


# Names of dtypes that `cast` can make, as configs have them -> as safetensors has them.
CAST_DTYPES: Mapping[str, str] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


_TOGETHER = 1 << 16  # values cast at once: they, and what comes between, stay in a core's cache


def cast(values: NDArray[np.generic], source: str, target: str) -> NDArray[np.generic]:
    """Floating-point values (bf16 as its bits) in another dtype, rounded to the nearest."""
    import numpy as np

    made = np.empty(values.shape, NUMPY_DTYPES[target])
    left, right = values.reshape(-1), made.reshape(-1)
    for start in range(0, left.size, _TOGETHER):
        part, into = left[start : start + _TOGETHER], right[start : start + _TOGETHER]
        if source == "F16" or (source, target) == ("BF16", "F16"):
            np.take(_every_value(source, target), part.view(np.uint16), out=into, mode="clip")
        else:
            into[:] = _cast(part, source, target)
    return made


def _cast(values: NDArray[np.generic], source: str, target: str) -> NDArray[np.generic]:
    import numpy as np

    wide = as_float32(values, source)
    if target == "BF16":
        return _as_bf16(wide)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is infinite, and reported as such
        return wide.astype(NUMPY_DTYPES[target], copy=False)


@lru_cache
def _every_value(source: str, target: str) -> NDArray[np.generic]:
    """What each of the 65,536 values that 16 bits can hold becomes: looking it up takes half the time of a cast."""
    import numpy as np

    return _cast(np.arange(1 << 16, dtype=np.uint16).view(NUMPY_DTYPES[source]), source, target)

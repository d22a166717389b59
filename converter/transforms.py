"""The few operations on tensor values that a plan may name. Everything else is a copy of the input's bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def rounded(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """fp32 values rounded to what `dtype` can hold (to the nearest, ties to even)."""
    import numpy as np

    if dtype == "BF16":
        bits = values.view(np.uint32)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(values), values, bits.view(np.float32))
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    return values


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


def cast(values: NDArray[np.generic], source: str, target: str) -> NDArray[np.generic]:
    """Floating-point values (bf16 as its bits) in another dtype, rounded to the nearest."""
    import numpy as np

    wide = as_float32(values, source)
    if target == "BF16":
        return (rounded(wide, "BF16").view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):  # what overflows is infinite, and reported as such
        return wide.astype(np.float16 if target == "F16" else np.float32)

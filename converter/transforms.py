"""The few operations on tensor values that a plan may name. Everything else is a copy of the input's bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from converter.drafter.vocab import VocabularyMap

OFFSETS_FROM_IDS = "offsets from ids"
PERMUTE_BLOCKS = "permute blocks"


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


def offsets_from_ids(vocabulary: VocabularyMap) -> NDArray[np.int64]:
    """d2t as engines read it: target id - draft id, int64 [Vd]."""
    import numpy as np

    return vocabulary.ids - np.arange(len(vocabulary.ids), dtype=np.int64)

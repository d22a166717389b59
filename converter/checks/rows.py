"""The drafter's embedding and head against the target's rows.

Many trainers freeze both: the embedding is then the target's, and row i of the head is the target's head row at the
target id of draft token i. That pins the vocabulary map better than a range check, and gives back one that was lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from converter.checkpoint.reader import Checkpoint
from converter.drafter.drafter import Embedding
from converter.drafter.spec import DrafterSpec
from converter.drafter.vocab import VocabularyMap
from converter.findings import Finding, error, warning
from converter.target_weights import RowTable
from converter.transforms import as_float32, rounded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROWS = 512  # rows compared, spread evenly over the table
_RELATED = 0.5  # mean cosine: tables trained on from one another stay above it, unrelated ones are near 0


@dataclass(frozen=True)
class Likeness:
    """equal of `compared` rows are the same up to the narrower dtype; cosine is the mean over the rows."""

    equal: int
    compared: int
    cosine: float


def compare_rows(checkpoint: Checkpoint, name: str, ids: NDArray[np.integer] | None, table: RowTable) -> Likeness:
    """Rows of tensor `name` [N, H] with the target's rows at `ids` [N] (None: row i with row i)."""
    import numpy as np

    count = checkpoint.tensors[name].info.shape[0]
    dtype = checkpoint.tensors[name].info.dtype
    picked = np.unique(np.linspace(0, count - 1, min(ROWS, count)).astype(np.int64))
    equal, cosines = 0, []
    for row in picked.tolist():
        ours = as_float32(checkpoint.read(name, row), dtype)
        theirs = table.row(int(row if ids is None else ids[row]))
        equal += _same(ours, theirs, dtype)
        norm = float(np.linalg.norm(ours) * np.linalg.norm(theirs))
        cosines.append(float(ours @ theirs) / norm if norm else 0.0)
    return Likeness(equal, len(picked), float(np.mean(cosines)))


def _same(ours: NDArray[np.float32], theirs: NDArray[np.float32], dtype: str) -> bool:
    """Equal as stored, or equal once the wider of the two is rounded to the narrower."""
    import numpy as np

    return bool(
        np.array_equal(ours, rounded(theirs, dtype))
        or np.array_equal(rounded(ours, "BF16"), theirs)
        or np.array_equal(rounded(ours, "F16"), theirs)
    )


def check_embedding(
    checkpoint: Checkpoint, name: str, table: RowTable, frozen: bool = False
) -> tuple[Embedding, list[Finding]]:
    """Whether the drafter's own embedding is the target's, was trained further, or has nothing to do with it (T109).

    frozen   its trainer leaves it as the target's, so that one that was trained further is another target's (T130)
    """
    likeness = compare_rows(checkpoint, name, None, table)
    if likeness.equal == likeness.compared:
        return "target's", []
    if likeness.cosine > _RELATED:
        return "trained", [_another_s(name, likeness, table)] if frozen else []
    return "unrelated", [
        error(
            "T109",
            "the drafter's embedding has nothing to do with the target's",
            where=name,
            found=f"{likeness.equal} of {likeness.compared} rows equal, mean cosine {likeness.cosine:.2f}",
            expected=f"rows of {table.name}, as they are or trained further",
            why="it was exported at its random start, or belongs to another target",
            fix=("save the checkpoint with the trained embedding, or without one (engines take the target's)",),
        )
    ]


def _another_s(name: str, likeness: Likeness, table: RowTable) -> Finding:
    return warning(
        "T130",
        "the drafter's embedding is near this target's and not the same, though its trainer freezes it",
        where=name,
        found=f"{likeness.equal} of {likeness.compared} rows equal, mean cosine {likeness.cosine:.3f}",
        expected=f"all, in {table.name} of the target that it was trained for",
        why="it was trained for another fine-tune of this model, whose states and answers are others",
        fix=("give the target that it was trained for, or measure on a sample: eagle3 sample --target TARGET",),
    )


def check_head(
    checkpoint: Checkpoint, name: str, vocab: VocabularyMap | None, table: RowTable, frozen: bool
) -> Iterator[Finding]:
    """V210 where a trainer that freezes the head left other rows than the map names."""
    likeness = compare_rows(checkpoint, name, None if vocab is None else vocab.ids, table)
    if frozen and likeness.equal < likeness.compared:
        yield error(
            "V210",
            "the head's rows are not the target's rows that the map names",
            where=name,
            found=f"{likeness.equal} of {likeness.compared} rows equal, mean cosine {likeness.cosine:.2f}",
            expected="all: this trainer freezes the head, so row i is the target's head row of draft token i",
            why="map and head belong to different runs, or the target is another: the drafter names wrong tokens",
            fix=("give the target that it was trained for, or save map and weights of one run together",),
        )


def recover_map(
    spec: DrafterSpec, checkpoint: Checkpoint, tensors: Mapping[str, str], table: RowTable
) -> VocabularyMap | None:
    """The map that makes every head row the target's; None where a row has no twin there."""
    import numpy as np
    import xxhash

    name = tensors.get("lm_head.weight")
    if name is None or checkpoint.tensors[name].info.shape != (spec.draft_vocab_size, table.shape[1]):
        return None
    dtype = checkpoint.tensors[name].info.dtype
    ours = as_float32(checkpoint.read(name), dtype)
    rows = {xxhash.xxh3_64_intdigest(row.tobytes()): i for i, row in enumerate(ours)}
    ids = np.full(len(ours), -1, dtype=np.int64)
    target_id = 0
    for block in table.blocks():
        for row in rounded(block, dtype):
            i = rows.get(xxhash.xxh3_64_intdigest(row.tobytes()))
            # Padding rows of the target can be alike; the first is the token.
            if i is not None and ids[i] < 0 and target_id < spec.vocab_size:
                ids[i] = target_id
            target_id += 1
    return VocabularyMap(ids, "head") if len(rows) == len(ours) and bool((ids >= 0).all()) else None


def recovered(vocab: VocabularyMap, lost: Finding, table: RowTable) -> Finding:
    return warning(
        "V211",
        f"the vocabulary map was recovered: every row of the head is a row of the target's {table.name}",
        where="d2t",
        found=f"what was stored: {lost.message} ({lost.code})",
        expected=f"{len(vocab.ids):,} of {len(vocab.ids):,} rows found",
        why="the trainer froze the head, so its rows tell the tokens",
    )

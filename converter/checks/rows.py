"""The drafter's embedding and head against the target's rows.

Many trainers freeze both: the embedding is then the target's, and row i of the head is the target's head row at the
target id of draft token i. That pins the vocabulary map better than a range check, and gives back one that was lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from converter.checkpoint.reader import Checkpoint
from converter.checks.likeness import Elsewhere, elsewhere, kind_of_stranger, nearby
from converter.checks.sampling import spread
from converter.drafter.drafter import Embedding
from converter.drafter.spec import DrafterSpec
from converter.drafter.vocab import VocabularyMap
from converter.findings import CAPTURE, Finding, error, warning
from converter.target_weights import RowTable
from converter.transforms import as_float32, rounded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROWS = 512  # rows compared, spread evenly over the table
_RELATED = 0.5  # mean cosine: tables trained on from one another stay above it, unrelated ones are near 0
_CLOSER = 0.25  # of the way from how close rows of different tokens are to being the same


@dataclass(frozen=True)
class Likeness:
    """equal of `compared` rows are the same up to the narrower dtype.

    cosine   the mean over the rows; others: of each row with that of another token
    """

    equal: int
    compared: int
    cosine: float
    others: float

    @property
    def by_token(self) -> bool:
        """Whether rows of the same token are clearly closer than others: some tables have all rows in one direction."""
        return self.cosine - self.others > _CLOSER * (1 - self.others)

    def __str__(self) -> str:
        return f"{self.equal} of {self.compared} rows equal, mean cosine {self.cosine:.2f}"


def compare_rows(checkpoint: Checkpoint, name: str, ids: NDArray[np.integer] | None, table: RowTable) -> Likeness:
    """Rows of tensor `name` [N, H] with the target's rows at `ids` [N] (None: row i with row i)."""
    dtype = checkpoint.tensors[name].info.dtype
    picked, ours = spread(checkpoint, name, ROWS)
    theirs = table.picked((picked if ids is None else ids[picked]).tolist())
    others = _cosines(ours[1:], theirs[:-1])
    other = float(others.mean()) if len(others) else 0.0
    return Likeness(int(_same(ours, theirs, dtype).sum()), len(picked), float(_cosines(ours, theirs).mean()), other)


def _cosines(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each row of one with the same row of the other; 0 where a row is zero or not finite."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):  # of rows that are not finite
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosines: NDArray[np.float32] = np.divide((a * b).sum(axis=1), norms, out=np.zeros_like(norms), where=norms != 0)
    return np.nan_to_num(cosines)


def _same(ours: NDArray[np.float32], theirs: NDArray[np.float32], dtype: str) -> NDArray[np.bool_]:
    """Which rows are equal as stored, or once the wider of the two is rounded to the narrower."""
    import numpy as np

    pairs = ((ours, rounded(theirs, dtype)), (rounded(ours, "BF16"), theirs), (rounded(ours, "F16"), theirs))
    same: NDArray[np.bool_] = np.any([(a == b).all(axis=1) for a, b in pairs], axis=0)
    return same


def check_embedding(
    checkpoint: Checkpoint, name: str, table: RowTable, frozen: bool = False
) -> tuple[Embedding, list[Finding]]:
    """Whether the drafter's own embedding is the target's, was trained further, or has nothing to do with it (T109), or
    with its tokens (T123).

    frozen   its trainer leaves it as the target's, so that one that was trained further is another target's (T130)
    """
    likeness = compare_rows(checkpoint, name, None, table)
    if likeness.equal == likeness.compared:
        return "target's", []
    related = likeness.cosine > _RELATED
    if not (related and likeness.by_token):
        found = elsewhere(checkpoint, name, None, table)
        if found is not None:
            return "unrelated", [_under_other_ids(name, likeness, found, table)]
    if related:
        return "trained", [_another_s(name, likeness, table)] if frozen else []
    return "unrelated", [
        error(
            "T109",
            "the drafter's embedding has nothing to do with the target's",
            where=name,
            found=f"{likeness}; {kind_of_stranger(checkpoint, name, table=True)}",
            expected=f"rows of {table.name}, as they are or trained further",
            why="it was exported at its random start, or belongs to another target",
            fix=("save the checkpoint with the trained embedding, or without one (engines take the target's)",),
        )
    ]


def _under_other_ids(name: str, likeness: Likeness, found: Elsewhere, table: RowTable) -> Finding:
    return error(
        "T123",
        "the drafter's embedding holds the target's rows under other ids",
        where=name,
        found=f"{likeness}; {found}",
        expected=f"row i is row i of {table.name}, as it is or trained further",
        why="an engine that keeps it reads every token as another",
        fix=("save the checkpoint with the rows in the target's order, or without them (engines take the target's)",),
    )


def _another_s(name: str, likeness: Likeness, table: RowTable) -> Finding:
    return warning(
        "T130",
        "the drafter's embedding is near this target's and not the same, though its trainer freezes it",
        where=name,
        found=f"{likeness.equal} of {likeness.compared} rows equal, mean cosine {likeness.cosine:.3f}",
        expected=f"all, in {table.name} of the target that it was trained for",
        why="it was trained for another fine-tune of this model, whose states and answers are others",
        fix=(f"give the target that it was trained for, or measure on a sample: {CAPTURE}",),
    )


def check_head(
    checkpoint: Checkpoint, name: str, vocab: VocabularyMap | None, table: RowTable, frozen: bool
) -> Iterator[Finding]:
    """V210 where a trainer that freezes the head left other rows than the map names, T124 where one that may train it
    left the rows of other tokens."""
    ids = None if vocab is None else vocab.ids
    likeness = compare_rows(checkpoint, name, ids, table)
    if likeness.equal == likeness.compared:
        return
    if frozen:
        found = None if likeness.by_token else elsewhere(checkpoint, name, ids, table)
        kind = "" if likeness.by_token else f"; {found or kind_of_stranger(checkpoint, name, table=False)}"
        yield error(
            "V210",
            "the head's rows are not the target's rows that the map names",
            where=name,
            found=f"{likeness}{kind}",
            expected="all: this trainer freezes the head, so row i is the target's head row of draft token i",
            why="map and head belong to different runs, or the target is another: the drafter names wrong tokens",
            fix=("give the target that it was trained for, or save map and weights of one run together",),
        )
        return
    found = None if likeness.by_token else nearby(checkpoint, name, ids, table)
    if found is not None:
        yield error(
            "T124",
            "the head's rows are the target's of other tokens than the map names",
            where=name,
            found=f"{likeness}; {found}",
            expected="row i is of draft token i",
            why="the drafter names other tokens than it means: a healthy server that accepts nothing",
            fix=("save map and head of one run together",),
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

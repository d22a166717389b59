"""The target's embedding, head and final norm, without loading the target."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from converter.checkpoint.header import FLOATS
from converter.checkpoint.reader import Checkpoint, open_checkpoint
from converter.errors import InputError
from converter.hub.ids import hub_id
from converter.hub.ranges import open_weights
from converter.hub.snapshot import CONFIG, look_up
from converter.transforms import as_float32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BLOCK = 4096  # rows read at once

# Names that models give to the table of their tokens, and to their head; wrappers put more in front.
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight",
               "embed_in.weight", "embeddings.weight", "token_embedding.weight")  # fmt: skip
_HEADS = ("lm_head.weight", "embed_out.weight", "output.weight", "head.weight")
# And to the norm between the last layer and the head.
_NORMS = ("model.norm.weight", "language_model.norm.weight", "final_layernorm.weight", "final_layer_norm.weight",
          "final_norm.weight", "norm_f.weight", "ln_f.weight", "norm.weight")  # fmt: skip
_OTHER_TOWERS = re.compile(r"(^|[._])(vision|visual|audio|image|mtp|nextn|draft)|\.[0-9]+\.")


@dataclass(frozen=True)
class RowTable:
    """A [V, Ht] table of the target; `checkpoint` and `name` say where it is stored."""

    checkpoint: Checkpoint
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.checkpoint.tensors[self.name].info.shape

    def picked(self, indexes: Sequence[int]) -> NDArray[np.float32]:
        """The rows at these indexes, [len(indexes), Ht]."""
        return as_float32(self.checkpoint.picked(self.name, indexes), self.checkpoint.tensors[self.name].info.dtype)

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """All rows in order, some thousand at a time."""
        dtype = self.checkpoint.tensors[self.name].info.dtype
        for start in range(0, self.shape[0], _BLOCK):
            yield as_float32(self.checkpoint.rows(self.name, start, _BLOCK), dtype)


@dataclass(frozen=True)
class TargetWeights:
    """embedding None where no table could be found; head is the embedding where the target has none of its own.

    norm is the name of the final norm's weight in `checkpoint`, "" where none was found; place is the target's folder,
    or its id on the Hub at this commit.
    """

    embedding: RowTable | None
    head: RowTable | None
    norm: str = ""
    checkpoint: Checkpoint | None = None
    place: Path | None = None

    def vector(self, name: str) -> NDArray[np.float32] | None:
        """A one-dimensional tensor in fp32; None where the target has none of that name."""
        tensor = None if self.checkpoint is None else self.checkpoint.tensors.get(name)
        if tensor is None or self.checkpoint is None or len(tensor.info.shape) != 1 or tensor.info.dtype not in FLOATS:
            return None
        return as_float32(self.checkpoint.read(name), tensor.info.dtype)


def open_target_weights(target: Path) -> Checkpoint | None:
    """All tensors of the target; None where only its config is at hand. `target` is a folder, its config.json, or an id
    on the Hub, of which tensors are fetched when they are read.

    Raises InputError where a file is damaged or, on the Hub, cannot be had.
    """
    named = hub_id(target)
    if named is not None:
        return open_weights(named if named.is_commit else named.at(look_up(named, named.file(CONFIG)).commit))
    if not target.is_dir():
        return None
    try:
        return open_checkpoint(target)
    except InputError as problem:
        if problem.finding.code in ("F102", "F107", "F108"):  # only its config is here
            return None
        raise


def read_target_weights(target: Path, vocab_size: int, hidden_size: int) -> TargetWeights | None:
    """Find the target's embedding and head by name, then by shape [>= vocab_size, hidden_size].

    None where there are no weights (a bare config.json). Padded tables have more rows than the vocabulary. Raises as
    `open_target_weights` does.
    """
    checkpoint = open_target_weights(target)
    if checkpoint is None:
        return None
    fitting = [
        name
        for name, tensor in checkpoint.tensors.items()
        if len(tensor.info.shape) == 2
        and tensor.info.shape[0] >= vocab_size
        and tensor.info.shape[1] == hidden_size
        and tensor.info.dtype in FLOATS
    ]
    head = _named(fitting, _HEADS)
    others = [n for n in fitting if n != head]
    embedding = _named(fitting, _EMBEDDINGS) or (others[0] if len(others) == 1 else None)
    table = None if embedding is None else RowTable(checkpoint, embedding)
    norm = _final_norm(checkpoint, embedding or "", hidden_size)
    if head is not None:
        return TargetWeights(table, RowTable(checkpoint, head), norm, checkpoint, target)
    # A head that is there in a form that cannot be read is not the embedding.
    tied = None if _named(list(checkpoint.tensors), _HEADS) else table
    return TargetWeights(table, tied, norm, checkpoint, target)


def _final_norm(checkpoint: Checkpoint, embedding: str, hidden_size: int) -> str:
    """Name of the norm before the head: outside the layers and other towers, best beside the embedding."""
    fitting = [
        name
        for name, tensor in checkpoint.tensors.items()
        if tensor.info.shape == (hidden_size,) and tensor.info.dtype in FLOATS and not _OTHER_TOWERS.search(name)
    ]
    for ending in _EMBEDDINGS:
        if embedding.endswith(ending):
            prefix = embedding.removesuffix(ending)
            beside = [n for n in fitting if n.startswith(prefix)]
            return _named(beside, _NORMS) or _named(fitting, _NORMS) or ""
    return _named(fitting, _NORMS) or ""


def _named(names: list[str], endings: tuple[str, ...]) -> str | None:
    """The first name that is, or ends with a dot and, one of the endings."""
    for ending in endings:
        for name in names:
            if name == ending or name.endswith(f".{ending}"):
                return name
    return None

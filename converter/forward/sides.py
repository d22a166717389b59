"""The forwards to compare: the drafter as its trainer computes it, and as an engine release does with its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from converter.checkpoint.reader import Checkpoint
from converter.drafter.drafter import Drafter
from converter.drafter.spec import DrafterSpec
from converter.drafter.vocab import VocabularyMap
from converter.forward import embedding as embeddings
from converter.forward.embedding import Embedding
from converter.forward.evaluate import Side
from converter.forward.model import DraftModel
from converter.forward.rope import NotComputable
from converter.forward.states import States
from converter.forward.weights import EMBEDDING, tensor, weights_of
from converter.target_weights import RowTable


@dataclass(frozen=True)
class EngineFiles:
    """A drafter as an engine release sees it.

    spec      what the release computes (EngineRelease.view)
    names     canonical -> name in `checkpoint`, of what the release loads; d2t among them if it does
    takes_target_embedding   whatever the files hold
    stops     why the release computes nothing of it; "" where it runs
    as_it_is  the files are those given; else, where they are the input's, those that would be written of it
    """

    engine: str
    spec: DrafterSpec
    checkpoint: Checkpoint
    names: Mapping[str, str]
    takes_target_embedding: bool
    stops: str = ""
    as_it_is: bool = False


@dataclass(frozen=True)
class Surroundings:
    """What the sides are run on: the sequences, the target's embedding where it is at hand, device and dtype.

    random   the states are random, and so is their point 0: it is nobody's embedding
    """

    sequences: Sequence[States]
    target_rows: RowTable | None
    device: torch.device
    dtype: torch.dtype
    random: bool = False

    @cached_property
    def target_embedding(self) -> Embedding | None:
        """The target's rows: from its weights, else from point 0 of every sequence; None without either."""
        if self.target_rows is not None:
            return embeddings.of_target(self.target_rows, self.sequences)
        known = not self.random and all(0 in s.points for s in self.sequences)
        return embeddings.of_point_0() if known else None


def reference(drafter: Drafter, around: Surroundings) -> Side:
    """The canonical drafter with the input's bytes. Raises NotComputable."""
    if drafter.quantised:
        raise NotComputable("quantised weights")
    spec = drafter.spec
    weights = weights_of(spec, drafter.checkpoint, drafter.tensors, around.device, around.dtype)
    own = drafter.tensors.get(EMBEDDING)
    rows = None if own is None else embeddings.of_checkpoint(drafter.checkpoint, own, around.sequences)
    rows = rows or around.target_embedding or (embeddings.of_point_0() if around.random else None)
    if rows is None:
        raise NotComputable(
            "embedding rows: neither the drafter nor the sample (point 0) nor --target (its weights) has them"
        )
    model = DraftModel(spec, weights)
    return Side("trainer", model, spec.capture_points, rows, target_ids(drafter.vocab, spec), spec.vocab_size)


def engine(files: EngineFiles, drafter: Drafter, first: Side, around: Surroundings) -> Side:
    """The release's own forward; `first` is the reference, whose weights are shared where they are the same.

    Raises NotComputable, also where the release stops before it computes anything.
    """
    if files.stops:
        raise NotComputable(files.stops)
    spec = files.spec
    twins = first.model.weights
    weights = weights_of(spec, files.checkpoint, files.names, around.device, around.dtype, twins)
    own = files.names.get(EMBEDDING)
    rows: Embedding | None = None
    if files.takes_target_embedding or own is None:
        rows = around.target_embedding
        if (
            rows is not None
            and around.target_rows is None
            and embeddings.alike(first.embedding, rows, around.sequences)
        ):
            rows = None  # the drafter's own, kept in another dtype or, as some targets scale it, times a factor
        elif rows is None and EMBEDDING in drafter.tensors and drafter.embedding != "target's" and not around.random:
            raise NotComputable(
                "the target's embedding, which the engine uses: give --target with its weights or point 0 in the sample"
            )
        rows = rows or replace(first.embedding, whose="the target's, which the drafter's own equals")
    elif own is not None:
        same = files.checkpoint is drafter.checkpoint and own == drafter.tensors.get(EMBEDDING)
        rows = first.embedding if same else embeddings.of_checkpoint(files.checkpoint, own, around.sequences)
    return Side(
        files.engine,
        DraftModel(spec, weights, windows_move=True),
        spec.capture_points,
        rows,
        loaded_map(files, drafter),
        spec.vocab_size,
    )


def target_ids(vocab: VocabularyMap | None, spec: DrafterSpec) -> Tensor:
    """[Vd]: the target id of each draft token."""
    return torch.arange(spec.draft_vocab_size) if vocab is None else torch.from_numpy(vocab.ids)


def loaded_map(files: EngineFiles, drafter: Drafter) -> Tensor:
    """[Vd]: the map that the release reads: offsets in d2t, or none, and then draft ids are taken for target ids."""
    if "d2t" not in files.names:
        return torch.arange(files.spec.draft_vocab_size)
    if files.checkpoint is drafter.checkpoint and drafter.vocab is not None and not files.as_it_is:
        return torch.from_numpy(drafter.vocab.ids)  # nothing is written yet: the map as it would be
    offsets = tensor(files.checkpoint, files.names["d2t"]).long()
    return offsets + torch.arange(len(offsets))

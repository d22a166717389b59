"""The canonical drafter: spec, where each tensor is stored, vocabulary map, and what the input says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from converter.checkpoint.reader import Checkpoint
from converter.drafter.quantised import weight_of
from converter.drafter.spec import DrafterSpec
from converter.drafter.vocab import VocabularyMap

# The drafter's own embedding held against the target's; "unknown" without the target's weights.
Embedding = Literal["absent", "unknown", "target's", "trained", "unrelated"]


@dataclass(frozen=True)
class Provenance:
    """What the input states about its making; "" or None where it does not.

    dialect, release     who wrote it, e.g. "speculators", "0.9.0"
    target_name          name or path of the target it was trained for
    target_architecture  the target's class, e.g. "LlamaForCausalLM"
    speculative_tokens   draft steps that the trainer recommends
    embedding_trained    the input says that training may have changed the embedding
    """

    dialect: str
    release: str
    target_name: str = ""
    target_architecture: str = ""
    speculative_tokens: int | None = None
    embedding_trained: bool = False


@dataclass(frozen=True)
class Drafter:
    """tensors   canonical name -> name in the checkpoint
    dropped   checkpoint tensors that no engine needs -> why
    vocab     None where draft and target vocabulary are the same and no map was stored
    embedding whose rows its own embedding holds
    quantised canonical names of quantised weights
    carried   config keys that go over as they are
    """

    checkpoint: Checkpoint
    spec: DrafterSpec
    provenance: Provenance
    tensors: Mapping[str, str]
    dropped: Mapping[str, str]
    vocab: VocabularyMap | None
    embedding: Embedding = "unknown"
    quantised: frozenset[str] = frozenset()
    carried: Mapping[str, Any] = field(default_factory=dict)

    @property
    def map(self) -> VocabularyMap:
        """The vocabulary map, also where none is stored because there is nothing to map."""
        import numpy as np

        return self.vocab or VocabularyMap(np.arange(self.spec.draft_vocab_size, dtype=np.int64), "identity")

    def keeps_values(self, canonical: str) -> bool:
        """Whether a tensor is a quantised weight or goes with one, so that its values are never changed."""
        return canonical in self.quantised or weight_of(canonical) is not None

    def with_points(self, points: tuple[int, ...]) -> Drafter:
        """The drafter, fed with these capture points in this order."""
        return replace(self, spec=replace(self.spec, capture_points=points))

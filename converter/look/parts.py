"""The parts of a drafter: tensors in groups, and what a draft step costs. Definitions: docs/metrics.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from converter.checkpoint.header import DTYPE_BYTES
from converter.checkpoint.reader import Checkpoint, StoredTensor
from converter.drafter.layout import expected_tensors
from converter.drafter.quantised import weight_of
from converter.drafter.spec import DrafterSpec

GROUPS = ("fc", "norms", "layer 0", "layers 1..", "head", "embedding", "map", "other")


@dataclass(frozen=True)
class Group:
    """Tensors that belong together. elements and nbytes are sums; names as in the files."""

    name: str
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    elements: int
    nbytes: int


def group_of(canonical: str) -> str:
    """One of GROUPS. `norms` are those outside the layers."""
    if canonical.startswith("layers."):
        return "layer 0" if canonical.startswith("layers.0.") else "layers 1.."
    if canonical.startswith(("fc_norm.", "input_norm.")) or canonical == "norm.weight":
        return "norms"
    module = canonical.partition(".")[0]
    known = {"fc": "fc", "lm_head": "head", "embed_tokens": "embedding", "d2t": "map", "t2d": "map",
             "mask_hidden": "fc"}  # fmt: skip
    return known.get(module, "other")


def grouped(checkpoint: Checkpoint, tensors: Mapping[str, tuple[str, ...]]) -> list[Group]:
    """Every tensor of a drafter in the order of GROUPS; `tensors` as in Subject."""
    part_of = {name: group_of(canonical) for canonical, names in tensors.items() for name in names}
    by_group: dict[str, list[StoredTensor]] = {name: [] for name in GROUPS}
    for stored in checkpoint.tensors.values():
        by_group[part_of.get(stored.name, "other")].append(stored)
    return [_group(name, members) for name, members in by_group.items() if members]


def heaped(checkpoint: Checkpoint) -> list[Group]:
    """Tensors that nobody knows, by their names with numbers left out, the largest first."""
    heaps: dict[str, list[StoredTensor]] = {}
    for stored in checkpoint.tensors.values():
        pattern = re.sub(r"(^|\.)[0-9]+(?=\.|$)", r"\1{n}", stored.name)
        heaps.setdefault(pattern, []).append(stored)
    return sorted((_group(name, members) for name, members in heaps.items()), key=lambda g: (-g.nbytes, g.name))


def _group(name: str, members: Iterable[StoredTensor]) -> Group:
    members = list(members)
    return Group(
        name,
        tuple(t.name for t in members),
        tuple(sorted({t.info.dtype for t in members})),
        sum(prod(t.info.shape) for t in members),
        sum(t.info.nbytes for t in members),
    )


@dataclass(frozen=True)
class Cost:
    """What drafting takes, for one sequence and a chain. Operations are multiplications and additions.

    parameters        weights of the drafter; embedding_parameters of them are its own embedding's
    step_*            a further draft token: layers, norm and head, and a row of the embedding
    first_*           more for each target state taken in, once a step of the server: fc, what takes the place of the
                      states of tokens not drafted yet (mask_hidden), and the norms before fc
    context_*         more for each token of context, in attention and in reading keys and values, or the latent of both
    head_share        the head's part of step_bytes, 0 to 1
    """

    parameters: int
    embedding_parameters: int
    step_flops: int
    step_bytes: int
    first_flops: int
    first_bytes: int
    context_flops: int
    context_bytes: int
    head_share: float


def cost_of(spec: DrafterSpec, checkpoint: Checkpoint, tensors: Mapping[str, tuple[str, ...]]) -> Cost:
    """By the shapes that the spec implies, and by the bytes that are stored; what is missing counts as in its dtype."""
    wanted = expected_tensors(spec)
    width = DTYPE_BYTES[spec.dtype]
    counts = {name: prod(expected.shape) for name, expected in wanted.items()}
    if "embed_tokens.weight" not in tensors:
        counts["embed_tokens.weight"] = 0
    nbytes = {name: _stored_bytes(name, checkpoint, tensors) or counts[name] * width for name in counts}
    matrices = {name: counts[name] for name, expected in wanted.items() if len(expected.shape) == 2}
    first = [name for name in counts if group_of(name) == "fc" or name.startswith(("fc_norm.", "input_norm."))]
    head = "embed_tokens.weight" if spec.tie_word_embeddings else "lm_head.weight"
    step = [name for name in counts if name not in first and name not in ("embed_tokens.weight", "lm_head.weight")]
    head_elements = spec.draft_vocab_size * spec.hidden_size
    head_bytes = nbytes[head] if counts[head] else head_elements * width
    row = nbytes["embed_tokens.weight"] // spec.vocab_size or spec.hidden_size * width
    # What a token of context leaves in the cache of a layer, and what a head does with it (MLA in its absorbed form).
    kv, per_head = 2 * spec.num_key_value_heads * spec.head_dim, 4 * spec.head_dim
    if spec.latent is not None:
        kv = spec.latent.kv_lora_rank + spec.latent.qk_rope_head_dim
        per_head = 2 * (2 * spec.latent.kv_lora_rank + spec.latent.qk_rope_head_dim)
    step_bytes = sum(nbytes[name] for name in step) + head_bytes + row
    # Such as mask_hidden where nobody says which token it belongs to.
    others = [n for n in tensors if n not in counts and n not in ("d2t", "t2d") and weight_of(n) is None]
    unasked = sum(prod(checkpoint.tensors[tensors[name][0]].info.shape) for name in others)
    return Cost(
        parameters=sum(counts.values()) + unasked,
        embedding_parameters=counts["embed_tokens.weight"],
        step_flops=2 * (sum(matrices[name] for name in step if name in matrices) + head_elements),
        step_bytes=step_bytes,
        first_flops=2 * sum(matrices[name] for name in first if name in matrices),
        first_bytes=sum(nbytes[name] for name in first),
        context_flops=spec.num_hidden_layers * spec.num_attention_heads * per_head,
        context_bytes=spec.num_hidden_layers * kv * width,
        head_share=head_bytes / step_bytes,
    )


def _stored_bytes(canonical: str, checkpoint: Checkpoint, tensors: Mapping[str, tuple[str, ...]]) -> int:
    """Bytes of a weight as stored, its scales with it; 0 where it is not there."""
    return sum(checkpoint.tensors[names[0]].info.nbytes for names in _with_scales(canonical, tensors))


def _with_scales(canonical: str, tensors: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    return (names for name, names in tensors.items() if canonical in (name, weight_of(name)))

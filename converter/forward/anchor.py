"""Whether a sample's labels are pinned to the target: by its embedding at one end, by its head at the other.

A sample and a drafter can share a mistake: where both call layer 3 what is layer 4, everything agrees, and an engine
is still fed something else. The two ends of the residual stream can be recognised without running the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from converter.forward.sample import Sample, SampleSequence
from converter.forward.target_head import NormKind, TargetHead
from converter.target_weights import RowTable

End = Literal["equal", "differs", "absent", "unknown"]

AGREEMENT = 0.98  # of the positions; the rest are near-ties that another kernel or dtype decides otherwise
_ROUNDING = 1 / 64  # of a row's length: bf16 rounds within 1/256, twice where a factor is applied
_COARSE = 1 / 8  # fp8 rounds within 1/16, and worse where other layers set the scale
_ROWS = 512  # embedding rows that are compared
_WORK = 1e12  # multiplications spent on the head: a second or some ten on a CPU
_LEAST = 256  # positions that are held against the head whatever it costs


@dataclass(frozen=True)
class Anchors:
    """What is pinned.

    embedding, last   equal, differs, absent (no such point in the sample), unknown (nothing to hold it against)
    anchored          both are equal
    words             what that means and what to do, a sentence or two each
    mislabelled       the point under which the sample has the embedding, where that is not 0
    """

    embedding: End
    last: End
    anchored: bool
    words: tuple[str, ...]
    mislabelled: int | None = None


def anchor(sample: Sample, embedding: RowTable | None, head: TargetHead | None, layers: int | None) -> Anchors:
    """Hold point 0 against the target's embedding and its last point, `layers`, against its norm and head.

    Raises InputError as reading states and the target's weights does.
    """
    lowest = min(sample.points)
    first, about_first = _first(sample, embedding)
    mislabelled = None
    if lowest != 0 and embedding is not None and _embedding_share(sample, embedding, lowest)[0] >= AGREEMENT:
        first, mislabelled = "differs", lowest
        about_first = f"What the sample calls layer {lowest} is the target's embedding."
    last, about_last = _last(sample, head, layers)
    words = (about_first, about_last, _sum_up(sample, layers, head is not None, first, last))
    return Anchors(first, last, first == last == "equal", words, mislabelled)


def _sum_up(sample: Sample, layers: int | None, has_head: bool, first: End, last: End) -> str:
    if first == last == "equal":
        if layers is not None and sample.points == tuple(range(layers + 1)):
            return "Both ends are pinned and no layer is missing between them, so every label is right."
        return (
            "Both ends are pinned. The labels between them are taken as given: they are right unless the capture "
            "numbers inner layers otherwise than the ends."
        )
    if "differs" in (first, last):
        return (
            "The labels are not those of this target: what the sample calls layer 3 may be another layer, and the "
            "engine would be fed something else though everything here agrees. Check how the states were numbered "
            "(0 is the embedding, k the output of the k-th layer, the last taken before the final norm), and that "
            "--target is the model they were captured from."
        )
    missing = []
    if first == "absent":
        missing.append("capture the embedding (0)")
    if last == "absent":
        missing.append(f"capture the target's last layer ({layers}, before the final norm)")
    if first == "unknown" or (last == "unknown" and not has_head):
        missing.append("give --target with its weights")
    elif last == "unknown":
        missing.append("take a sample that holds the target's own choices (docs/samples.md)")
    return (
        "The labels are taken as given: what the sample calls layer 3 may be another layer, and the engine would then "
        f"be fed something else though everything here agrees. To pin them, {' and '.join(missing)}."
    )


# --- point 0 ------------------------------------------------------------------------------------------------


def _first(sample: Sample, embedding: RowTable | None) -> tuple[End, str]:
    if 0 not in sample.points:
        return "absent", "The sample has no states of the embedding."
    if embedding is None:
        return "unknown", "Point 0 is not held against the target's embedding, whose weights are not at hand."
    share, factor, count, coarse = _embedding_share(sample, embedding, 0)
    found = f"{share:.1%} of {count:,} tokens have its row"
    if share >= AGREEMENT:
        times = "" if factor == 1.0 else f" times {factor:.4g}, as targets have it that scale it"
        return "equal", f"Point 0 is the target's embedding{times} ({found})."
    if coarse:
        return "unknown", f"Point 0 is kept in fp8, too coarse to tell whether it is the target's embedding ({found})."
    needed = f"{AGREEMENT:.0%} are needed; rounding and one factor for all are allowed"
    return "differs", f"Point 0 is not the target's embedding: {found}, {needed}."


def _embedding_share(sample: Sample, embedding: RowTable, point: int) -> tuple[float, float, int, bool]:
    """How many of some tokens have the embedding's row at `point`, up to one factor for all; that factor, the number
    of tokens, and whether the states are too coarse (fp8) to tell.
    """
    states, rows, coarse = _rows(sample, embedding, point)
    tolerance = _COARSE if coarse else _ROUNDING
    factor = float((states * rows).sum() / rows.square().sum().clamp(min=1e-30))
    if abs(factor - 1) < tolerance:
        factor = 1.0
    gap = (states - factor * rows).norm(dim=-1)
    share = float((gap <= tolerance * abs(factor) * rows.norm(dim=-1)).float().mean())
    return (share if factor > 0 else 0.0), factor, len(rows), coarse


def _rows(sample: Sample, embedding: RowTable, point: int) -> tuple[Tensor, Tensor, bool]:
    """States of a point and the embedding's rows, [N, Ht] each, for some of the tokens, each once; whether in fp8."""
    places: dict[int, tuple[SampleSequence, int]] = {}
    for sequence in sample.sequences:
        for position, token in enumerate(sequence.tokens.tolist()):
            if len(places) < _ROWS and token not in places and token < embedding.shape[0]:
                places[token] = (sequence, position)
        if len(places) >= _ROWS:
            break
    states = [sequence.state(point, position, position + 1)[0].float() for sequence, position in places.values()]
    rows = torch.from_numpy(embedding.picked(list(places)))
    return torch.stack(states), rows, any(s.states.coarse for s, _ in places.values())


# --- the last point -----------------------------------------------------------------------------------------


def _last(sample: Sample, head: TargetHead | None, layers: int | None) -> tuple[End, str]:
    if layers is None:
        return "unknown", "Which point is the target's last is not known: its number of layers is not."
    if layers not in sample.points:
        return "absent", f"The sample has no states of the target's last layer, {layers}, before its final norm."
    if head is None:
        return "unknown", f"Layer {layers} is not held against the target's head, whose weights are not at hand."
    if sample.labels != "target" and sample.decoding != "greedy":
        why = "the file does not hold what the target would say, and its text need not be the target's first choice"
        return "unknown", f"Layer {layers} is not pinned: {why}."
    states, expected = _last_states(sample, head, layers)
    if not len(states):
        return "unknown", f"Layer {layers} is not pinned: no position counts."
    if head.is_normed(states):
        return "differs", f"Layer {layers} was taken after the target's final norm; the capture point lies before it."
    share, kind = _agreement(states, expected, head)
    what = "the stored choices of the target" if sample.labels == "target" else "the text that the target wrote"
    found = f"{share:.1%} of {len(states):,} positions"
    if share >= AGREEMENT:
        norm = "" if kind == head.kind else f"; a norm that applies {kind}"
        return "equal", f"Layer {layers} gives {what} through the target's final norm and head ({found}{norm})."
    agree = f"{found} agree, {AGREEMENT:.0%} are needed"
    return "differs", f"Layer {layers} does not give {what} through the target's final norm and head: {agree}."


def _last_states(sample: Sample, head: TargetHead, layers: int) -> tuple[Tensor, Tensor]:
    """States [N, Ht] of counted positions spread over the sample, and the choice [N] that belongs to each."""
    most = max(_LEAST, int(_WORK / (head.vocab_size * head.norm.shape[0])))
    # Position i is held against token i+1, which must be one that the target wrote.
    wanted = [(s, s.counts[1:].nonzero().flatten()) for s in sample.sequences]
    wanted = [(s, places) for s, places in wanted if len(places)][:: max(len(wanted) // most, 1)]
    share = min(most / max(sum(len(places) for _, places in wanted), 1), 1.0)
    states, expected = [torch.zeros(0, head.norm.shape[0])], [torch.zeros(0, dtype=torch.int64)]
    for sequence, places in wanted:
        chosen = places[: max(round(len(places) * share), 1)]
        first, stop = int(chosen[0]), int(chosen[-1]) + 1
        states.append(sequence.state(layers, first, stop)[chosen - first].float())
        following = sequence.target_next if sample.labels == "target" else sequence.tokens[1:]
        expected.append(following[chosen])
    return torch.cat(states), torch.cat(expected)


def _agreement(states: Tensor, expected: Tensor, head: TargetHead) -> tuple[float, NormKind]:
    """The best share of equal choices over the kinds of norm, that of the target's class first."""
    best, best_kind = 0.0, head.kind
    for kind in (head.kind, *(k for k in get_args(NormKind) if k not in (head.kind, "layer norm"))):
        share = float((head.with_kind(kind).choices(states) == expected).float().mean())
        if share > best:
            best, best_kind = share, kind
        if best >= AGREEMENT:
            break
    return best, best_kind

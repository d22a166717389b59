"""Runs forwards over a sample, block by block, side by side; memory does not grow with the sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from converter.forward.embedding import Embedding
from converter.forward.model import DraftModel, History, Piece, window
from converter.forward.scores import Outcome
from converter.forward.states import States

BLOCK = {"cpu": 512, "cuda": 4096}  # rows computed at once
FLOOR = 0.01  # share of probability spread over the whole vocabulary, so that no likelihood is zero


@dataclass(frozen=True)
class Side:
    """One forward of a drafter and what it takes from a sample.

    to_target   target id of each draft token, int64 [Vd], on the CPU
    """

    label: str
    model: DraftModel
    points: tuple[int, ...]
    embedding: Embedding
    to_target: Tensor
    vocab_size: int


@dataclass
class Difference:
    """A side against the first one, over all rows and steps: logits, and the tokens that they name."""

    logits: float = 0.0
    choices: int = 0
    rows: int = 0


@dataclass
class Evaluation:
    """outcomes of each sequence; difference from the first side; finite: False where a logit was no number."""

    outcomes: list[Outcome]
    difference: Difference = field(default_factory=Difference)
    finite: bool = True


@torch.inference_mode()
def evaluate(
    sides: Sequence[Side],
    sequences: Sequence[States],
    steps: int,
    advance: Callable[[int], None] = lambda rows: None,
) -> list[Evaluation]:
    """Run every side over every row of the sequences; `advance` is told of rows that are done."""
    results = [Evaluation([_empty(s, steps) for s in sequences]) for _ in sides]
    histories = [[History() for _ in sequences] for _ in sides]
    device = sides[0].model.device
    for batch in batches([len(s.tokens) - 1 for s in sequences], BLOCK[device.type]):
        captured: dict[int, Tensor] = {}
        for point in dict.fromkeys(p for side in sides for p in side.points):
            parts = [sequences[i].state(point, start, start + count) for i, start, count in batch]
            captured[point] = torch.cat(parts).to(device, sides[0].model.dtype)
        first: list[Tensor] = []
        for side, result, history in zip(sides, results, histories, strict=True):
            pieces = [Piece(start, count, history[i]) for i, start, count in batch]
            states = torch.cat([captured[p] for p in side.points], dim=-1)
            tokens = token_rows(side.embedding, [(sequences[i], start, count) for i, start, count in batch], steps)
            tokens = tokens.to(device, side.model.dtype)
            for step, normed in enumerate(side.model.steps(side.model.combine(states), tokens.unbind(), pieces)):
                logits = side.model.logits(normed)
                valid = _valid(sequences, batch, step).to(device)
                choices = side.to_target.to(device)[logits.argmax(-1)]
                _keep(result, sequences, batch, step, choices, likelihoods(side, logits, sequences, batch, step))
                result.finite = result.finite and bool(logits[valid].isfinite().all())
                if side is sides[0]:
                    first += [logits, choices]
                else:
                    _compare(result.difference, logits, choices, first[2 * step], first[2 * step + 1], valid)
        advance(sum(count for *_, count in batch))
    return results


def batches(lengths: Sequence[int], rows: int) -> Iterator[list[tuple[int, int, int]]]:
    """Pieces (sequence, start, count) in order, some of several sequences together, at most `rows` rows in all."""
    batch: list[tuple[int, int, int]] = []
    room = rows
    for i, length in enumerate(lengths):
        start = 0
        while start < length:
            count = min(room, length - start)
            batch.append((i, start, count))
            start, room = start + count, room - count
            if not room:
                yield batch
                batch, room = [], rows
    if batch:
        yield batch


def token_rows(embedding: Embedding, pieces: Sequence[tuple[States, int, int]], steps: int) -> Tensor:
    """[steps, N, H]: the embedding of x_{i+1+k} for row i of pieces (sequence, start, count); zeros past the end."""
    per_step: list[list[Tensor]] = [[] for _ in range(steps)]
    for sequence, start, count in pieces:
        stop = min(start + count + steps, len(sequence.tokens))
        rows = embedding.rows(sequence, start + 1, stop)
        for k in range(steps):
            per_step[k].append(window(rows, k, count))
    return torch.stack([torch.cat(parts) for parts in per_step])


def likelihoods(
    side: Side, logits: Tensor, sequences: Sequence[States], batch: Sequence[tuple[int, int, int]], step: int
) -> Tensor:
    """[N] log-probability of each row's label at this step, smoothed by FLOOR; label x: the target's choice."""
    labels = torch.cat([window_1d(sequences[i].target_next, start + 1 + step, count) for i, start, count in batch])
    return smoothed(logits, labels, draft_ids(side.to_target, side.vocab_size), side.vocab_size)


def draft_ids(to_target: Tensor, vocab_size: int) -> Tensor:
    """[V]: the draft id of each target id, -1 for those outside the draft vocabulary."""
    ids = torch.full((vocab_size,), -1, dtype=torch.int64)
    inside = (to_target >= 0) & (to_target < vocab_size)
    ids[to_target[inside]] = torch.arange(len(to_target))[inside]
    return ids


def smoothed(logits: Tensor, labels: Tensor, draft: Tensor, vocab_size: int) -> Tensor:
    """log(share of the label): (1 - FLOOR) softmax + FLOOR / V; labels are target ids [N]."""
    ids = draft[labels].to(logits.device)
    given = (logits.gather(1, ids.clamp(min=0)[:, None])[:, 0] - logits.logsumexp(-1)).exp()
    given = torch.where(ids >= 0, given, torch.zeros_like(given))
    return ((1 - FLOOR) * given + FLOOR / vocab_size).log()


def window_1d(values: Tensor, start: int, count: int) -> Tensor:
    """values[start : start + count], filled up with zeros past the end."""
    return window(values[:, None], start, count)[:, 0]


def _empty(sequence: States, steps: int) -> Outcome:
    rows = len(sequence.tokens) - 1
    return Outcome(
        sequence.tokens,
        sequence.counts,
        sequence.target_next,
        torch.full((steps, rows), -1, dtype=torch.int64),
        torch.full((steps, rows), float("nan")),
    )


def _valid(sequences: Sequence[States], batch: Sequence[tuple[int, int, int]], step: int) -> Tensor:
    """[N] bool: rows whose token of this step lies in the sequence."""
    return torch.cat(
        [torch.arange(start, start + count) + 1 + step < len(sequences[i].tokens) for i, start, count in batch]
    )


def _keep(
    result: Evaluation,
    sequences: Sequence[States],
    batch: Sequence[tuple[int, int, int]],
    step: int,
    choices: Tensor,
    likelihood: Tensor,
) -> None:
    offset, choices, likelihood = 0, choices.cpu(), likelihood.cpu()
    for i, start, count in batch:
        stop = min(start + count, len(sequences[i].tokens) - 1 - step)
        if stop > start:
            result.outcomes[i].choices[step, start:stop] = choices[offset : offset + stop - start]
            result.outcomes[i].likelihood[step, start:stop] = likelihood[offset : offset + stop - start]
        offset += count


def _compare(
    difference: Difference, logits: Tensor, choices: Tensor, first: Tensor, first_choices: Tensor, valid: Tensor
) -> None:
    if logits.shape != first.shape:
        difference.logits = float("inf")
    elif bool(valid.any()):
        gap = float((logits - first)[valid].abs().max())
        difference.logits = max(difference.logits, gap if gap == gap else float("inf"))
    difference.choices += int((choices != first_choices)[valid].sum())
    difference.rows += int(valid.sum())

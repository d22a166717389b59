"""Runs forwards over a sample, block by block, side by side; memory does not grow with the sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from converter.forward.embedding import Embedding
from converter.forward.model import DraftModel, History, Piece, window
from converter.forward.outcomes import Outcome
from converter.forward.states import States

BLOCK = {"cpu": 512, "cuda": 4096}  # rows computed at once
_CPU = torch.device("cpu")
FLOOR = 0.01  # share of probability spread over the whole vocabulary, so that no likelihood is zero


@dataclass(frozen=True)
class Side:
    """One forward of a drafter and what it takes from a sample.

    points      capture points in the order of fc's blocks
    to_target   target id of each draft token, int64 [Vd], on the CPU
    vocab_size  of the target
    """

    label: str
    model: DraftModel
    points: tuple[int, ...]
    embedding: Embedding
    to_target: Tensor
    vocab_size: int


@dataclass
class Difference:
    """A side against the first one, over all rows of all steps.

    logits    the largest absolute difference of logits
    choices   rows that name another token, of `rows`
    """

    logits: float = 0.0
    choices: int = 0
    rows: int = 0

    @property
    def changed(self) -> float:
        """The share of rows that name another token."""
        return self.choices / max(self.rows, 1)


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
    told: Callable[[int], None] = lambda done: None,
) -> list[Evaluation]:
    """Run every side over every row of the sequences; `told` hears how many are done.

    All sides are on one device, in one dtype. A sequence that goes on in the next block keeps its step-0 keys until
    its last row; nothing else is kept of a block but the outcomes.
    """
    results = [Evaluation([_empty(s, steps) for s in sequences]) for _ in sides]
    drafts = [draft_ids(side.to_target, side.vocab_size) for side in sides]
    histories: list[dict[int, History]] = [{} for _ in sides]
    device, dtype = sides[0].model.device, sides[0].model.dtype
    done = 0
    for batch in batches([len(s.tokens) - 1 for s in sequences], BLOCK[device.type]):
        spans = [(sequences[i], start, count) for i, start, count in batch]
        captured: dict[int, Tensor] = {}
        for point in dict.fromkeys(p for side in sides for p in side.points):
            parts = [sequence.state(point, start, start + count) for sequence, start, count in spans]
            captured[point] = torch.cat(parts).to(device, dtype)
        tokens = {
            embedding: token_rows(embedding, spans, steps, device, dtype)
            for embedding in dict.fromkeys(side.embedding for side in sides)
        }
        runs = []
        for side, history in zip(sides, histories, strict=True):
            pieces = [Piece(start, count, history.setdefault(i, History())) for i, start, count in batch]
            combined = side.model.combine(torch.cat([captured[p] for p in side.points], dim=-1))
            runs.append(side.model.steps(combined, tokens[side.embedding].unbind(), pieces))
        # All sides take a step before any takes the next, so that the logits of one step are held and not of all.
        for step in range(steps):
            labels = torch.cat([window_1d(s.target_next, start + 1 + step, count) for s, start, count in spans])
            valid = _valid(sequences, batch, step)
            first: tuple[Tensor, Tensor] | None = None
            for side, run, draft, result in zip(sides, runs, drafts, results, strict=True):
                logits = side.model.logits(next(run))
                choices = side.to_target[logits.argmax(-1).cpu()]
                likelihood = smoothed(logits, labels, draft, side.vocab_size)
                _keep(result, sequences, batch, step, choices, likelihood)
                result.finite = result.finite and bool(_finite(logits)[valid].all())
                if first is None:
                    first = logits, choices
                else:
                    _compare(result.difference, logits, choices, *first, valid)
        for history in histories:
            for i, start, count in batch:
                if start + count == len(sequences[i].tokens) - 1:
                    del history[i]
        done += sum(count for *_, count in batch)
        told(done)
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


def token_rows(
    embedding: Embedding,
    pieces: Sequence[tuple[States, int, int]],
    steps: int,
    device: torch.device = _CPU,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """[steps, N, H]: the embedding of x_{i+1+k} for row i of pieces (sequence, start, count); zeros past the end."""
    per_step: list[list[Tensor]] = [[] for _ in range(steps)]
    for sequence, start, count in pieces:
        stop = min(start + count + steps, len(sequence.tokens))
        rows = embedding.rows(sequence, start + 1, stop).to(device, dtype)
        for k in range(steps):
            per_step[k].append(window(rows, k, count))
    return torch.stack([torch.cat(parts) for parts in per_step])


def draft_ids(to_target: Tensor, vocab_size: int) -> Tensor:
    """[V]: the draft id of each target id, -1 for those outside the draft vocabulary."""
    ids = torch.full((vocab_size,), -1, dtype=torch.int64)
    inside = (to_target >= 0) & (to_target < vocab_size)
    ids[to_target[inside]] = torch.arange(len(to_target))[inside]
    return ids


def smoothed(logits: Tensor, labels: Tensor, draft: Tensor, vocab_size: int) -> Tensor:
    """[N]: log(share of the label), (1 - FLOOR) softmax + FLOOR / V.

    logits  [N, Vd]
    labels  [N] int64, target ids, on the CPU
    draft   [V] int64, as `draft_ids` gives it
    """
    ids = draft[labels].to(logits.device)
    given = (logits.gather(1, ids.clamp(min=0)[:, None])[:, 0] - logits.logsumexp(-1)).exp()
    given = torch.where(ids >= 0, given, torch.zeros_like(given))
    return ((1 - FLOOR) * given + FLOOR / vocab_size).log()


def window_1d(values: Tensor, start: int, count: int) -> Tensor:
    """[count]: values[start : start + count] of [T], filled up with zeros past the end."""
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


def _finite(logits: Tensor) -> Tensor:
    """[N] bool: every logit of the row is a number. The extremes tell, without a copy."""
    return (logits.amin(-1).isfinite() & logits.amax(-1).isfinite()).cpu()


def _keep(
    result: Evaluation,
    sequences: Sequence[States],
    batch: Sequence[tuple[int, int, int]],
    step: int,
    choices: Tensor,
    likelihood: Tensor,
) -> None:
    offset, likelihood = 0, likelihood.cpu()
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
        gap = float((logits - first).abs_().amax(-1).cpu()[valid].max())
        difference.logits = max(difference.logits, gap if gap == gap else float("inf"))
    difference.choices += int((choices != first_choices)[valid].sum())
    difference.rows += int(valid.sum())

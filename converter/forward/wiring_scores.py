"""Scores many wirings on the same stretches of a sample.

fc is linear: each captured state goes through each of its blocks once, and a wiring is a sum of such products. So
all layers of a large target cost (layers x blocks) matrix products and not one for each choice of layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from converter.forward.damage import DAMAGES
from converter.forward.embedding import Embedding
from converter.forward.evaluate import Side, draft_ids, smoothed, token_rows, window_1d
from converter.forward.model import DraftModel, Piece, after_lead
from converter.forward.states import States
from converter.forward.wiring import Wiring

CONTEXT = 64  # rows before the first that counts: the same for all wirings, so less of it favours none
SETTLED = 8  # rows at the front of a sequence that are left out: the first ones have next to nothing to attend to
STRETCH = 64  # rows that count in one stretch of text
_TOGETHER = 2048  # rows of several wirings that are computed at once
MOST = 4096  # positions looked at where nothing is decided earlier


@dataclass(frozen=True)
class Stretch:
    """Rows start..stop-1 of a sequence, of which those from `first` on are scored.

    sequence    its place in the sample
    positions   rows that are scored: those of them that count
    """

    sequence: int
    start: int
    first: int
    stop: int
    positions: int


def stretches(sequences: Sequence[States]) -> list[Stretch]:
    """Stretches of all sequences, the first of each, then the second of each, and so on."""
    turns: list[list[Stretch]] = []
    for i, sequence in enumerate(sequences):
        counted = [r for r in torch.nonzero(sequence.counts[1:])[:, 0].tolist() if r >= SETTLED]
        for turn, rows in enumerate(_runs(counted)):
            turns += [[]] if turn == len(turns) else []
            turns[turn].append(Stretch(i, max(0, rows[0] - CONTEXT), rows[0], rows[-1] + 1, len(rows)))
    return [s for turn in turns for s in turn]


def _runs(rows: Sequence[int]) -> Iterator[list[int]]:
    """At most STRETCH rows together, and none across a gap of as many."""
    run: list[int] = []
    for row in rows:
        if run and (len(run) == STRETCH or row - run[-1] > STRETCH):
            yield run
            run = []
        run.append(row)
    if run:
        yield run


def groups(parts: Sequence[Stretch], sizes: Sequence[int]) -> Iterator[list[Stretch]]:
    """Stretches in turn, in groups of about `sizes` positions (the last size again and again), up to MOST in all."""
    group: list[Stretch] = []
    held, total, number = 0, 0, 0
    for part in parts:
        group.append(part)
        held, total = held + part.positions, total + part.positions
        if held >= sizes[min(number, len(sizes) - 1)]:
            yield group
            group, held, number = [], 0, number + 1
        if total >= MOST:
            break
    if group:
        yield group


class WiringScorer:
    """Scores wirings of one drafter on a group of stretches; what a wiring needs of them is held in memory.

    side        the reference, whose weights, map and embedding are used unless a wiring says otherwise
    steps       draft steps, K
    maps        name -> [Vd] target ids, for Wiring.map
    embeddings  name -> rows, for Wiring.embedding
    """

    def __init__(
        self,
        side: Side,
        sequences: Sequence[States],
        parts: Sequence[Stretch],
        steps: int,
        maps: Mapping[str, Tensor],
        embeddings: Mapping[str, Embedding],
    ) -> None:
        self._side, self._sequences, self._parts, self._steps = side, sequences, parts, steps
        self._maps = {"": side.to_target, **maps}
        self._draft = {name: draft_ids(ids, side.vocab_size) for name, ids in self._maps.items()}
        self._embeddings = {"": side.embedding, **embeddings}
        self._spans = [(sequences[p.sequence], p.start, p.stop - p.start) for p in parts]
        self._tokens: dict[str, Tensor] = {}
        self._squares: dict[int, Tensor] = {}  # [N, 1] mean squares of the states
        self._blocks: dict[tuple[int, int, tuple[bool, bool]], Tensor] = {}
        scored, unit, labels = [], [], []
        for number, (part, (sequence, start, count)) in enumerate(zip(parts, self._spans, strict=True)):
            rows = torch.arange(start, start + count)
            scored.append(
                torch.stack(
                    [(rows >= part.first) & window_1d(sequence.counts, start + 1 + k, count) for k in range(steps)]
                )
            )
            unit.append(torch.full((count,), number))
            labels.append(torch.stack([window_1d(sequence.target_next, start + 1 + k, count) for k in range(steps)]))
        self.scored = torch.cat(scored, dim=1)  # [K, N]: rows that count at each step
        self.scored[1:] &= self.scored[0]
        self.unit, self._labels = torch.cat(unit), torch.cat(labels, dim=1)

    def likelihoods(self, wirings: Iterable[Wiring], steps: int | None = None) -> Iterator[tuple[Wiring, Tensor]]:
        """Each wiring with the log-probability of each label, [K, N]; 0 where the row does not count at that step.

        Those that differ in the states alone go through the layers side by side.
        """
        alike: dict[Wiring, list[Wiring]] = {}
        for wiring in wirings:
            alike.setdefault(replace(wiring, points=(), shift=0, control=False), []).append(wiring)
        most = max(_TOGETHER // max(len(self.unit), 1), 1)
        for group in alike.values():
            for first in range(0, len(group), most):
                together = group[first : first + most]
                yield from zip(together, self._together(together, steps or self._steps), strict=True)

    @torch.inference_mode()
    def _together(self, wirings: Sequence[Wiring], steps: int) -> Tensor:
        """[wirings, K, N]: likelihoods of wirings that differ in points, shift and control alone."""
        like, count = wirings[0], len(wirings)
        spec, weights = like.spec(self._side.model.spec), self._side.model.weights
        model = DraftModel(spec, DAMAGES[like.damage](spec, weights) if like.damage else weights)
        pieces = [Piece(0, p.stop - p.start, lead=p.first - p.start) for p in [*self._parts] * count]
        asking = after_lead(pieces)
        combined = torch.cat([self._combined(wiring, model) for wiring in wirings])
        tokens = self._token_rows(like.embedding)[:steps].repeat(1, count, 1).unbind()
        result = torch.zeros(steps, count, len(self.unit))
        for k, normed in enumerate(model.steps(combined, tokens, pieces)):
            kept = self.scored[k].repeat(count)
            logits = model.logits(normed[kept[asking].to(normed.device)])
            labels = self._labels[k].repeat(count)[kept]
            given = smoothed(logits, labels, self._draft[like.map], self._side.vocab_size)
            result[k].view(-1)[kept] = given.cpu()
        return result.transpose(0, 1)

    def _token_rows(self, name: str) -> Tensor:
        if name not in self._tokens:
            rows = token_rows(self._embeddings[name], self._spans, self._steps)
            self._tokens[name] = rows.to(self._side.model.device, self._side.model.dtype)
        return self._tokens[name]

    def _combined(self, wiring: Wiring, model: DraftModel) -> Tensor:
        """[N, H]: what DraftModel.combine gives for these points, as a sum over the blocks of fc."""
        spec = model.spec
        total = sum(
            (self._block(model, j, point) for j, point in enumerate(wiring.points)),
            start=torch.zeros((), device=model.device),
        )
        if spec.norm_before_fc:
            squares = torch.stack([self._squares[p] for p in wiring.points]).mean(0)
            total = total * torch.rsqrt(squares + spec.rms_norm_eps)
        if wiring.shift:
            rows = torch.arange(len(total), device=total.device) - wiring.shift
            # The first row of a stretch keeps its own state: one of many.
            total = total[rows.clamp(0, len(total) - 1)]
        if wiring.control:
            total = total.roll(len(total) // 2, 0)
        bias = model.weights.get("fc.bias")
        return (total if bias is None else total + bias.float()).to(model.dtype)

    def _block(self, model: DraftModel, j: int, point: int) -> Tensor:
        """[N, H]: the state at `point` through block j of fc, with the norm weights that belong to the block."""
        norms = model.spec.norm_before_fc, model.spec.fc_norm
        if (j, point, norms) not in self._blocks:
            # Through all blocks while the states are here: kept are [N, H] a block, and not the states of all layers.
            state = self._state(point)
            self._squares[point] = state.pow(2).mean(-1, keepdim=True)
            for block in range(model.spec.num_points):
                self._blocks[block, point, norms] = self._project(model, block, state)
        return self._blocks[j, point, norms]

    def _state(self, point: int) -> Tensor:
        """[N, Ht] in fp32: sums of a few projections should not round differently from one product."""
        parts = [s.state(point, start, start + count) for s, start, count in self._spans]
        return torch.cat(parts).to(self._side.model.device).float()

    @staticmethod
    def _project(model: DraftModel, j: int, state: Tensor) -> Tensor:
        spec, weights = model.spec, model.weights
        columns = slice(j * spec.target_hidden_size, (j + 1) * spec.target_hidden_size)
        if spec.norm_before_fc:
            state = state * weights["input_norm.weight"][columns].float()
        if spec.fc_norm:
            scale = torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + spec.rms_norm_eps)
            state = state * scale * weights[f"fc_norm.{j}.weight"].float()
        weight = weights["fc.weight"][:, columns]
        return F.linear(state.to(weight.dtype), weight).float()

"""Samples: tokens with the target's hidden states for them, in this project's own format.

A safetensors file with, for each sequence k: `sK.input_ids` [T], `sK.hidden_states` [P, T, Ht], `sK.loss_mask` [T]
(1 = a token that counts) and `sK.target_next` (or `target_greedy_next`) [T], the target's choice over its full
vocabulary after each position. The metadata key `capture_points` says which point each of the P states is; without
it they are 0..P-1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from converter.checkpoint.header import FLOATS, INTEGERS
from converter.checkpoint.reader import Checkpoint, open_checkpoint
from converter.drafter.points import describe_points
from converter.drafter.spec import DrafterSpec
from converter.errors import InputError
from converter.findings import error
from converter.forward.weights import tensor

_NEXT = ("target_next", "target_greedy_next")


@dataclass(frozen=True)
class SampleSequence:
    """tokens [T] int64, counts [T] bool, target_next [T] int64; states are read when asked for."""

    name: str
    tokens: Tensor
    counts: Tensor
    target_next: Tensor
    checkpoint: Checkpoint
    points: tuple[int, ...]

    def state(self, point: int) -> Tensor:
        """[T, Ht] in fp32."""
        return tensor(self.checkpoint, f"{self.name}.hidden_states", self.points.index(point)).float()


@dataclass(frozen=True)
class Sample:
    path: Path
    points: tuple[int, ...]
    sequences: tuple[SampleSequence, ...]

    @property
    def positions(self) -> int:
        """Positions that step 0 is scored on."""
        return sum(int(s.counts[1:].sum()) for s in self.sequences)


def read_sample(path: Path, spec: DrafterSpec) -> Sample:
    """Open a sample and hold it against the drafter.

    Raises InputError: F120 no sample, F121 of another target, F122 lacks a capture point, F123 nothing to score.
    """
    if not path.exists():
        raise InputError(error("F100", f"the sample {path} does not exist", where=str(path), fix=("check the path",)))
    checkpoint = open_checkpoint(path)
    names = sorted(
        (n[: -len(".hidden_states")] for n in checkpoint.tensors if n.endswith(".hidden_states")), key=_natural
    )
    if not names:
        raise _no_sample(path, "it has no tensor sK.hidden_states")
    points = _points(path, checkpoint, names[0])
    sequences = tuple(_sequences(path, checkpoint, names, points, spec))
    missing = [p for p in dict.fromkeys(spec.capture_points) if p not in points]
    if missing:
        raise InputError(
            error(
                "F122",
                f"the sample has no states of {describe_points(tuple(missing))}",
                where=str(path),
                found=f"states of {describe_points(points)}",
                expected=f"the drafter's {describe_points(spec.capture_points)}",
                fix=("capture these states too, or correct the drafter's capture points with --aux",),
            )
        )
    sample = Sample(path, points, sequences)
    if sample.positions == 0:
        raise InputError(
            error(
                "F123",
                "no position of the sample counts, so nothing could be measured",
                where=str(path),
                found="loss_mask is zero everywhere",
                expected="1 at the tokens that the target wrote",
            )
        )
    return sample


def _natural(name: str) -> tuple[int, str]:
    return (len(name), name)


def _points(path: Path, checkpoint: Checkpoint, name: str) -> tuple[int, ...]:
    shape = checkpoint.tensors[f"{name}.hidden_states"].info.shape
    count = shape[0] if shape else 0
    stated = next((m["capture_points"] for m in checkpoint.metadata.values() if "capture_points" in m), None)
    if stated is None:
        return tuple(range(count))
    parts = stated.replace(",", " ").split()
    digits = all(p.isascii() and p.isdigit() and len(p) < 7 for p in parts)
    if not digits or len(parts) != count or len({int(p) for p in parts}) != count:
        raise _no_sample(path, f"its capture_points {stated[:60]!r} do not name {count} different points")
    return tuple(int(p) for p in parts)


def _sequences(
    path: Path, checkpoint: Checkpoint, names: list[str], points: tuple[int, ...], spec: DrafterSpec
) -> Iterator[SampleSequence]:
    for name in names:
        following = next((f"{name}.{n}" for n in _NEXT if f"{name}.{n}" in checkpoint.tensors), f"{name}.{_NEXT[0]}")
        for needed in (f"{name}.input_ids", f"{name}.loss_mask", following):
            if needed not in checkpoint.tensors:
                raise _no_sample(path, f"it has no tensor {needed}")
        infos = {n: checkpoint.tensors[n].info for n in (f"{name}.input_ids", f"{name}.loss_mask", following)}
        states = checkpoint.tensors[f"{name}.hidden_states"].info
        lengths = {info.shape for info in infos.values()}
        if any(info.dtype != "BOOL" and info.dtype not in INTEGERS for info in infos.values()):
            raise _no_sample(path, f"tokens, mask and choices of {name} must be integers or booleans")
        if len(states.shape) != 3 or lengths != {states.shape[1:2]} or states.shape[0] != len(points):
            found = ", ".join(str(list(s)) for s in sorted(lengths))
            raise _no_sample(
                path, f"the tensors of {name} do not belong together: states {list(states.shape)}, {found}"
            )
        if states.dtype not in FLOATS:
            raise _no_sample(path, f"the states of {name} are {states.dtype}, not floating point")
        if states.shape[2] != spec.target_hidden_size:
            raise _other_target(path, f"states {states.shape[2]} wide", f"{spec.target_hidden_size} wide")
        tokens = tensor(checkpoint, f"{name}.input_ids").long()
        counts = tensor(checkpoint, f"{name}.loss_mask").bool()
        target_next = tensor(checkpoint, following).long()
        for ids in (tokens, target_next):
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < spec.vocab_size:
                found = f"tokens from {int(ids.min()):,} to {int(ids.max()):,}"
                raise _other_target(path, found, f"a vocabulary of {spec.vocab_size:,}")
        yield SampleSequence(name, tokens, counts, target_next, checkpoint, points)


def _no_sample(path: Path, what: str) -> InputError:
    return InputError(
        error(
            "F120",
            f"{path} is no sample: {what}",
            where=str(path),
            expected="sK.input_ids, sK.hidden_states, sK.loss_mask and sK.target_next for each sequence K",
        )
    )


def _other_target(path: Path, found: str, expected: str) -> InputError:
    return InputError(
        error(
            "F121",
            "the sample was captured from another target",
            where=str(path),
            found=found,
            expected=f"{expected}, as the drafter's config says",
        )
    )


def embeddings(sequence: SampleSequence, own: Tensor | None, device: torch.device) -> Tensor | None:
    """Embedding rows [T, H] of the sequence's tokens: from `own` [V, H], else from point 0; None without either."""
    if own is not None:
        return own[sequence.tokens.to(own.device)]
    return sequence.state(0).to(device) if 0 in sequence.points else None

"""Proof on a sample: the reference forward of the input against the engine's forward of the staged output.

Reference: the canonical drafter with the input's bytes. Engine: the files as written, read back and put together
by the engine's rules (names it drops stay unloaded, flags it ignores are ignored, ids select what they select, its
choice of embedding). Both in fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from converter.checkpoint.reader import Checkpoint
from converter.drafter.drafter import Drafter
from converter.drafter.layout import expected_tensors
from converter.drafter.spec import DrafterSpec
from converter.drafter.vocab import VocabularyMap
from converter.errors import UsageError
from converter.findings import Finding, error
from converter.forward.model import DraftModel
from converter.forward.rope import NotComputable
from converter.forward.sample import Sample, SampleSequence, embeddings
from converter.forward.weights import weights_of

STEPS = 3
TOLERANCE = 1e-3  # logits, fp32; the same sums in another order differ by about 1e-5
_ENOUGH = 100  # positions of which a drafter that was trained at all gets some right


@dataclass(frozen=True)
class Scores:
    """right[k]: rows right at all steps 0..k, against the target's choice over its full vocabulary.

    rows[k]: rows that step k is scored on.
    """

    right: tuple[int, ...]
    rows: tuple[int, ...]

    @property
    def accuracy(self) -> tuple[float, ...]:
        return tuple(a / b for a, b in zip(self.right, self.rows, strict=True) if b)


@dataclass(frozen=True)
class Proof:
    """What was measured.

    level       none or agreement (docs/design.md, "Proof")
    difference  largest absolute difference of logits, reference against engine, over steps 0..2
    embedding   whose embedding rows the engine's forward used
    """

    level: str
    scores: Scores | None
    difference: float | None
    sequences: int
    device: str
    embedding: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class EngineSide:
    """The output as an engine release sees it; `names` is canonical -> name in `checkpoint`."""

    label: str
    spec: DrafterSpec
    checkpoint: Checkpoint
    names: Mapping[str, str]
    takes_target_embedding: bool


def choose_device(wanted: str) -> torch.device:
    """auto: CUDA where there is one, else CPU. Raises UsageError where the device does not exist."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        if device.type not in ("cpu", "cuda"):
            raise UsageError(f"--device {wanted}: expected auto, cpu, cuda or cuda:n")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as problem:
        raise UsageError(f"--device {wanted}: {str(problem).splitlines()[0]}") from problem
    return device


def prove(
    drafter: Drafter, engine: EngineSide | None, sample: Sample, device: torch.device, min_accuracy: float | None
) -> Proof:
    """Run the sample through both forwards (through the reference alone where `engine` is None) and score it."""
    if drafter.quantised:
        return _not_proved("quantised weights", device)
    try:
        reference = _Runner(drafter.spec, drafter.checkpoint, drafter.tensors, device)
        staged = None if engine is None else _Runner(engine.spec, engine.checkpoint, engine.names, device)
    except NotComputable as problem:
        return _not_proved(str(problem), device)
    own_rows = reference.weights.get("embed_tokens.weight")
    if own_rows is None and 0 not in sample.points:
        return _not_proved("embedding rows: neither the drafter nor the sample (point 0) has them", device)
    target_rows = engine is not None and engine.takes_target_embedding and 0 in sample.points
    unseen = engine is not None and engine.takes_target_embedding and not target_rows
    if unseen and own_rows is not None and drafter.embedding != "target's":
        return _not_proved(
            "the target's embedding, which the engine uses: give --target with its weights or point 0 in the sample",
            device,
        )
    to_target = _target_ids(drafter.vocab, device)
    right, rows = [0] * STEPS, [0] * STEPS
    difference: float | None = None
    embedding_gap, finite = 0.0, True
    for sequence in sample.sequences:
        embeds = embeddings(sequence, own_rows, device)
        assert embeds is not None
        logits = reference.logits(sequence, embeds)
        if staged is not None:
            theirs = sequence.state(0).to(device) if target_rows else embeds
            embedding_gap = max(embedding_gap, _largest(embeds - theirs))
            engine_logits = staged.logits(sequence, theirs)
            gap = max((_largest(a - b) for a, b in zip(logits, engine_logits, strict=True)), default=0.0)
            difference = max(difference or 0.0, gap)
            logits = engine_logits
        finite = finite and all(bool(step.isfinite().all()) for step in logits)
        _score(sequence, logits, to_target, right, rows)
    if not finite:
        return Proof("none", None, None, 0, str(device), "", (_not_finite(),))
    findings = []
    if engine is not None and difference is not None and difference > TOLERANCE:
        findings.append(_disagrees(engine, difference, embedding_gap))
    scores = Scores(tuple(right), tuple(rows))
    if min_accuracy is not None and scores.accuracy[0] < min_accuracy:
        findings.append(_too_low(scores, min_accuracy))
    if not scores.right[0] and scores.rows[0] >= _ENOUGH:
        findings.append(_never_right(scores.rows[0]))
    agrees = engine is not None and not any(f.code == "N102" for f in findings)
    source = "the target's (point 0 of the sample)" if target_rows or own_rows is None else "the drafter's own"
    level = "agreement" if agrees else "none"
    return Proof(level, scores, difference, len(sample.sequences), str(device), source, tuple(findings))


class _Runner:
    """A model and the states that it takes from a sample."""

    def __init__(
        self, spec: DrafterSpec, checkpoint: Checkpoint, names: Mapping[str, str], device: torch.device
    ) -> None:
        self.weights = weights_of(spec, checkpoint, names, device)
        for name, expected in expected_tensors(spec).items():
            weight = self.weights.get(name)
            if weight is None and not expected.optional:
                raise NotComputable(f"{name}, which is left at its initial value")
            if weight is not None and tuple(weight.shape) != expected.shape:
                raise NotComputable(f"{name}, which has another shape than the config implies")
        self._model = DraftModel(spec, self.weights)
        self._points = spec.capture_points
        self._device = device

    def logits(self, sequence: SampleSequence, embeds: Tensor) -> list[Tensor]:
        states = torch.cat([sequence.state(p) for p in self._points], dim=-1).to(self._device)
        return self._model.run(embeds, states, STEPS)


def _target_ids(vocabulary: VocabularyMap | None, device: torch.device) -> Tensor | None:
    return None if vocabulary is None else torch.from_numpy(vocabulary.ids).to(device)


def _score(
    sequence: SampleSequence, logits: list[Tensor], to_target: Tensor | None, right: list[int], rows: list[int]
) -> None:
    """Row i of step k is right where it names the target's choice after position i+1+k."""
    correct: Tensor | None = None
    for step, step_logits in enumerate(logits):
        choice = step_logits.argmax(-1)
        choice = choice if to_target is None else to_target[choice]
        first = 1 + step
        hit = choice == sequence.target_next[first:].to(choice.device)
        correct = hit if correct is None else correct[: len(hit)] & hit
        counts = sequence.counts[first:].to(choice.device)
        right[step] += int((correct & counts).sum())
        rows[step] += int(counts.sum())


def _largest(gap: Tensor) -> float:
    """The largest absolute value, 0 of nothing; what is not a number counts as infinite."""
    return float(gap.abs().nan_to_num(float("inf")).max()) if gap.numel() else 0.0


def _not_proved(what: str, device: torch.device) -> Proof:
    finding = error(
        "N104",
        f"the forward pass cannot be computed: {what}",
        why="without it nothing is proved; convert without --sample to go on unproved",
    )
    return Proof("none", None, None, 0, str(device), "", (finding,))


def _not_finite() -> Finding:
    return error(
        "N103",
        "the drafter computes values that are no numbers on this sample",
        where="logits",
        found="NaN or infinity",
        why="a weight or a state of the sample is NaN or infinite, or overflows; no draft token means anything then",
    )


def _disagrees(engine: EngineSide, difference: float, embedding_gap: float) -> Finding:
    if embedding_gap > 0:
        return error(
            "N102",
            f"{engine.label} would compute other logits than the trainer: it uses the target's embedding",
            where="embed_tokens.weight",
            found=f"rows differ by up to {embedding_gap:.3g} from point 0 of the sample, logits by {difference:.3g}",
            expected=f"logits within {TOLERANCE:g}",
            why="the drafter's embedding was trained further, and this engine replaces it by the target's",
        )
    return error(
        "N102",
        f"{engine.label} would compute other logits than the trainer",
        found=f"logits differ by up to {difference:.3g}",
        expected=f"at most {TOLERANCE:g}",
        why="the converted drafter is not the one that was trained",
    )


def _never_right(rows: int) -> Finding:
    return error(
        "N105",
        f"the drafter is right at none of {rows:,} positions",
        where="step 0",
        why="it is not trained, damaged, or of another target; the engine would compute it as it is, and reject it",
        fix=("check that the checkpoint is the trained one, and that the sample is of its target",),
    )


def _too_low(scores: Scores, least: float) -> Finding:
    return error(
        "N101",
        f"step-0 accuracy is {scores.accuracy[0]:.1%}, below --min-accuracy {least:.1%}",
        where="--min-accuracy",
        found=f"{scores.right[0]:,} of {scores.rows[0]:,} positions",
        expected=f"at least {least:.1%}",
        why="the wiring may not be the one it was trained with, or the drafter is that weak",
        fix=("compare with the training run: its capture points (--aux), and its own validation accuracy",),
    )


def as_json(proof: Proof, sample: Sample | None) -> dict[str, Any]:
    """The `proof` object of report and seal."""
    scores = proof.scores
    return {
        "level": proof.level,
        "sample": None
        if sample is None
        else {"path": str(sample.path), "sequences": proof.sequences, "points": list(sample.points)},
        "scores": None
        if scores is None
        else {
            "definition": "rows right at all steps 0..k against the target's choice over its full vocabulary",
            "right": list(scores.right),
            "rows": list(scores.rows),
            "accuracy": list(scores.accuracy),
        },
        "largest_logit_difference": proof.difference,
        "embedding": proof.embedding,
        "device": proof.device,
    }

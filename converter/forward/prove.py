"""Proof: the trainer's forward of the input against each engine's forward of its files, and the wiring on a sample.

Reference: the canonical drafter with the input's bytes. Engine: the files as written, read back and put together
by the engine's rules (names it drops stay unloaded, flags it ignores are ignored, ids select what they select, its
choice of embedding). How far a proof reaches: docs/design.md, "Proof".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from converter.drafter.drafter import Drafter
from converter.drafter.vocab import read_both_ways
from converter.findings import Finding, Level
from converter.forward import proof_findings as findings_of
from converter.forward.anchor import Anchors, anchor
from converter.forward.controls import frequency_contrast, no_worse
from converter.forward.device import dtype_for
from converter.forward.disagreement import disagreement, longest, names_others, only_windows_move
from converter.forward.evaluate import Evaluation, Side, evaluate
from converter.forward.rope import NotComputable
from converter.forward.sample import Sample
from converter.forward.scores import Scores, score
from converter.forward.scores import as_json as scores_json
from converter.forward.search import Alternatives, Judge, Judgement
from converter.forward.sides import EngineFiles, Surroundings, engine, loaded_map, reference
from converter.forward.states import States, random_states
from converter.forward.target_head import TargetHead
from converter.forward.unlike import measure
from converter.forward.weights import EMBEDDING
from converter.forward.wiring import Wiring, declared, flippable
from converter.target_weights import TargetWeights

TOLERANCE = 1e-3  # logits in fp32, reference against engine; the same sums in another order differ by about 1e-5
_COMPARED = 4096  # rows on which forwards are compared where scores are computed in less than fp32
STEPS = 3
_RANDOM = (96, 96)  # tokens of each sequence of random states
_ENOUGH = 100  # positions of which a drafter that was trained at all gets some right


@dataclass(frozen=True)
class Question:
    """What is to be proved and on what.

    refused        engines that cannot serve it: what that would cost is measured, and nothing is proved of them
    as_it_is       engines that may serve the files as they lie there: whether they compute what was trained
    sample         None: random states, which show agreement and nothing else
    target         embedding, head and norm of the target where they are at hand
    head           the last two of them as what they choose
    layers         of the target, None where unknown
    rope_theta     of the target, None where unknown
    steps          draft steps to run
    judgement      what a search of the wiring found, where there was one, and the wiring that was declared before it
    unlike         what the trainer computed and no engine does (unlike.COMPUTED), with the finding that says so
    """

    drafter: Drafter
    engines: Sequence[EngineFiles]
    refused: Sequence[EngineFiles]
    sample: Sample | None
    target: TargetWeights | None
    head: TargetHead | None
    layers: int | None
    device: torch.device
    steps: int = STEPS
    rope_theta: float | None = None
    min_accuracy: float | None = None
    judgement: Judgement | None = None
    declared: Wiring | None = None
    unlike: tuple[str, Finding] | None = None
    as_it_is: Sequence[EngineFiles] = ()


@dataclass(frozen=True)
class Agreement:
    """Of one engine: the largest difference of logits, and the share of rows that name another token."""

    engine: str
    difference: float
    changed: float

    def as_json(self) -> dict[str, Any]:
        """A row of `proof.engines` in report and seal."""
        return {"engine": self.engine, "largest_logit_difference": self.difference, "choices_changed": self.changed}


@dataclass(frozen=True)
class Proof:
    """What was measured.

    level       how far it reaches
    scores      of the engine's forward, of the trainer's where no engine's was run; None on random states
    agreements  one per engine whose forward was run
    embedding   whose embedding rows the scored forward used
    judgement   the neighbours of the declared wiring, or what a search found
    costs       engine that cannot serve it, and what it would do to the drafts
    as_it_is    engine that was run on the files as they lie there, and what it does otherwise; None where nothing
    """

    level: Level
    findings: tuple[Finding, ...]
    device: str
    scores: Scores | None = None
    agreements: tuple[Agreement, ...] = ()
    sequences: int = 0
    embedding: str = ""
    anchors: Anchors | None = None
    judgement: Judgement | None = None
    searched: bool = False
    costs: tuple[tuple[str, Finding], ...] = ()
    as_it_is: tuple[tuple[str, Finding | None], ...] = ()

    @property
    def difference(self) -> float | None:
        """The largest of the engines' differences of logits; None where no engine's forward was run."""
        return max((a.difference for a in self.agreements), default=None)


def prove(question: Question, told: Callable[[str], None] = lambda what: None) -> Proof:
    """Run all forwards, hold them against each other, score them, and judge the wiring; `told` hears how far it is.

    Raises InputError where a state of the sample or a row of the target cannot be read.
    """
    drafter, sample, device = question.drafter, question.sample, question.device
    sequences: Sequence[States] = sample.sequences if sample is not None else _random(question)
    # Agreement is a matter of fp32: in bf16 a flag that is ignored can hide in the rounding.
    exact = dtype_for(device) == torch.float32 or sample is None
    around = _around(question, sequences if exact else longest(sequences, _COMPARED), torch.float32)
    try:
        first = reference(drafter, around)
    except NotComputable as problem:
        return Proof("none", (findings_of.not_computable(str(problem)),), str(device))
    found: list[Finding] = []
    runs: list[_Run] = []
    lying: dict[str, Finding | None] = {}
    for files in (*question.engines, *question.refused, *question.as_it_is):
        same = next((run for run in runs if _computes_the_same(files, run.files, drafter)), None)
        try:
            _needs_states(files, sequences)
            runs.append(_Run(files, same.side if same else engine(files, drafter, first, around), same))
        except NotComputable as problem:
            if files.as_it_is:
                lying[files.engine] = findings_of.not_computable(str(problem), files.engine)
            elif files in question.engines:
                found.append(findings_of.not_computable(str(problem), files.engine))
    alone = [run for run in runs if run.same is None]
    total = sum(len(s.tokens) - 1 for s in around.sequences)
    trained, *evaluations = evaluate(
        [first, *(run.side for run in alone)],
        around.sequences,
        question.steps,
        lambda done: told(f"forward pass: {done:,} of {total:,} rows"),
    )
    if not trained.finite:
        return Proof("none", (findings_of.not_finite(),), str(device))
    for run, evaluation in zip(alone, evaluations, strict=True):
        run.evaluation = evaluation
    agreements, costs, served, moved = [], [], [], []
    for run in runs:
        evaluation = run.result
        difference, proved = evaluation.difference, run.files in question.engines
        if not evaluation.finite:
            found += [findings_of.not_finite(run.files.engine)] if proved else []
            if run.files.as_it_is:
                lying[run.files.engine] = findings_of.not_finite(run.files.engine)
            continue
        if proved:
            served.append((run.side, evaluation))
            agreements.append(Agreement(run.files.engine, difference.logits, difference.changed))
        if run.files.as_it_is:
            lying.setdefault(run.files.engine, None)
        differs = difference.logits > TOLERANCE
        if differs and only_windows_move(first, run.side, around.sequences, question.steps, TOLERANCE):
            moved += [] if run.files.as_it_is else [findings_of.windows_move(run.files.engine, difference)]
        elif differs or names_others(first, run.side):
            side = replace(run.side, label=run.files.engine)
            finding = disagreement(
                first, side, trained, evaluation, around.sequences, question.steps, TOLERANCE, sample is not None
            )
            if run.files.as_it_is:
                lying[run.files.engine] = finding
            else:
                found += [finding] if proved else []
                costs += [] if proved else [(run.files.engine, finding)]
    scored_side, scored = served[0] if served else (first, trained)
    if not exact:
        around = _around(question, sequences)
        first = reference(drafter, around)
        scored_side = engine(question.engines[0], drafter, first, around) if served else first
        [scored] = evaluate([scored_side], sequences, question.steps)
    agree = bool(served) and not found
    proof = Proof(
        "agreement" if agree else "none",
        (*found, *moved),
        str(device),
        agreements=tuple(agreements),
        sequences=len(sequences),
        embedding=scored_side.embedding.whose,
        costs=tuple(costs),
        as_it_is=tuple(lying.items()),
    )
    return proof if sample is None else _on_sample(question, proof, sample, around, first, scored, told)


@dataclass
class _Run:
    """An engine's side; `same` is an earlier one that computes the same, so that it is run once."""

    files: EngineFiles
    side: Side
    same: _Run | None
    evaluation: Evaluation | None = None

    @property
    def result(self) -> Evaluation:
        found = (self.same or self).evaluation
        assert found is not None
        return found


def _computes_the_same(a: EngineFiles, b: EngineFiles, drafter: Drafter) -> bool:
    one, other = (replace(f, engine="", spec=replace(f.spec, origins={}), as_it_is=False) for f in (a, b))
    return one == other and (a.as_it_is == b.as_it_is or torch.equal(loaded_map(a, drafter), loaded_map(b, drafter)))


def _on_sample(
    question: Question,
    proof: Proof,
    sample: Sample,
    around: Surroundings,
    first: Side,
    scored: Evaluation,
    told: Callable[[str], None],
) -> Proof:
    """The scores, the neighbours of the wiring and the sample's anchors; the level that they reach."""
    found = list(proof.findings)
    in_draft = torch.zeros(first.vocab_size, dtype=torch.bool)
    in_draft[first.to_target] = True
    scores = score(
        scored.outcomes,
        in_draft=in_draft,
        choices_known=sample.labels != "text",
        draft_labels=_draft_labels(question, sample, first),
    )
    if question.judgement is None:
        judgement = _judge(question, around, first, sample, told).neighbours(declared(first.model.spec))
        problems = findings_of.of_neighbours(judgement)
    else:
        judgement = question.judgement
        problems = findings_of.of_search(judgement, question.declared)
    if question.unlike is not None:
        computed, said = question.unlike
        part = longest(sample.sequences, _COMPARED)
        found.append(findings_of.unlike(said, measure(computed, first, part, min(question.steps, STEPS))))
    if question.min_accuracy is not None and scores.accuracy[0] < question.min_accuracy:
        found.append(findings_of.too_low(scores, question.min_accuracy))
    if not scores.right[0] and scores.rows[0] >= _ENOUGH:
        found.append(findings_of.never_right(scores.rows[0]))
    elif no_worse(frequencies := frequency_contrast(scored.outcomes, first.vocab_size)):
        found.append(findings_of.no_better_than_frequencies(scores, frequencies))
    elif no_worse(judgement.control):
        found.append(findings_of.states_do_not_matter(judgement.control))
    embedding = question.target.embedding if question.target is not None else None
    anchors = anchor(sample, embedding, question.head, question.layers)
    level = proof.level
    if level == "agreement" and not problems and all(f.severity == "note" for f in found):
        level = "sample"
        if anchors.anchored:
            level = "measured" if sample.captured and sample.fingerprint else "anchored"
    if anchors.mislabelled is not None:
        level, found = "agreement" if level != "none" else level, [*found, findings_of.mislabelled(anchors.mislabelled)]
    elif "differs" in (anchors.embedding, anchors.last):
        found.append(findings_of.other_labels(anchors.words))
    return replace(
        proof,
        level=level,
        findings=(*found, *problems),
        scores=scores,
        anchors=anchors,
        judgement=judgement,
        searched=question.judgement is not None,
    )


def find_wiring(question: Question, told: Callable[[str], None] = lambda what: None) -> Judgement | None:
    """Search the sample for the wiring that the drafter was trained with; None where its forward cannot be computed.

    Raises InputError as `prove` does.
    """
    assert question.sample is not None
    around = _around(question, question.sample.sequences)
    try:
        first = reference(question.drafter, around)
    except NotComputable:
        return None
    return _judge(question, around, first, question.sample, told).find()


def _judge(question: Question, around: Surroundings, first: Side, sample: Sample, told: Callable[[str], None]) -> Judge:
    alternatives = _alternatives(question, around, sample)
    # Later steps than those trained on say little of the wiring, and are many.
    return Judge(first, sample.sequences, min(question.steps, STEPS), alternatives, told)


def _around(question: Question, sequences: Sequence[States], dtype: torch.dtype | None = None) -> Surroundings:
    rows = question.target.embedding if question.target is not None else None
    random = question.sample is None
    return Surroundings(sequences, rows, question.device, dtype or dtype_for(question.device), random)


def _random(question: Question) -> Sequence[States]:
    spec = question.drafter.spec
    served = (*question.engines, *question.as_it_is)
    points = {*spec.capture_points, *(p for files in served for p in files.spec.capture_points)}
    points |= set() if EMBEDDING in question.drafter.tensors else {0}
    return random_states(points, spec.target_hidden_size, spec.vocab_size, _RANDOM)


def _needs_states(files: EngineFiles, sequences: Sequence[States]) -> None:
    missing = set(files.spec.capture_points) - set(sequences[0].points)
    if missing:
        raise NotComputable(f"capture points {sorted(missing)}, which {files.engine} feeds and the sample lacks")


def _draft_labels(question: Question, sample: Sample, first: Side) -> list[torch.Tensor] | None:
    """The target's choice among the draft vocabulary, which trainers score against; [T] per sequence.

    None where the sample has no last state or the target's head is not at hand, and where both choices are the same.
    """
    head, last = question.head, question.layers
    if head is None or last not in sample.points or not first.model.spec.reduced_vocabulary:
        return None
    counted = [s.state(last, 0, len(s.tokens))[s.counts] for s in sample.sequences]
    found = head.draft_choices(torch.cat(counted), first.to_target)
    labels = []
    for sequence, part in zip(sample.sequences, torch.split(found, [len(c) for c in counted]), strict=True):
        label = sequence.target_next.clone()
        label[sequence.counts] = part
        labels.append(label)
    return labels


def _alternatives(question: Question, around: Surroundings, sample: Sample) -> Alternatives:
    """What the wiring can be varied by on this sample."""
    drafter = question.drafter
    embeddings = {}
    targets = around.target_embedding
    if targets is not None and EMBEDDING in drafter.tensors and drafter.embedding != "target's":
        embeddings["the target's"] = targets
    flags, maps = flippable(drafter.tensors), _other_maps(drafter)
    return Alternatives(sample.points, flags, maps, embeddings, question.rope_theta)


def _other_maps(drafter: Drafter) -> dict[str, torch.Tensor]:
    """The vocabulary map as others read it: d2t in its other form where that is a map at all, and no map."""
    if drafter.vocab is None or drafter.vocab.identity:
        return {}
    spec, maps = drafter.spec, {"ignored": torch.arange(drafter.spec.draft_vocab_size)}
    stored = drafter.tensors.get("d2t")
    if stored is not None:
        for form, reading in read_both_ways(
            drafter.checkpoint.read(stored).astype("int64"), None, spec.vocab_size
        ).items():
            if not reading.out_of_range and form != drafter.vocab.source:
                maps[f"read as {form}"] = torch.from_numpy(reading.ids)
    return maps


def as_json(
    proof: Proof, sample: Sample | None, searched_from: Wiring | None = None, digest: bool = False
) -> dict[str, Any]:
    """The `proof` object of report and seal; searched_from: the wiring that was declared where one was searched for;
    digest: the sample's files are digested, which reads them whole.
    """
    anchors = proof.anchors
    return {
        "level": proof.level,
        "sample": None
        if sample is None
        else {
            "path": str(sample.path),
            "form": sample.form,
            "labels": sample.labels,
            "sequences": proof.sequences,
            "points": list(sample.points),
            "target_fingerprint": sample.fingerprint,
            "tokens_sha256": sample.tokens_sha256,
            "files": sample.file_names,
            "sha256": sample.sha256 if digest else "",
        },
        "scores": None if proof.scores is None else scores_json(proof.scores),
        "largest_logit_difference": proof.difference,
        "engines": [a.as_json() for a in proof.agreements],
        "embedding": proof.embedding,
        "device": proof.device,
        "anchors": None
        if anchors is None
        else {
            "embedding": anchors.embedding,
            "last": anchors.last,
            "anchored": anchors.anchored,
            "words": list(anchors.words),
        },
        "wiring": None
        if proof.judgement is None
        else {
            "searched": proof.searched,
            "searched_from": searched_from.as_json() if proof.searched and searched_from else None,
            "declared_by": proof.judgement.of.options(searched_from) if proof.searched else [],
            **proof.judgement.as_json(),
        },
    }

"""Proof: what each engine would see, the sample, what is at hand of the target; and what it adds to a report.

Imports torch late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter.checkpoint.reader import Checkpoint, open_checkpoint
from converter.checks.as_it_is import Seen
from converter.checks.engine import would_see
from converter.checks.obstacles import CODES
from converter.drafter.drafter import Drafter, Provenance
from converter.drafter.points import as_option
from converter.drafter.target import Target
from converter.findings import Finding, error
from converter.plan import Plan
from converter.rules.engine import EngineRelease
from converter.rules.stopping import why_it_stops
from converter.run import MOST_STEPS, Report, Wish
from converter.source import open_source
from converter.target_weights import TargetWeights

if TYPE_CHECKING:
    from converter.forward.prove import Question
    from converter.forward.sample import Sample
    from converter.forward.search import Judgement
    from converter.forward.sides import EngineFiles

DEFAULT_STEPS = 3  # where the trainer recommends none
_DEFAULT_POSITIONS = 16384  # an accuracy of 50 % is then known to about 1 point


def draft_steps(provenance: Provenance) -> int:
    """How many tokens a server is told to draft at a time."""
    return provenance.speculative_tokens or DEFAULT_STEPS


def written(plan: Plan, folder: Path, target: Target) -> list[EngineFiles]:
    """The files in `folder` as each release of the plan sees them."""
    from converter.forward.sides import EngineFiles

    checkpoint, config = open_checkpoint(folder), open_source(str(folder)).config
    found = []
    for engine in plan.engines:
        view = engine.view(config, list(checkpoint.tensors), target, plan.launch)
        assert view.spec is not None
        embedding = engine.replaces_embedding(view.spec)
        found.append(
            EngineFiles(
                str(engine), view.spec, checkpoint, view.received, embedding, why_it_stops(engine, view, target)
            )
        )
    return found


def unwritten(engine: EngineRelease, drafter: Drafter, target: Target) -> EngineFiles | None:
    """What the release would make of the drafter in its form, the weights still in the input.

    None where it stops before it computes anything.
    """
    from converter.forward.sides import EngineFiles

    view = would_see(engine, drafter.spec.ascending(), target)
    if view is None or view.spec is None:
        return None
    spec = view.spec
    if spec.capture_points == drafter.spec.ascending().capture_points:
        # The blocks of fc are permuted when they are written; here they are as they were.
        spec = replace(spec, capture_points=drafter.spec.capture_points)
    names = {c: drafter.tensors[c] for c in view.received if c in drafter.tensors}
    if "d2t" in view.received and drafter.vocab is not None:
        names.setdefault("d2t", "d2t")
    stops = why_it_stops(engine, view, target)
    return EngineFiles(str(engine), spec, drafter.checkpoint, names, engine.replaces_embedding(spec), stops)


def _lying(seen: Seen, checkpoint: Checkpoint) -> EngineFiles:
    """The files as a release would be given them, by what it makes of them."""
    from converter.forward.sides import EngineFiles

    assert seen.spec is not None and seen.received is not None
    embedding = seen.engine.replaces_embedding(seen.spec)
    return EngineFiles(str(seen.engine), seen.spec, checkpoint, seen.received, embedding, seen.stops, as_it_is=True)


def _read_sample(
    wish: Wish, drafter: Drafter, target: Target, weights: TargetWeights | None, points_known: bool
) -> Sample | None:
    """Raises InputError where the sample cannot be used with this drafter."""
    from converter.forward.sample import read_sample
    from converter.forward.target_head import TargetHead

    if wish.sample is None:
        return None
    return read_sample(
        wish.sample,
        drafter.spec,
        points=wish.sample_points,
        last_point=target.layers,
        head=TargetHead.of(weights, target),
        most=(_DEFAULT_POSITIONS if wish.positions is None else wish.positions) or None,
        declared=points_known,
    )


def _question_of(
    wish: Wish, drafter: Drafter, sample: Sample | None, target: Target, weights: TargetWeights | None
) -> Question:
    """What the user wishes to be proved, as yet of no engine."""
    from converter.forward.device import choose_device
    from converter.forward.prove import Question
    from converter.forward.target_head import TargetHead

    return Question(
        drafter=drafter,
        engines=(),
        refused=(),
        sample=sample,
        target=weights,
        head=TargetHead.of(weights, target),
        layers=target.layers,
        rope_theta=target.rope.theta if target.rope is not None else None,
        device=choose_device(wish.device),
        steps=wish.steps or min(max(drafter.provenance.speculative_tokens or 0, DEFAULT_STEPS), MOST_STEPS),
        min_accuracy=wish.min_accuracy,
    )


# --- in a run --------------------------------------------------------------------------------------------------


def search_wiring(report: Report) -> None:
    """Search for the wiring, and go on with what was found where the input states no capture points."""
    from converter.forward.prove import find_wiring
    from converter.forward.wiring import declared

    drafter, wish = report.drafter, report.request.wish
    assert drafter is not None
    sample = _sample(report)
    assert sample is not None
    if report.points_known:
        report.declared = declared(drafter.spec)
    else:  # any points stand in for those to be found
        drafter = drafter.with_points(sample.points[: drafter.spec.num_points])
    question = _question_of(wish, drafter, sample, report.target, report.target_weights)
    report.search = find_wiring(question, report.told)
    if not report.points_known and report.search is not None:
        report.drafter = replace(drafter, spec=report.search.of.spec(drafter.spec))


def points_unknown(search: Judgement | None) -> Finding:
    """A104: neither the input nor what the search found, if there was one, says them."""
    fix: tuple[str, ...] = ()
    why = "the config does not name them"
    if search is not None and search.those("undecided"):
        why += ", and the sample cannot tell"
    elif search is not None:
        why += "; the sample says what they were"
        fix = (f"say so: --aux {as_option(search.of.points)}",)
    return error(
        "A104",
        "which hidden states of the target feed this drafter is not known",
        where="config.json",
        expected="the capture points that it was trained on",
        why=why,
        fix=fix,
    )


def files_written(report: Report, plan: Plan, folder: Path) -> list[EngineFiles]:
    """The output in `folder` as each release of the plan sees it."""
    return written(plan, folder, report.target) if report.request.wish.anything else []


def files_unwritten(report: Report, engines: Sequence[EngineRelease]) -> list[EngineFiles]:
    """The drafter as each release would have it, for those that compute anything."""
    if not report.request.wish.anything or report.drafter is None:
        return []
    files = [unwritten(engine, report.drafter, report.target) for engine in engines]
    return [f for f in files if f is not None]


def files_lying(report: Report, engines: Sequence[EngineRelease]) -> list[EngineFiles]:
    """The files as they lie, as each release sees them that serves them so by its rules."""
    if not report.request.wish.anything:
        return []
    assert report.opened is not None
    standings = [report.as_it_is[engine.requirement] for engine in engines]
    return [_lying(s.seen, report.opened.checkpoint) for s in standings if s.works]


def prove(
    report: Report,
    engines: Sequence[EngineFiles],
    refused: Sequence[EngineFiles],
    as_they_lie: Sequence[EngineFiles] = (),
) -> None:
    """Run what was asked for; findings about single engines go with the engine in `validate`."""
    drafter, wish = report.drafter, report.request.wish
    if not wish.anything or drafter is None:
        return
    from converter.forward.prove import prove as compute

    question = _question_of(wish, drafter, _sample(report), report.target, report.target_weights)
    question = replace(
        question, engines=engines, refused=refused, judgement=report.search, declared=report.declared,
        unlike=report.unlike, as_it_is=as_they_lie,
    )  # fmt: skip
    report.proof = proof = compute(question, report.told)
    by_label = {str(e): e.requirement for e in report.engines}
    for label, finding in proof.costs:
        verdict = report.verdicts.get(by_label[label])
        if verdict is None:
            report.add([replace(finding, caused_by=_cause(report, finding))])
        else:
            verdict.append(finding)
    for label, otherwise in proof.as_it_is:
        if otherwise is not None:
            standing = report.as_it_is[by_label[label]]
            said = f"served as it lies it does not compute what was trained: {otherwise.found or otherwise.message}"
            report.as_it_is[by_label[label]] = replace(standing, against=(said,))
    report.add([replace(f, caused_by=_cause(report, f)) if f.code == "N102" else f for f in proof.findings])
    if report.unlike is not None and not {"C216", "C227"} & {f.code for f in proof.findings}:
        report.add([report.unlike[1]])  # nothing could be measured
    # States that were named by the very ids in question cannot say what these mean.
    named = report.sample is not None and (report.sample.labelled or wish.sample_points is not None)
    undecided = proof.level in ("none", "agreement")
    told = any(f.code == "A301" for f in proof.findings)  # which says what the ids mean
    other = report.other_meaning if not named or (undecided and not told) else ()
    report.add([*other, *(report.open if undecided else ())])


def _sample(report: Report) -> Sample | None:
    """The sample, opened once."""
    if report.sample is None and report.drafter is not None:
        weights, target = report.target_weights, report.target
        wish = report.request.wish
        report.sample = _read_sample(wish, report.drafter, target, weights, report.points_known)
        if report.sample is not None:
            report.add(report.sample.notes)
    return report.sample


def _cause(report: Report, disagreement: Finding) -> str:
    """The finding that a disagreement follows from, allowed ones first; "" where none explains it."""
    codes = {CODES.get(name, "") for name in disagreement.where.split(", ")}
    codes |= {"K131"} if "embed_tokens.weight" in disagreement.where else set()
    found = sorted((f for f in report.findings if f.code in codes), key=lambda f: not f.allowed)
    return found[0].code if found else ""


def proof_json(report: Report, digest: bool = False) -> dict[str, Any]:
    """The `proof` object of report and seal; digest: with that of the sample's files, which are read whole."""
    if report.proof is None:
        return {"level": "none", "sample": None, "scores": None, "largest_logit_difference": None, "engines": [],
                "embedding": "", "device": "", "anchors": None, "wiring": None}  # fmt: skip
    from converter.forward.prove import as_json

    return as_json(report.proof, report.sample, report.declared, digest)

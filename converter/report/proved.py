"""How far a drafter is proved and what was measured, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from converter.report.words import count
from converter.run import Report

if TYPE_CHECKING:
    from converter.forward.scores import Scores
    from converter.forward.search import Judgement


def unproved(report: Report) -> str:
    """The line for a drafter on which no forward pass was run."""
    unknown = report.drafter.spec.not_computed if report.drafter else ""
    return (
        f"NOT PROVED: {unknown} is not computed here" if unknown else "NOT PROVED: static checks only (--sample FILE)"
    )


def proof_lines(report: Report, verbose: bool = False) -> list[str]:
    """Level, scores, the closest wirings and the device; the first line begins with the level."""
    proof = report.proof
    if proof is None:
        return ["none: static checks only"]
    if any(f.code in ("N103", "N104") for f in proof.findings) and not proof.agreements:
        return ["none: the forward pass could not be computed"]
    lines = []
    if proof.difference is None:
        lines.append("none: run as the trainer computes it, not as an engine would")
    else:
        who = f"what {report.plan.form.title} reads back" if report.plan and report.plan.form else "engine"
        agrees = f"{who} = trained" if proof.level != "none" else "the engine computes something else"
        on = (
            "the sample's states"
            if report.sample is not None
            else "random states (without a sample the wiring is open)"
        )
        lines.append(f"{proof.level}: {agrees} on {on}, logits differ by {proof.difference:.2g} at most")
    if proof.scores is not None:
        lines += _scores(proof.scores, proof.sequences, report, verbose)
    if proof.judgement is not None and not proof.searched:
        lines.append(_neighbours(proof.judgement))
    if proof.anchors is not None and proof.level in ("sample", "anchored", "measured"):
        lines.append(proof.anchors.words[-1])
    return [*lines, f"on {proof.device}" + (f", embedding {proof.embedding}" if report.sample else "")]


def _scores(scores: Scores, sequences: int, report: Report, verbose: bool) -> Iterator[str]:
    first, *later = scores.accuracy
    steps = "".join(f", then {a:.1%}" for a in later)
    against = "the text's own tokens" if report.sample and report.sample.labels == "text" else "the target's own choice"
    interval = scores.steps[0]
    between = f" [{interval.low:.1%} to {interval.high:.1%}]" if interval else ""
    yield (
        f"accuracy {first:.1%}{between}{steps}   ({scores.rows[0]:,} positions, "
        f"{count(sequences, 'sequence')}; right at every step so far, against {against})"
    )
    if scores.coverage.value < 0.9995:
        yield f"the draft vocabulary holds {scores.coverage.value:.1%} of these tokens: no accuracy can be higher"
        if scores.draft_vocabulary:
            logged = ", then ".join(f"{s.value:.1%}" for s in scores.draft_vocabulary if s)
            yield f"against the target's choice among the draft vocabulary, as trainers log it: {logged}"
    for a in scores.acceptance if verbose else scores.acceptance[-1:]:
        share = f"{scores.greedy.value:.1%} of the tokens are the target's first choice"
        share = "the text is all that is known" if report.sample and report.sample.labels == "text" else share
        how = "replayed on greedy text" if a.exact else f"estimated: {share}"
        yield f"acceptance length {a.length:.2f} [{a.low:.2f} to {a.high:.2f}] with chains of {a.chain} ({how})"
    buckets = scores.by_position
    falls = len(buckets) > 1 and buckets[-1].accuracy.high < buckets[0].accuracy.low
    if falls or (verbose and len(buckets) > 1):
        parts = ", ".join(f"{b.first:,}-{b.last:,}: {b.accuracy.value:.1%}" for b in buckets)
        yield f"{'accuracy falls with position' if falls else 'by position'}   {parts}"


def _neighbours(judgement: Judgement) -> str:
    tried = len(judgement.others)
    if not tried:
        return "no other wiring could be tried: the sample holds no other states"
    best = judgement.others[0]
    close = f"{best.wiring.words(judgement.of)}: {best.contrast.mean:+.2f} log-likelihood, z = {best.contrast.z:.1f}"
    if judgement.those("better"):
        return f"another wiring fits better ({close})"
    others = count(tried, "other wiring")
    if judgement.those("undecided"):
        return f"not told apart from {len(judgement.those('undecided'))} of {others} (closest: {close})"
    equal = judgement.those("equal")
    same = f"; {len(equal)} too close to tell, and to matter" if equal else ""
    return f"none of {others} fits clearly better (closest: {close}{same})"

"""The findings of a proof, in words a user can act on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from converter.findings import Finding, error, note, warning
from converter.forward.contrast import Contrast
from converter.forward.evaluate import Difference
from converter.forward.scores import Scores
from converter.forward.search import Judgement, Ranked
from converter.forward.wiring import Wiring


@dataclass(frozen=True)
class Cost:
    """One field that an engine computes otherwise: what that alone does; None where it cannot be computed alone."""

    field: str
    trained: Any
    served: Any
    difference: float | None
    scores: Scores | None


def not_computable(what: str, engine: str = "") -> Finding:
    return error(
        "N104",
        f"the forward pass {f'of {engine} ' if engine else ''}cannot be computed: {what}",
        why="without it nothing is proved; convert without --sample and --prove to go on unproved",
    )


def not_finite() -> Finding:
    return error(
        "N103",
        "the drafter computes values that are no numbers on this sample",
        where="logits",
        found="NaN or infinity",
        why="a weight or a state of the sample is NaN or infinite, or overflows; no draft token means anything then",
    )


def windows_move(engine: str, difference: Difference) -> Finding:
    """N109: no fault of the conversion, and small."""
    changed = difference.choices / max(difference.rows, 1)
    return note(
        "N109",
        f"from the second draft step on {engine} sees a little less of the past than in training",
        where="layer_windows",
        found=f"logits differ by up to {difference.logits:.3g}, {changed:.1%} of the drafts are other tokens",
        why="it counts a sliding window from the drafted token, the trainer from the row that the chain starts at",
    )


def disagrees(
    engine: str,
    difference: Difference,
    tolerance: float,
    costs: Sequence[Cost],
    embedding_gap: float,
    other_map: bool,
    before: Scores | None,
    after: Scores | None,
) -> Finding:
    """N102, with the rules responsible and what they cost."""
    causes = [f"{c.field} is {_shown(c.trained)} in training, {_shown(c.served)} in {engine}" for c in costs]
    if embedding_gap:
        causes.append(f"it uses the target's embedding, whose rows differ by up to {embedding_gap:.3g}")
    if other_map:
        causes.append("draft tokens mean other target tokens to it")
    alone = [
        f"{c.field} alone: {_fall(before, c.scores)}" for c in costs if before is not None and c.scores is not None
    ]
    cost = [_fall(before, after)] if before is not None and after is not None else []
    changed = difference.choices / max(difference.rows, 1)
    return error(
        "N102",
        f"{engine} would compute other logits than the trainer" + (f": {'; '.join(causes)}" if causes else ""),
        where="embed_tokens.weight" if embedding_gap and not costs else ", ".join(c.field for c in costs),
        found=f"logits differ by up to {difference.logits:.3g}, {changed:.1%} of the drafts are other tokens",
        expected=f"at most {tolerance:g}",
        why="; ".join([*cost, *(alone if len(costs) > 1 else [])])
        or "the converted drafter is not the one that was trained",
    )


def _fall(before: Scores | None, after: Scores | None) -> str:
    """`step-0 accuracy 52.1 -> 47.0 %, step-1 49.2 -> 33.1 %`: of those still right, as a server meets them."""
    assert before is not None and after is not None
    parts = [
        f"{'step-0 accuracy' if k == 0 else f'step-{k}'} {100 * a.value:.1f} -> {100 * b.value:.1f} %"
        for k, (a, b) in enumerate(zip(before.conditional, after.conditional, strict=True))
        if a is not None and b is not None
    ]
    return ", ".join(parts)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return (
        "[" + ", ".join("full" if v is None else str(v) for v in value) + "]"
        if isinstance(value, tuple)
        else str(value)
    )


def never_right(rows: int) -> Finding:
    return error(
        "N105",
        f"the drafter is right at none of {rows:,} positions",
        where="step 0",
        why="it is not trained, damaged, or of another target; the engine would compute it as it is, and reject it",
        fix=("check that the checkpoint is the trained one, and that the sample is of its target",),
    )


def no_better_than_frequencies(scores: Scores) -> Finding:
    return error(
        "N106",
        "the drafter knows no more of the next token than how often each token occurs",
        where="step 0",
        found=f"accuracy {scores.accuracy[0]:.1%}, log-likelihood {scores.log_likelihood[0] or 0:.2f} per token",
        why="a layer at its random start, a damaged checkpoint, or a sample of another target",
        fix=("check that the checkpoint is the trained one, and that the sample is of its target",),
    )


def states_do_not_matter(control: Contrast) -> Finding:
    return error(
        "N107",
        "the drafter does as well with the states of other tokens: what the target hands over does not matter to it",
        where="fc.weight",
        found=f"log-likelihood {control.mean:+.3f} per position with other tokens' states (z = {control.z:.1f})",
        expected="much worse",
        why="fc is zero or untrained, or the states of the sample belong to other tokens",
        fix=("check fc.weight, and that tokens and states of the sample belong together",),
    )


def too_low(scores: Scores, least: float) -> Finding:
    return error(
        "N101",
        f"step-0 accuracy is {scores.accuracy[0]:.1%}, below --min-accuracy {least:.1%}",
        where="--min-accuracy",
        found=f"{scores.right[0]:,} of {scores.rows[0]:,} positions",
        expected=f"at least {least:.1%}",
        why="the wiring may not be the one it was trained with, or the drafter is that weak",
        fix=("compare with the training run: its capture points (--aux), and its own validation accuracy",),
    )


def of_wiring(judgement: Judgement, declared: Wiring, searched: bool, points_known: bool) -> list[Finding]:
    """A301: another wiring fits better. N108: too few positions to tell."""
    if searched and points_known:
        against = next((r.contrast.mirrored for r in judgement.others if r.wiring == declared), None)
        if against is not None and against.verdict == "better":
            return [_other_wiring(judgement.of, declared, against)]
    elif not searched:
        better = judgement.those("better")
        if better:
            best = better[0]
            return [_other_wiring(best.wiring, declared, best.contrast)]
    undecided = judgement.those("undecided")
    return [_cannot_tell(judgement, undecided)] if undecided else []


def _other_wiring(better: Wiring, declared: Wiring, gain: Contrast) -> Finding:
    options = better.options(declared)
    return error(
        "A301",
        f"the sample says this drafter was trained otherwise: {better.words(declared)}",
        where="wiring",
        found=f"log-likelihood {gain.mean:+.2f} per position with it (z = {gain.z:.0f}, {gain.positions:,} positions)",
        expected="no wiring that fits better than the declared one",
        why="the engine would feed the drafter otherwise than it was trained, and reject most drafts",
        fix=(f"if that is how it was trained, say so: {shlex.join(options)}",) if options else (),
    )


def _cannot_tell(judgement: Judgement, undecided: Sequence[Ranked]) -> Finding:
    names = [r.wiring.words(judgement.of) for r in undecided]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return warning(
        "N108",
        f"the sample cannot tell this wiring from {len(names)} others" if len(names) > 1 else
        "the sample cannot tell this wiring from another",
        where="the sample",
        found=f"{judgement.positions:,} positions; not told apart: {'; '.join(names[:4])}{more}",
        expected=f"about {judgement.needed:,} positions would tell",
        why="the proof stops short of `sample`: the engine computes what is declared, perhaps not what was trained",
        fix=("give a longer sample (more sequences, or --sample FOLDER with several)",),
    )  # fmt: skip

"""The findings of a proof, in words a user can act on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from converter.drafter.spec import shown_value
from converter.findings import SEARCH, Finding, error, note, warning
from converter.forward.contrast import Contrast
from converter.forward.evaluate import Difference
from converter.forward.scores import Scores
from converter.forward.search import Judgement
from converter.forward.unlike import Measured
from converter.forward.wiring import Wiring


@dataclass(frozen=True)
class Cost:
    """One field that an engine computes otherwise; scores without and with that alone, None where not measured."""

    field: str
    trained: Any
    served: Any
    scores: tuple[Scores, Scores] | None = None


def not_computable(what: str, engine: str = "") -> Finding:
    """N104 of the trainer's forward pass, or of an engine's."""
    return error(
        "N104",
        f"the forward pass {f'of {engine} ' if engine else ''}cannot be computed: {what}",
        why="without it nothing is proved; convert without --sample and --prove to go on unproved",
    )


def not_finite(engine: str = "") -> Finding:
    """N103 of the trainer's forward pass, or of an engine's."""
    return error(
        "N103",
        f"{engine or 'the drafter'} computes values that are no numbers on this sample",
        where="logits",
        found="NaN or infinity",
        why="a weight or a state of the sample is NaN or infinite, or overflows; no draft token means anything then",
    )


def _gap(difference: Difference) -> str:
    others = f"{difference.changed:.1%} of {difference.rows:,} drafted tokens are others"
    return f"logits differ by up to {difference.logits:.3g}, {others}"


def windows_move(engine: str, difference: Difference) -> Finding:
    """N109: no fault of the conversion, and small."""
    return note(
        "N109",
        f"from the second draft step on {engine} sees a little less of the past than in training",
        where="layer_windows",
        found=_gap(difference),
        why="it counts a sliding window from the drafted token, the trainer from the row that the chain starts at",
    )


def disagrees(
    engine: str,
    difference: Difference,
    tolerance: float,
    costs: Sequence[Cost],
    other_map: bool,
    whole: tuple[Scores, Scores] | None,
) -> Finding:
    """N102, with the rules responsible and what they cost; whole: scores as trained and as served."""
    causes = [f"{c.field} is {shown_value(c.trained)} in training, {shown_value(c.served)} in {engine}" for c in costs]
    if other_map:
        causes.append("draft tokens mean other target tokens to it")
    cost = [_fall(*whole) + " (each of the rows still right before it)"] if whole else []
    alone = [f"{c.field} alone: {_fall(*c.scores)}" for c in costs if c.scores is not None]
    return error(
        "N102",
        f"{engine} would compute other logits than the trainer" + (f": {'; '.join(causes)}" if causes else ""),
        where=", ".join(c.field for c in costs),
        found=_gap(difference),
        expected=f"at most {tolerance:g}",
        why="; ".join([*cost, *(alone if len(costs) > 1 else [])])
        or "the converted drafter is not the one that was trained",
    )


def _fall(before: Scores, after: Scores) -> str:
    """`step-0 accuracy 52.1 -> 47.0 %, step-1 49.2 -> 33.1 %`: of those still right, as a server meets them."""
    parts = [
        f"{'step-0 accuracy' if k == 0 else f'step-{k}'} {100 * a.value:.1f} -> {100 * b.value:.1f} %"
        for k, (a, b) in enumerate(zip(before.conditional, after.conditional, strict=True))
        if a is not None and b is not None
    ]
    return ", ".join(parts)


def unlike(said: Finding, measured: Measured) -> Finding:
    """C216 with what the sample shows of it, or C227 where it shows that nothing is lost."""
    gain = measured.contrast
    found = (
        f"as the trainer computes and as engines do: {_fall(measured.trained, measured.served)}; log-likelihood "
        f"{gain.mean:+.3f} per position for the trainer's (z = {gain.z:.1f}, {gain.positions:,} positions)"
    )
    if gain.verdict in ("worse", "equal"):
        lost = (
            "that makes no difference to this drafter" if gain.verdict == "equal" else "this drafter was not trained so"
        )
        return note("C227", f"{said.message}; by the sample {lost}", where=said.where, found=found, why=said.why)
    more = (f"about {gain.needed:,} positions would tell",) if gain.verdict == "undecided" else ()
    return replace(said, found=found, expected=" ".join(more), fix=())


def never_right(rows: int) -> Finding:
    """N105."""
    return error(
        "N105",
        f"the drafter is right at none of {rows:,} positions",
        where="step 0",
        why="it is not trained, damaged, or of another target; the engine would compute it as it is, and reject it",
        fix=("check that the checkpoint is the trained one, and that the sample is of its target",),
    )


def no_better_than_frequencies(scores: Scores, frequencies: Contrast) -> Finding:
    """N106, by controls.frequency_contrast."""
    return error(
        "N106",
        "the drafter knows no more of the next token than how often each token occurs",
        where="step 0",
        found=f"accuracy {scores.accuracy[0]:.1%}; frequencies have a log-likelihood of {frequencies.mean:+.2f} per "
        f"token against it (z = {frequencies.z:.1f})",
        why="a layer at its random start, a damaged checkpoint, or a sample of another target",
        fix=("check that the checkpoint is the trained one, and that the sample is of its target",),
    )


def mislabelled(point: int) -> Finding:
    """A302: the embedding stands under `point`, and not under 0."""
    return error(
        "A302",
        f"what the sample calls layer {point} is the target's embedding (point 0)",
        where="the sample",
        why="its states are numbered otherwise than capture points are, and the drafter's are measured on wrong ones",
        fix=("say what they are: --sample-points, in the file's order (embed = embedding, k = output of layer k)",),
    )


def other_labels(words: tuple[str, ...]) -> Finding:
    """A303, with what was found of the two ends (Anchors.words)."""
    return warning(
        "A303",
        "the ends of the sample's states are not those of this target",
        where="the sample",
        found=" ".join(words[:2]),
        why="what the sample calls layer 3 may be another, and the engine be fed something else though all agrees",
        fix=("check how the states were numbered, and that --target is the model they were captured from",),
    )


def states_do_not_matter(control: Contrast) -> Finding:
    """N107, by the states of other tokens (Judgement.control)."""
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
    """N101: less than --min-accuracy asks for."""
    return error(
        "N101",
        f"step-0 accuracy is {scores.accuracy[0]:.1%}, below --min-accuracy {least:.1%}",
        where="--min-accuracy",
        found=f"{scores.right[0]:,} of {scores.rows[0]:,} positions",
        expected=f"at least {least:.1%}",
        why="the wiring may not be the one it was trained with, or the drafter is that weak",
        fix=("compare with the training run: its capture points (--aux), and its own validation accuracy",),
    )


def of_neighbours(judgement: Judgement) -> list[Finding]:
    """A301 where a neighbour of the declared wiring fits better, N108 where that is not decided."""
    better = judgement.those("better")
    if better:
        return [_other_wiring(better[0].wiring, judgement.of, better[0].contrast)]
    return _undecided(judgement)


def of_search(judgement: Judgement, declared: Wiring | None) -> list[Finding]:
    """A301 where what was found fits better than what is declared, N108 where it is not decided what was trained."""
    against = next((r.contrast.mirrored for r in judgement.others if r.wiring == declared), None)
    if declared is not None and against is not None and against.verdict == "better":
        return [_other_wiring(judgement.of, declared, against, searched=True)]
    return _undecided(judgement)


def _other_wiring(better: Wiring, declared: Wiring, gain: Contrast, searched: bool = False) -> Finding:
    options = better.options(declared)
    return error(
        "A301",
        f"the sample says this drafter was trained otherwise: {better.words(declared)}",
        where="wiring",
        found=f"log-likelihood {gain.mean:+.2f} per position with it (z = {gain.z:.0f}, {gain.positions:,} positions)",
        expected="no wiring that fits better than the declared one",
        why="as declared, the engine would feed the drafter otherwise than it was trained, and reject more drafts",
        fix=(
            *((f"if that is how it was trained, say so: {shlex.join(options)}",) if options else ()),
            *(() if searched else (f"to look among all wirings: {SEARCH}",)),
        ),
    )


def _undecided(judgement: Judgement) -> list[Finding]:
    if not judgement.those("undecided"):
        return []
    names = [r.wiring.words(judgement.of) for r in judgement.those("equal", "undecided")]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    others = "another" if len(names) == 1 else f"{len(names)} others"
    return [
        warning(
            "N108",
            f"the sample cannot tell this wiring from {others}",
            where="the sample",
            found=f"{judgement.positions:,} positions; fitting as well: {'; '.join(names[:4])}{more}",
            expected=f"about {judgement.needed:,} positions would tell",
            why="the proof stops short of `sample`: the engine computes what is declared, perhaps not what was trained",
            fix=("give a longer sample: eagle3 sample --target T -o FILE, or --sample FOLDER with several files",),
        )
    ]

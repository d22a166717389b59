"""Capture points: distinct, in range, as many as fc is wide, and known rather than assumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from converter.drafter.points import NAME_THEM, as_option, describe_points
from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.findings import SEARCH, Finding, error, note, warning
from converter.rules.behaviours import POINTS
from converter.rules.dialect import Dialect, DialectReading
from converter.rules.ids import points_of

# What to type where nobody knows the points.
UNKNOWN_POINTS = (
    NAME_THEM,
    f"or let a sample say: {SEARCH}",
)
_OTHER_TARGET = "or give the target that it was trained for: --target FOLDER"


def check_points(
    spec: DrafterSpec,
    fc: tuple[int, ...] | None,
    target: Target,
    stated: tuple[int, ...] | None,
) -> Iterator[Finding]:
    """A101 duplicate, A102 out of range, A103 fc width, A105 assumed default, A106 --aux against the config.

    fc      shape of fc.weight, None where it is missing
    stated  the points that the config states, None where it states none
    """
    points = spec.capture_points
    origin = spec.origins["capture_points"]
    assumed = origin.how == "default"
    where = "config.json" if assumed else origin.where or "config.json"
    if len(set(points)) != len(points):
        yield error(
            "A101",
            "the config names no layers, and the trainer's default repeats one on this target"
            if assumed
            else "a capture point is listed twice",
            where=where,
            found=describe_points(points),
            expected="distinct points",
            why="engines capture each layer once, so fc would get too few states",
            fix=UNKNOWN_POINTS,
        )
    beyond = [p for p in points if p < 0 or (target.layers is not None and p > target.layers)]
    if beyond:
        outside = describe_points(tuple(beyond))
        yield error(
            "A102",
            f"the config names no layers, and the trainer's default gives {outside} on this target"
            if assumed
            else f"{outside} is outside the target",
            where=where,
            found=describe_points(points),
            expected=f"0 to {target.layers}" if target.layers is not None else "0 or more",
            why="the target has no such layer",
            fix=UNKNOWN_POINTS if assumed else (NAME_THEM, *([_OTHER_TARGET] if max(beyond) > 0 else [])),
        )
    if fc is not None and fc != (spec.hidden_size, spec.num_points * spec.target_hidden_size):
        yield _fc_width(spec, fc, target)
    if assumed and len(set(points)) == len(points):
        yield warning(
            "A105",
            f"the config names no target layers; the trainer's default was assumed: {describe_points(points)}",
            where=where,
            why="if it was trained on others, every draft will be rejected",
            fix=(f"if that is right, say so: --aux {as_option(points)}",),
        )
    if origin.how == "given" and stated is not None and stated != points:
        yield warning(
            "A106",
            f"--aux {as_option(points)} replaces what the config states: {describe_points(stated)}",
            where="--aux",
            why=_other_numbering(points, stated) or "drafts are worse, down to all rejected, if the config was right",
            fix=("run both on a sample (--sample) and compare the accuracies",),
        )


def check_meaning(dialect: Dialect, reading: DialectReading, spec: DrafterSpec, target: Target) -> Iterator[Finding]:
    """A109 where the ids in the config may mean other points than were read, A112 where -1 is among them."""
    if reading.other_meaning is None or reading.stated_ids is None:
        return
    rule, why = reading.other_meaning
    ids, layers, points = reading.stated_ids, target.layers, spec.capture_points
    other, default = points_of(rule, ids, layers), dialect.rules["ids"].get("default")
    usual = POINTS[default](layers) if default is not None and layers is not None else None
    if -1 in ids and 0 in points and spec.origins["capture_points"].how == "stated":
        yield _before_the_first(spec)
    if other is None or other == points or spec.origins["capture_points"].how != "stated":
        return
    if not _possible(other, layers) or (_possible(points, layers) and usual is not None and points == usual != other):
        return
    possible = _possible(points, layers)
    usually = "; these are the points that trainers take by default" if other == usual else ""
    yield warning(
        "A109",
        "the layer ids may mean other layers: two conventions write them under this key",
        where=spec.origins["capture_points"].where,
        found=f"read as {describe_points(points)}" + ("" if possible else ", which the target does not have"),
        expected=f"perhaps {describe_points(other)}{usually}",
        why=why,
        fix=(
            f"say which it was trained on: --aux {as_option(points)}  or  --aux {as_option(other)}",
            "or let a sample decide: --sample FILE",
        ),
    )


def _before_the_first(spec: DrafterSpec) -> Finding:
    """TensorRT-LLM 1.4.0rc1 modeling_speculative.py (SpecDecOneEngineForCausalLM.forward) has -1 for the last state."""
    others = as_option(tuple(p for p in spec.capture_points if p))
    return warning(
        "A112",
        "the id -1 is read as the target's embedding; it may have been meant as the last state",
        where=spec.origins["capture_points"].where,
        found=f"read as {describe_points(spec.capture_points)}",
        expected="the embedding, if the ids count layers and -1 is the one before the first",
        why="to one engine it is the state after the final norm, which no capture point is",
        fix=(
            f"if it is the embedding, say so: --aux {as_option(spec.capture_points)}",
            f"if it is the last layer, its number beside the others: --aux {others},...",
            "or let a sample decide: --sample FILE",
        ),
    )


def _possible(points: Sequence[int], layers: int | None) -> bool:
    return min(points) >= 0 and (layers is None or max(points) <= layers)


def _other_numbering(given: Sequence[int], stated: Sequence[int]) -> str:
    """Said where --aux holds the config's points as 0-based layers, as some engines' ids count them."""
    if [p + 1 for p in given] != list(stated):
        return ""
    same = ",".join(f"out:{p}" for p in given)
    return f"these are the config's points counted as 0-based layers; --aux {same} means what the config says"


def _fc_width(spec: DrafterSpec, fc: tuple[int, ...], target: Target) -> Finding:
    width = fc[1] if len(fc) == 2 else 0
    states, rest = divmod(width, spec.target_hidden_size)
    holds = f"{states} states" if rest == 0 else f"{width / spec.target_hidden_size:.2f} states"
    wanted = [spec.hidden_size, spec.num_points * spec.target_hidden_size]
    points = f"{spec.num_points} capture points x target hidden {spec.target_hidden_size}"
    every = rest == 0 and target.layers is not None and states in (target.layers, target.layers + 1)
    fix = "the target hidden size in config.json is not that of the target it was trained on"
    if rest == 0:
        fix = f"name the points as trained, {states} of them: --aux ..."
    return error(
        "A103",
        f"fc takes {holds} of width {spec.target_hidden_size}, the config names {spec.num_points}",
        where="fc.weight",
        found=str(list(fc))
        + (f": {width} = {states} states x {spec.target_hidden_size}" if rest == 0 else "")
        + (
            f", as many as the target has layers{'' if states == target.layers else ' and its embedding'}"
            if every
            else ""
        ),
        expected=f"{wanted} = [hidden {spec.hidden_size}, {points}]",
        why="engines put one target state per capture point side by side before fc",
        fix=(fix,),
    )


def depth_unknown(spec: DrafterSpec) -> Finding:
    """A108: what depends on the number of the target's layers cannot be checked."""
    return note(
        "A108",
        f"whether the target has {describe_points(spec.capture_points)} is not known, nor which layer is its last",
        why="engines leave a state out, or stop, where a point is the target's last layer or lies beyond it",
        fix=("to have it checked: --target FOLDER, its config.json, or org/name on the Hub",),
    )

"""Which capture points a sample records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from converter.drafter.points import as_option, parse_points
from converter.drafter.target import Target
from converter.errors import UsageError
from converter.rules.behaviours import POINTS
from converter.rules.dialect import read
from converter.rules.recognition import recognise
from converter.seal import read_seal
from converter.source import open_source


def choose_points(wanted: str, drafter: Path | None, target: Target) -> tuple[int, ...]:
    """`wanted` is all, default or a list as --aux takes it; ascending.

    The default is what a drafter may be fed with: the points of `drafter` where it is given, else those that trainers
    and engines use by default, each with its neighbours, and the embedding and the last point. Raises UsageError where
    a point lies beyond the target or the drafter's points cannot be read.
    """
    last = target.layers
    assert last is not None
    word = wanted.strip().lower()
    if word == "all":
        return tuple(range(last + 1))
    if word == "default":
        middle = _usual(last) if drafter is None else points_of_drafter(drafter, target)
        _within(middle if drafter else (), last)
        around = {p + step for p in middle for step in (-1, 0, 1)} | {0, last}
        return tuple(sorted(p for p in around if 0 <= p <= last))
    if drafter is not None:
        raise UsageError(f"--points {wanted} and --drafter both choose the points: give one of them")
    try:
        points = tuple(sorted(set(parse_points(wanted))))
    except UsageError as problem:
        raise UsageError(str(problem).replace("--aux", "--points", 1) + "; or all, or default") from problem
    _within(points, last)
    return points


def points_of_drafter(drafter: Path, target: Target) -> tuple[int, ...]:
    """The points that a drafter's config states or its trainer's defaults give, in the order of fc's blocks.

    Raises UsageError where they cannot be told, InputError where the folder cannot be opened.
    """
    source = open_source(str(drafter))
    written_here = read_seal(source.folder) is not None  # for an engine, in its numbering
    dialect = None if written_here else recognise(source.config, source.checkpoint.tensors).dialect
    spec = None if dialect is None else read(dialect, source.config, source.checkpoint, target).spec
    if spec is None:
        raise UsageError(f"--drafter {drafter}: its capture points cannot be read; see: eagle3-validate {drafter}")
    return spec.capture_points


def _usual(last: int) -> tuple[int, ...]:
    """What trainers and engines take where nobody says otherwise."""
    return tuple(point for default in POINTS.values() for point in default(last))


def _within(points: Iterable[int], last: int) -> None:
    beyond = tuple(p for p in points if p > last)
    if beyond:
        raise UsageError(f"--points {as_option(beyond)}: the target has {last} layers, so points embed to {last}")

"""Wirings of a drafter: what is fed to it and how, as a value that can be changed, named and scored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from converter.drafter.points import as_option, describe_point, describe_points
from converter.drafter.spec import NORM_FLAGS, DrafterSpec, exact
from converter.forward.damage import DAMAGES


@dataclass(frozen=True)
class Wiring:
    """What is fed to a drafter, and how.

    points      capture points in the order of fc's blocks
    flags       in the order of NORM_FLAGS
    rope_theta  the base of rotary position embedding; its kind and parameters are the drafter's
    map         a name of a vocabulary map (prove.py), "" for the drafter's own reading
    embedding   "" for the reference's embedding, or whose instead
    damage      a name in DAMAGES, "" for the weights as they are
    shift       states of so many tokens earlier
    control     states of other tokens, which no drafter was trained with: what is gained by the right ones
    """

    points: tuple[int, ...]
    flags: tuple[bool, ...]
    rope_theta: float
    map: str = ""
    embedding: str = ""
    damage: str = ""
    shift: int = 0
    control: bool = False

    def spec(self, spec: DrafterSpec) -> DrafterSpec:
        """The drafter's spec with this wiring."""
        rope = replace(spec.rope, theta=self.rope_theta)
        changes: dict[str, Any] = dict(zip(NORM_FLAGS, self.flags, strict=True))
        return replace(spec, capture_points=self.points, rope=rope, **changes)

    def with_flag(self, name: str, value: bool) -> Wiring:
        """The same with one of the flags set."""
        flags = {**dict(zip(NORM_FLAGS, self.flags, strict=True)), name: value}
        return replace(self, flags=tuple(flags.values()))

    def flipped(self, name: str) -> Wiring:
        """The same with one of the flags the other way."""
        return self.with_flag(name, not self.flags[NORM_FLAGS.index(name)])

    def _other_flags(self, other: Wiring) -> dict[str, str]:
        """Flags in which it differs from `other`, as options and words have their values."""
        pairs = zip(NORM_FLAGS, self.flags, other.flags, strict=True)
        return {name: str(mine).lower() for name, mine, theirs in pairs if mine is not theirs}

    def words(self, other: Wiring) -> str:
        """What differs from `other`, e.g. "layer 2 for layer 3" or "norm_output false"."""
        parts = []
        if self.control:
            return "states of other tokens"
        if self.points != other.points:
            parts.append(_points_words(self.points, other.points))
        parts += [f"{name} {value}" for name, value in self._other_flags(other).items()]
        if self.rope_theta != other.rope_theta:
            parts.append(f"rope theta {exact(self.rope_theta)}")
        if self.map != other.map:
            parts.append(f"vocabulary map {self.map or 'as read'}")
        if self.embedding != other.embedding:
            parts.append(f"embedding {self.embedding or 'as declared'}")
        if self.damage != other.damage:
            parts.append(self.damage or "weights as they are")
        if self.shift != other.shift:
            whose = "before" if self.shift > 0 else "after" if self.shift else "itself"
            parts.append(f"states of the token {whose}")
        return ", ".join(parts) or "as declared"

    def options(self, other: Wiring | None) -> list[str]:
        """The options of eagle3-convert that declare this wiring where `other` is declared now, or nothing."""
        words = []
        if other is None:
            other = Wiring((), (False,) * len(NORM_FLAGS), self.rope_theta)
        if self.points != other.points:
            words += ["--aux", as_option(self.points)]
        for name, value in self._other_flags(other).items():
            words += ["--set", f"{name}={value}"]
        if self.rope_theta != other.rope_theta:
            words += ["--set", f"rope_theta={exact(self.rope_theta)}"]
        return words

    def has_options(self, other: Wiring | None) -> bool:
        """Whether `options` says all in which this wiring differs from `other`."""
        other = other or Wiring((), (), 0)
        return replace(self, points=other.points, flags=other.flags, rope_theta=other.rope_theta) == other

    def as_json(self) -> dict[str, Any]:
        """A wiring in report and seal (schemas/report.schema.json)."""
        return {
            "points": list(self.points),
            **dict(zip(NORM_FLAGS, self.flags, strict=True)),
            "rope_theta": self.rope_theta,
            "map": self.map or "as read",
            "embedding": self.embedding or "as declared",
            "damage": self.damage,
            "shift": self.shift,
        }


def declared(spec: DrafterSpec) -> Wiring:
    """The wiring that a spec states."""
    return Wiring(spec.capture_points, tuple(getattr(spec, name) for name in NORM_FLAGS), spec.rope.theta)


def _points_words(points: tuple[int, ...], other: tuple[int, ...]) -> str:
    if len(points) == len(other) and sorted(points) != sorted(other):
        changed = [(a, b) for a, b in zip(points, other, strict=True) if a != b]
        if len(changed) == 1:
            return f"{describe_point(changed[0][0])} for {describe_point(changed[0][1])}"
    return describe_points(points)


def flippable(tensors: Iterable[str]) -> tuple[str, ...]:
    """Flags that can be either way with these tensors (canonical names): a norm needs its weights to be on."""
    there = set(tensors)
    needs = {"norm_before_fc": "input_norm.weight", "fc_norm": "fc_norm.0.weight"}
    return tuple(name for name in NORM_FLAGS if name not in needs or needs[name] in there)


def neighbours(
    wiring: Wiring, points: Sequence[int], flags: Sequence[str], maps: Sequence[str], embeddings: Sequence[str]
) -> list[Wiring]:
    """Wirings that a usual mistake leads to: each point one layer off, all of them, another order, the embedding in
    or out, each flag, the map read otherwise, the other embedding, tensors exchanged, states one token off. Points are
    taken from `points`.
    """
    found: dict[Wiring, None] = {}
    for changed in _other_points(wiring.points, sorted(points)):
        if changed != wiring.points and len(set(changed)) == len(changed) and set(changed) <= set(points):
            found[replace(wiring, points=changed)] = None
    for name in flags:
        found[wiring.flipped(name)] = None
    for name in maps:
        found[replace(wiring, map=name)] = None
    for name in embeddings:
        found[replace(wiring, embedding=name)] = None
    if flags or maps or embeddings:
        found |= dict.fromkeys(replace(wiring, damage=name) for name in DAMAGES)
        found |= dict.fromkeys(replace(wiring, shift=shift) for shift in (1, -1))
    found.pop(wiring, None)
    return list(found)


def _other_points(points: tuple[int, ...], known: Sequence[int]) -> Iterator[tuple[int, ...]]:
    count = len(points)
    for step in (-1, 1):
        yield tuple(p + step for p in points)
        for j in range(count):
            yield (*points[:j], points[j] + step, *points[j + 1 :])
    if count <= 3:
        yield from permutations(points)
    else:
        yield points[::-1]
        for j in range(count - 1):
            yield (*points[:j], points[j + 1], points[j], *points[j + 2 :])
        for j in range(1, count):
            yield (*points[j:], *points[:j])
    if 0 in points:
        rest = tuple(p for p in points if p)
        above = [p for p in known if p > max(rest, default=0)]
        for p in dict.fromkeys([*above[:2], *above[-4:]]):
            yield (*rest, p)
    else:
        yield (0, *points[:-1])
        for j in range(count):
            yield (*points[:j], 0, *points[j + 1 :])

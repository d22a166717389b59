"""Finds the wiring that a drafter was trained with, and judges the declared one by its neighbours.

Both compare log-likelihoods of the target's own choices on a sample (contrast.py). A sample that holds too few
positions to tell two wirings apart says so, and how many would do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from converter.forward.contrast import Contrast, Verdict
from converter.forward.embedding import Embedding
from converter.forward.evaluate import Side
from converter.forward.states import States
from converter.forward.wiring import Wiring, declared, neighbours
from converter.forward.wiring_scores import Stretch, WiringScorer, groups, stretches
from converter.rules.behaviours import POINTS

STAGES = (128, 384, 512)  # positions of the first group, of the second, of each further one
_EXHAUSTIVE = 800  # choices of points that are all tried; beyond, they are climbed
_KEPT = 8  # wirings that are compared on positions that did not choose them
_SEARCHED = 128  # positions that a search chooses on; the others confirm, three times as many where there are any
_TURNS = 4  # times that the best may change on the positions that confirm
_THETAS = (1e4, 1e5, 5e5, 1e6, 5e6, 1e7)  # of published targets


@dataclass(frozen=True)
class Alternatives:
    """What a wiring can be varied by, beside its points: names as in Wiring.

    rope_theta  the target's, which a drafter's should be unless it was trained otherwise; None where it is not known
    """

    points: tuple[int, ...]
    flags: tuple[str, ...]
    maps: Mapping[str, Tensor]
    embeddings: Mapping[str, Embedding]
    rope_theta: float | None = None

    def neighbours(self, wiring: Wiring) -> list[Wiring]:
        """Wirings that a usual mistake leads to (wiring.neighbours), the target's rope base among them."""
        found = neighbours(wiring, self.points, self.flags, tuple(self.maps), tuple(self.embeddings))
        if self.rope_theta is not None and self.rope_theta != wiring.rope_theta:
            found.append(replace(wiring, rope_theta=self.rope_theta))
        return found


@dataclass(frozen=True)
class Ranked:
    """A wiring, and its contrast with the one that it is held against."""

    wiring: Wiring
    contrast: Contrast


@dataclass(frozen=True)
class Judgement:
    """The declared (or best) wiring `of` and others against it, best first.

    control    states of other tokens against it
    positions  positions looked at
    """

    of: Wiring
    others: tuple[Ranked, ...]
    control: Contrast
    positions: int

    def those(self, *verdicts: Verdict) -> list[Ranked]:
        """The others of which one of these is said."""
        return [r for r in self.others if r.contrast.verdict in verdicts]

    @property
    def needed(self) -> int:
        """Positions on which what is undecided here would show: an estimate, to two digits, upwards."""
        count = max((r.contrast.needed for r in self.those("undecided")), default=0)
        unit: int = 10 ** max(len(str(count)) - 2, 0)
        return -(-count // unit) * unit

    def as_json(self) -> dict[str, Any]:
        """What report and seal say of other wirings (schemas/report.schema.json, `proof.wiring`)."""
        return {
            "of": self.of.as_json(),
            "positions": self.positions,
            "needed": self.needed,
            "others": [
                {"wiring": r.wiring.as_json(), "differs": r.wiring.words(self.of), "contrast": r.contrast.as_json()}
                for r in self.others
            ],
            "control": self.control.as_json(),
        }


class Judge:
    """Scores wirings of one reference side on one sample."""

    def __init__(
        self,
        side: Side,
        sequences: Sequence[States],
        steps: int,
        alternatives: Alternatives,
        told: Callable[[str], None] = lambda what: None,
    ) -> None:
        self._side, self._sequences, self._steps, self._told = side, sequences, steps, told
        self._alternatives = alternatives
        self._known: dict[tuple[Stretch, ...], dict[Wiring, Tensor]] = {}
        self._rows: dict[tuple[Stretch, ...], tuple[Tensor, Tensor]] = {}  # rows that count, and their stretch

    def judge(
        self,
        wiring: Wiring,
        others: Iterable[Wiring],
        parts: Sequence[Stretch] | None = None,
        thorough: Wiring | None = None,
        settled: tuple[Verdict, ...] = ("worse",),
    ) -> Judgement:
        """Each of `others` against `wiring`: on a few positions first, on more while undecided.

        parts     the stretches to look at, where not all
        settled   verdicts after which one is looked at no further
        thorough  the one of the others that is looked at on all positions whatever the first ones say
        """
        contrasts = {other: Contrast() for other in others}
        contrasts[replace(wiring, control=True)] = Contrast()
        positions = 0
        for group in groups(stretches(self._sequences) if parts is None else parts, STAGES):
            # Whether something is better is judged on all positions.
            open_ = [o for o, c in contrasts.items() if c.verdict not in settled or o == thorough]
            if not open_:
                break
            likelihood = self._likelihoods(group, [wiring, *open_])
            scored, unit = self._rows[tuple(group)]
            for other in open_:
                difference = (likelihood[other] - likelihood[wiring]).sum(0)
                contrasts[other].add(difference[scored], unit[scored])
            positions += int(scored.sum())
        [control] = [c for o, c in contrasts.items() if o.control]
        ranked = [Ranked(o, c) for o, c in contrasts.items() if not o.control]
        ranked.sort(key=lambda r: -r.contrast.mean)
        return Judgement(wiring, tuple(ranked), control, positions)

    def neighbours(self, wiring: Wiring) -> Judgement:
        """What is declared, against its neighbours."""
        return self.judge(wiring, self._alternatives.neighbours(wiring), settled=("worse", "equal"))

    def find(self) -> Judgement:
        """Search among all points and flags; the best wiring, and the others against it on other positions."""
        parts = stretches(self._sequences)
        searched = next(groups(parts, [max(min(_SEARCHED, sum(p.positions for p in parts) // 4), 1)]))
        scorer = self._scorer(searched)
        start = declared(self._side.model.spec)
        kept = self._best_points(scorer, start)
        self._told("search: flags, map, embedding")
        full = {w: float(likelihood.sum()) for w, likelihood in scorer.likelihoods(self._variants(kept))}
        kept = sorted(full, key=lambda w: -full[w])[:_KEPT]
        others = dict.fromkeys([*kept, *self._alternatives.neighbours(kept[0]), start])
        best = kept[0]
        for _ in range(_TURNS):
            result = self.judge(best, [w for w in others if w != best], parts[len(searched) :], start)
            ahead = [r.wiring for r in result.others if r.contrast.mean > 0]
            if not ahead:
                break
            best = ahead[0]
        return result

    def _scorer(self, group: Sequence[Stretch]) -> WiringScorer:
        return WiringScorer(
            self._side, self._sequences, group, self._steps, self._alternatives.maps, self._alternatives.embeddings
        )

    def _likelihoods(self, group: Sequence[Stretch], wirings: Iterable[Wiring]) -> dict[Wiring, Tensor]:
        """[K, N] of each wiring on these stretches; what was computed once is kept."""
        known = self._known.setdefault(tuple(group), {})
        missing = [w for w in wirings if w not in known]
        if missing:
            scorer = self._scorer(group)
            self._rows[tuple(group)] = scorer.scored[0], scorer.unit
            for wiring, likelihood in scorer.likelihoods(missing):
                known[wiring] = likelihood
                self._told(
                    f"other wirings: {sum(map(len, self._known.values())):,} runs of {len(group)} stretches of text"
                )
        return known

    def _best_points(self, scorer: WiringScorer, start: Wiring) -> list[Wiring]:
        """The best wirings by their first step, in which only points and the flags before the layers show."""
        scores: dict[Wiring, float] = {}

        def compute(wirings: Iterable[Wiring]) -> None:
            for wiring, likelihood in scorer.likelihoods([w for w in wirings if w not in scores], 1):
                scores[wiring] = float(likelihood.sum())
                self._told(f"search: {len(scores):,} choices of points")

        def score(wiring: Wiring) -> float:
            compute([wiring])
            return scores[wiring]

        known, count = self._alternatives.points, len(start.points)
        residuals = [start.with_flag("norm_before_residual", value) for value in (False, True)]
        if math.perm(len(known), count) <= _EXHAUSTIVE:
            compute(replace(wiring, points=points) for wiring in residuals for points in permutations(known, count))
        else:
            for wiring in residuals:
                for points in self._starts(start.points):
                    score(replace(wiring, points=points))
            best = self._climb(max(scores, key=score), score)
            # A wrong residual costs far more than wrong points; still, it may have hidden which are right.
            flipped = best.flipped("norm_before_residual")
            if score(flipped) > score(best):
                self._climb(flipped, score)
        return sorted(scores, key=lambda w: -scores[w])[:_KEPT]

    def _starts(self, points: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Points of usual trainers in the order of fc's blocks, where the sample has them."""
        last, count = max(self._alternatives.points), len(points)
        usual = [default(last) for default in POINTS.values()]
        usual += [(0, *p[:-1]) for p in usual] + [(*p[1:], last) for p in usual]
        found = [points] + [p for p in usual if len(p) == count]
        spread = torch.linspace(0, len(self._alternatives.points) - 1, count).long().tolist()
        found.append(tuple(self._alternatives.points[i] for i in spread))
        return [p for p in dict.fromkeys(found) if set(p) <= set(self._alternatives.points) and len(set(p)) == count]

    def _climb(self, wiring: Wiring, score: Callable[[Wiring], float]) -> Wiring:
        """Change one point at a time, then the whole as its neighbours do, as long as that helps."""
        while True:
            best = wiring
            for j in range(len(wiring.points)):
                for point in self._alternatives.points:
                    points = (*best.points[:j], point, *best.points[j + 1 :])
                    if len(set(points)) == len(points):
                        best = max(best, replace(best, points=points), key=score)
            for other in neighbours(best, self._alternatives.points, (), (), ()):
                best = max(best, other, key=score)
            if best == wiring:
                return best
            wiring = best

    def _variants(self, wirings: Sequence[Wiring]) -> list[Wiring]:
        """The wirings with norm_output either way; the first also with every other flag, map, embedding and theta."""
        found: dict[Wiring, None] = {}
        for wiring in wirings:
            for value in (False, True):
                found[wiring.with_flag("norm_output", value)] = None
        for wiring in [w for w in list(found) if w.points == wirings[0].points]:
            alternatives = self._alternatives
            maps, embeddings = tuple(alternatives.maps), tuple(alternatives.embeddings)
            found |= dict.fromkeys(neighbours(wiring, (), alternatives.flags, maps, embeddings))
            found |= dict.fromkeys(replace(wiring, rope_theta=theta) for theta in _THETAS)
        return list(found)

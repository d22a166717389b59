"""Id rules: how a list of layer ids in a config becomes capture points.

A rule is a function from ids to points. Engines apply it forwards; a converter has to find ids that the rule
turns into the points meant, which for conditional rules is not "subtract one". The closed registry below is
all that is known (SGLang 0.4.6 to 0.5.23, vLLM 0.9 to 0.33, speculators 0.1 to 0.9); mappings choose by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

Points = tuple[int, ...]


def _plus_one(ids: Sequence[int], layers: int) -> Points:
    """Ids are 0-based layers whose output is meant (SGLang, SpecForge, TensorRT-LLM)."""
    return tuple(i + 1 for i in ids)


def _literal(ids: Sequence[int], layers: int) -> Points:
    """Ids are capture points (speculators from 0.5, vLLM)."""
    return tuple(ids)


def _plus_one_if_first_is_one(ids: Sequence[int], layers: int) -> Points:
    """SGLang's DeepSeek family from 0.5.13 (models/deepseek_v2.py, set_eagle3_layers_to_capture)."""
    return _plus_one(ids, layers) if ids and ids[0] == 1 else tuple(ids)


def _literal_if_max_is_last(ids: Sequence[int], layers: int) -> Points:
    """SGLang's gpt-oss from 0.5.17 (models/gpt_oss.py, set_eagle3_layers_to_capture)."""
    return tuple(ids) if ids and max(ids) == layers else _plus_one(ids, layers)


def _plus_one_ascending(ids: Sequence[int], layers: int) -> Points:
    """As plus_one, in layer order whatever the order of the list: the trainer collects states as the target computes
    them (ModelOpt), and may list its ids unordered.
    """
    return tuple(sorted(i + 1 for i in ids))


def _ascending(ids: Sequence[int], layers: int) -> Points:
    """Ids are capture points, in layer order whatever the order of the list."""
    return tuple(sorted(ids))


RULES: Mapping[str, Callable[[Sequence[int], int], Points]] = {
    "plus_one": _plus_one,
    "literal": _literal,
    "plus_one_if_first_is_one": _plus_one_if_first_is_one,
    "literal_if_max_is_last": _literal_if_max_is_last,
    "plus_one_ascending": _plus_one_ascending,
    "ascending": _ascending,
}
# Rules under which no list of ids reaches a point of choice: the engine reads none, or nobody has read its code.
IGNORED = "ids_ignored"
WITHOUT_IDS = frozenset({IGNORED, "unknown"})
NEEDS_LAYERS = frozenset({"literal_if_max_is_last"})


def points_of(rule: str, ids: Sequence[int], layers: int | None) -> Points | None:
    """The points that `rule` makes of `ids`; None where they do not decide, or a number of layers unknown."""
    if rule in WITHOUT_IDS or (layers is None and rule in NEEDS_LAYERS):
        return None
    return RULES[rule](ids, layers or 0)


def solve(rule: str, points: Sequence[int], layers: int | None) -> tuple[int, ...] | None:
    """Ids that `rule` turns into exactly the set `points`; None where no list of ids does.

    Engines capture in layer order whatever the order of the ids, so ids may come back in another order than
    the points: DeepSeek's 1, 30, 58 is reached by listing 30, 1, 58. An unknown number of layers is taken to
    be the smallest that has all points; the solution then holds for every larger one as well, because ids
    that mean "output of layer" stay below it.
    """
    wanted = sorted(points)
    if rule not in RULES or not wanted or len(set(wanted)) != len(wanted) or wanted[0] < 0:
        return None
    known = layers if layers is not None else wanted[-1]
    for ids in _candidates(wanted):
        if sorted(RULES[rule](ids, known)) == wanted:
            return ids
    return None


def _candidates(wanted: list[int]) -> Iterator[tuple[int, ...]]:
    """Both readings of the ids, ascending first, then with each other id in front (rules look at the first)."""
    for shift in (1, 0):
        ids = [p - shift for p in wanted]
        for first in range(len(ids)):
            yield (ids[first], *ids[:first], *ids[first + 1 :])

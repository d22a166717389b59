"""What differs between two drafters, wiring first, whatever their forms: everything that `eagle3 diff` shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from converter.drafter.layout import IN_BLOCKS
from converter.drafter.spec import FIELDS, NORM_FLAGS
from converter.errors import InputError
from converter.findings import Finding, error
from converter.look.subject import Asked, Subject, open_subject
from converter.look.values import Compared, Stored, compare_tensors
from converter.rules.fields import keys_read, leaves, lookup

Meaning = Literal["unknown", "carried", "read", "nothing"]  # what matters most first
FEW = 5  # entries of the map that are shown
_WIRING = ("capture_points", *NORM_FLAGS, "rope")


@dataclass(frozen=True)
class FieldPair:
    """A spec field of both. same: None where a side leaves it to the launch command, which `words` says."""

    name: str
    a: Any
    b: Any
    same: bool | None
    words: str = ""


@dataclass(frozen=True)
class MapPair:
    """The maps as absolute ids; sizes None where a side has none that can be read.

    stored_*    how each was stored (offsets, ids, t2d, head); "" for none
    differing   draft ids that mean another target id, or that one side lacks
    first       the first few of them: draft id, target id of a and of b (None where it has no such draft id)
    same_ids    the same target ids under other draft ids
    """

    size_a: int | None
    size_b: int | None
    differing: int
    first: tuple[tuple[int, int | None, int | None], ...] = ()
    same_ids: bool = False
    stored_a: str = ""
    stored_b: str = ""

    @property
    def unread(self) -> bool:
        """Neither has a map that can be read: then the stored tensors are held together."""
        return self.size_a is None and self.size_b is None

    @property
    def same(self) -> bool:
        """Whether every draft id means the same, as far as maps can be read."""
        return self.unread or (self.differing == 0 and self.size_a == self.size_b)


@dataclass(frozen=True)
class TensorPair:
    """A tensor of both, by canonical name; a or b is "" where that side has none.

    form_a, form_b   dtype and shape as stored, "" where there is none
    expected   the order that the capture points ask for, () for that of a
    meaning    "" for a part of the drafter, else why it is none (t2d beside d2t, a training leftover)
    """

    name: str
    a: str
    b: str
    compared: Compared | None = None
    expected: tuple[int, ...] = ()
    meaning: str = ""
    form_a: str = ""
    form_b: str = ""

    @property
    def same(self) -> bool:
        """The same numbers in the order that is expected, or no part of the drafter."""
        if self.meaning:
            return True
        c = self.compared
        return c is not None and c.relation in ("equal", "equal values", "permuted") and c.order == self.expected


@dataclass(frozen=True)
class KeyPair:
    """A config key that differs: its values, None where a side has no such key, and whether it means anything."""

    key: str
    a: Any
    b: Any
    meaning: Meaning


@dataclass(frozen=True)
class Difference:
    """Everything that differs, and what does not.

    order        block i of b's fc belongs to the capture point of block order[i] of a's; () where they are alike
    wiring       capture points, norm flags and rope; `map` and `embedding` belong to it
    spec         the other fields of the spec
    tensors      those of both, and what only one has
    config       keys that differ
    """

    a: Subject
    b: Subject
    order: tuple[int, ...]
    wiring: tuple[FieldPair, ...]
    map: MapPair
    embedding: FieldPair
    spec: tuple[FieldPair, ...]
    tensors: tuple[TensorPair, ...]
    config: tuple[KeyPair, ...]

    @property
    def wiring_same(self) -> bool:
        """Whether both are fed the same, as far as it is known."""
        return self.map.same and all(f.same is not False for f in (*self.wiring, self.embedding))

    @property
    def same(self) -> bool:
        """The same drafter: wiring, spec, map and values, and no key that may mean something."""
        spec = all(f.same is not False for f in self.spec)
        keys = all(k.meaning in ("read", "nothing") for k in self.config)
        return self.wiring_same and spec and all(t.same for t in self.tensors) and keys


def diff(given_a: str, given_b: str, asked: Asked) -> Difference:
    """What differs between two drafters: folders, files or ids on the Hub.

    Raises InputError where one of the two is no drafter that can be read, UsageError for options that name nothing.
    """
    a, b = (_readable(open_subject(given, asked)) for given in (given_a, given_b))
    order = _order(a, b)
    maps = _maps(a, b)
    return Difference(
        a,
        b,
        order,
        tuple(_fields(a, b, _WIRING, order)),
        maps,
        _embedding(a, b),
        tuple(_fields(a, b, [f for f in FIELDS if f not in _WIRING], order)),
        tuple(_tensors(a, b, order, maps)),
        tuple(_keys(a, b)),
    )


def _readable(subject: Subject) -> Subject:
    if subject.spec is not None:
        return subject
    faults = [f for f in subject.findings if f.severity == "error"]
    if faults:
        raise InputError(replace(faults[0], message=f"{subject.source.given}: {faults[0].message}"))
    raise InputError(_no_reader(subject))


def _no_reader(subject: Subject) -> Finding:
    engines = ", ".join(map(str, subject.sealed_for))
    return error(
        "C203",
        f"{subject.source.given}: an output of this tool whose config no engine of its seal reads",
        where=str(subject.source.folder / "config.json"),
        found=f"sealed for {engines}" if engines else "a seal for engines that these rules do not know",
        fix=("if rules of your own made it, give them: --mapping FILE",),
    )


# --- wiring and spec ------------------------------------------------------------------------------------------


def _order(a: Subject, b: Subject) -> tuple[int, ...]:
    """Where b has the points of a in another order. Outputs that do not name them have them in layer order."""
    x, y = a.points, b.points
    if "capture_points" in a.unsaid and not isinstance(y, str):
        x = tuple(sorted(y))
    elif "capture_points" in b.unsaid and not isinstance(x, str):
        y = tuple(sorted(x))
    if isinstance(x, str) or isinstance(y, str) or x == y:
        return ()
    distinct = len(set(x)) == len(x)
    if not distinct or sorted(x) != sorted(y):
        return ()
    return tuple(x.index(p) for p in y)


def _fields(a: Subject, b: Subject, names: Sequence[str], order: tuple[int, ...]) -> Iterator[FieldPair]:
    assert a.spec is not None and b.spec is not None
    for name in names:
        if name == "capture_points":
            x, y, same = a.points, b.points, a.points == b.points or bool(order)
            words = "the same in another order, which fc must follow" if order else ""
        else:
            x, y = getattr(a.spec, name), getattr(b.spec, name)
            same, words = x == y, ""
        unsaid = a.unsaid.get(name) or b.unsaid.get(name)
        if unsaid and x != y:
            yield FieldPair(name, x, y, None, unsaid)
        else:
            yield FieldPair(name, x, y, same, words)


def _maps(a: Subject, b: Subject) -> MapPair:
    x, y = _target_ids(a), _target_ids(b)
    stored = [s.drafter.vocab.source if s.drafter and s.drafter.vocab else "" for s in (a, b)]
    if x is None or y is None:
        sizes = (None if x is None else len(x), None if y is None else len(y))
        return MapPair(*sizes, max(size or 0 for size in sizes), stored_a=stored[0], stored_b=stored[1])
    shorter = 0 if isinstance(x, range) and isinstance(y, range) else min(len(x), len(y))
    differing = [(i, x[i], y[i]) for i in range(shorter) if x[i] != y[i]]
    same_ids = bool(differing) and sorted(x) == sorted(y) if len(x) == len(y) else False
    surplus = abs(len(x) - len(y))
    first = [*differing[:FEW], *_surplus(x, y)][:FEW]
    return MapPair(len(x), len(y), len(differing) + surplus, tuple(first), same_ids, stored[0], stored[1])


def _surplus(x: Sequence[int], y: Sequence[int]) -> Iterator[tuple[int, int | None, int | None]]:
    """The first draft ids that only the longer map has."""
    for i in range(min(len(x), len(y)), min(len(x), len(y)) + min(abs(len(x) - len(y)), FEW)):
        yield i, x[i] if i < len(x) else None, y[i] if i < len(y) else None


def _target_ids(subject: Subject) -> list[int] | range | None:
    """The target id of each draft id, a range where there is no map; None where there is one, and it cannot be read."""
    drafter = subject.drafter
    assert drafter is not None
    if drafter.vocab is not None:
        ids: list[int] = drafter.vocab.ids.tolist()
        return ids
    unread = drafter.spec.reduced_vocabulary or "d2t" in drafter.tensors
    return None if unread else range(drafter.spec.vocab_size)


def _embedding(a: Subject, b: Subject) -> FieldPair:
    """Whose embedding each is run with; none of its own is the target's, and so is one that was held against it."""
    assert a.drafter is not None and b.drafter is not None
    words = {"absent": "none of its own, so the target's", "target's": "own, the target's rows"}
    x, y = (words.get(s.drafter.embedding, "own") if s.drafter else "" for s in (a, b))
    theirs = [s.drafter is not None and s.drafter.embedding in words for s in (a, b)]
    stored = ["embed_tokens.weight" in s.tensors for s in (a, b)]
    return FieldPair("embedding", x, y, all(theirs) or stored[0] == stored[1])


# --- tensors --------------------------------------------------------------------------------------------------


def _tensors(a: Subject, b: Subject, order: tuple[int, ...], maps: MapPair) -> Iterator[TensorPair]:
    """Every tensor of both by canonical name, those of b where a has its like."""
    assert a.spec is not None and b.spec is not None
    same_points = a.spec.num_points == b.spec.num_points
    blocks = a.spec.num_points if same_points else 1
    free = _embedding(a, b).same
    names = dict.fromkeys((*a.tensors, *(_renumbered(n, order) for n in b.tensors)))
    back = tuple(order.index(j) for j in range(len(order)))
    for name in names:
        counterpart = _renumbered(name, back)
        mine, theirs = a.tensors.get(name, ()), b.tensors.get(counterpart, ())
        meaning = _meaning(name, maps, bool(mine) and bool(theirs), bool(free))
        if not mine or not theirs:
            for stored in (*mine, *theirs):
                yield _alone(a if mine else b, counterpart, stored, bool(mine), meaning)
            continue
        in_blocks = name in IN_BLOCKS
        expected = order if in_blocks else ()
        for x, y in _pairs(mine, theirs):
            stored_x, stored_y = Stored(a.checkpoint, x), Stored(b.checkpoint, y)
            compared = compare_tensors(stored_x, stored_y, expected, blocks if in_blocks else 1)
            yield TensorPair(counterpart, x, y, compared, expected, meaning, _form(a, x), _form(b, y))
    yield from _left_over(a, b)


def _alone(subject: Subject, canonical: str, name: str, is_a: bool, meaning: str) -> TensorPair:
    form = _form(subject, name)
    if is_a:
        return TensorPair(canonical, name, "", meaning=meaning, form_a=form)
    return TensorPair(canonical, "", name, meaning=meaning, form_b=form)


def _form(subject: Subject, name: str) -> str:
    info = subject.checkpoint.tensors[name].info
    return f"{info.dtype} {list(info.shape)}"


def _pairs(mine: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Outputs may hold a tensor under two names: each of them against the other side's first."""
    yield from ((mine[0], y) for y in theirs)
    yield from ((x, theirs[0]) for x in mine[1:])


def _renumbered(name: str, order: tuple[int, ...]) -> str:
    """The name in a of what b calls `name`, or with the inverse of `order` back: norms before fc follow its blocks."""
    parts = name.split(".")
    if not order or parts[0] != "fc_norm" or int(parts[1]) >= len(order):
        return name
    return f"fc_norm.{order[int(parts[1])]}.weight"


def _meaning(name: str, maps: MapPair, both: bool, same_embedding: bool) -> str:
    """Why a difference in a tensor is none in the drafter; "" where it is one."""
    if name in ("d2t", "t2d") and maps.same and not maps.unread:
        return "the map is the same"
    if name == "embed_tokens.weight" and same_embedding and not both:
        return "the target's embedding, which engines take where there is none"
    return ""


def _left_over(a: Subject, b: Subject) -> Iterator[TensorPair]:
    """Tensors that are no part of the drafter, or that the rules do not know."""
    for subject, is_a in ((a, True), (b, False)):
        assert subject.drafter is not None
        taken = {name for names in subject.tensors.values() for name in names}
        for name in subject.checkpoint.tensors:
            if name not in taken:
                why = subject.drafter.dropped.get(name, "")
                unknown = any(f.code == "T101" and f.where == name for f in subject.findings)
                meaning = "" if unknown or not why else why
                yield _alone(subject, name, name, is_a, meaning)


# --- config ---------------------------------------------------------------------------------------------------


def _keys(a: Subject, b: Subject) -> Iterator[KeyPair]:
    configs = (a.source.config, b.source.config)
    for key in dict.fromkeys((*leaves(configs[0]), *leaves(configs[1]))):
        x, y = (lookup(config, key) for config in configs)
        if x != y or type(x) is not type(y):
            found = [_key_meaning(s, key) for s, v in zip((a, b), (x, y), strict=True) if v is not None]
            yield KeyPair(key, x, y, min(found, key=get_args(Meaning).index))


def _key_meaning(subject: Subject, key: str) -> Meaning:
    """What a key is to whoever reads this side's config."""
    if any(f.code == "C204" and f.where == key for f in subject.findings):
        return "unknown"
    if subject.dialect is not None:
        carried, fields = subject.dialect.rules.get("carry", ()), [subject.dialect.rules["fields"]]
    else:
        engines = subject.sealed_for
        if not any(_within(key, engine.rules["write"]) for engine in engines):
            return "carried"  # what the writer did not write went over as it was
        carried, fields = (), [engine.rules["read"] for engine in engines]
    if _within(key, carried):
        return "carried"
    return "read" if any(_within(key, keys_read(rules)) for rules in fields) else "nothing"


def _within(key: str, paths: Iterable[str]) -> bool:
    return any(key == path or key.startswith(f"{path}.") for path in paths)

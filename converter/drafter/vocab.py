"""The vocabulary map between draft ids and target ids, read without trusting its declared form.

Trainers store `d2t` as offsets (target id = draft id + d2t[draft id]) or as absolute ids, and beside it
`t2d`, which marks the target ids that the draft vocabulary holds. Both readings of d2t are tested; the right
one is in range, free of duplicates and agrees with t2d. Canonical form: absolute target ids [Vd].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from converter.findings import Finding, error, warning

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Form = Literal["offsets", "ids"]
FORMS: tuple[Form, ...] = ("offsets", "ids")
# Where the ids of a map come from.
MapSource = Literal["offsets", "ids", "t2d", "head", "identity"]


@dataclass(frozen=True)
class Reading:
    """One reading of d2t and what speaks against it.

    ids            target id of each draft id, int64 [Vd]
    out_of_range   how many ids are below 0 or not below V
    duplicates     how many ids repeat an earlier one
    outside_t2d    how many ids t2d does not mark, plus how many it marks that no draft id reaches; None without t2d
    """

    form: Form
    ids: NDArray[np.int64]
    out_of_range: int
    duplicates: int
    outside_t2d: int | None

    @property
    def fits(self) -> bool:
        return not (self.out_of_range or self.duplicates or self.outside_t2d)

    def against(self, vocab_size: int) -> str:
        """What speaks against this reading, in words."""
        parts = []
        if self.out_of_range:
            low, high = int(self.ids.min()), int(self.ids.max())
            span = f"({low:,}..{high:,})"
            parts.append(f"{self.out_of_range:,} of {len(self.ids):,} ids outside 0..{vocab_size - 1:,} {span}")
        if self.duplicates:
            parts.append(f"{self.duplicates:,} duplicates")
        if self.outside_t2d:
            parts.append(f"{self.outside_t2d:,} ids differ from t2d")
        return " and ".join(parts) or "nothing"


def read_both_ways(d2t: NDArray[np.integer], t2d: NDArray[np.bool_] | None, vocab_size: int) -> dict[Form, Reading]:
    """Both readings of d2t [Vd] for a target vocabulary of `vocab_size`; t2d is a mask [V] or None."""
    import numpy as np

    stored = d2t.astype(np.int64)  # an absurd offset that wraps around is outside the vocabulary before and after
    readings: dict[Form, Reading] = {}
    for form in FORMS:
        ids = stored + np.arange(len(stored)) if form == "offsets" else stored
        inside = ids[(ids >= 0) & (ids < vocab_size)]
        ordered = np.sort(ids)  # np.unique would import numpy.ma, which takes longer than all else here
        repeated = int(np.count_nonzero(ordered[1:] == ordered[:-1]))
        outside = None
        if t2d is not None:
            reached = np.zeros(max(vocab_size, len(t2d)), dtype=bool)
            reached[inside] = True
            marked = np.zeros_like(reached)
            marked[: len(t2d)] = t2d
            outside = int(np.count_nonzero(reached != marked)) + len(ids) - len(inside)
        readings[form] = Reading(form, ids, len(ids) - len(inside), repeated, outside)
    return readings


@dataclass(frozen=True)
class VocabularyMap:
    """ids   target id of each draft id, int64 [Vd]
    source   where they come from: d2t in one of its forms, the marks of t2d, or the rows of a frozen head
    """

    ids: NDArray[np.int64]
    source: MapSource

    @property
    def identity(self) -> bool:
        import numpy as np

        return bool(np.array_equal(self.ids, np.arange(len(self.ids))))


def decide(
    d2t: NDArray[np.integer] | None,
    t2d: NDArray[np.bool_] | None,
    vocab_size: int,
    draft_vocab_size: int,
    declared: Form,
) -> tuple[VocabularyMap | None, list[Finding]]:
    """The canonical map, and what is to be said of how it was stored.

    d2t [Vd] and t2d [V] as stored, None where absent; `declared` is the form that the dialect writes.
    Repairs where exactly one reading is right (V201), or t2d alone tells it (V202); errors where a map was never loaded
    (V203), is missing (V204), is of other sizes (V205, V206), or can be read both ways (V207) or neither (V208).
    """
    if t2d is not None and len(t2d) != vocab_size:
        return None, [
            error(
                "V206",
                "t2d does not cover the target's vocabulary",
                where="t2d",
                found=f"{len(t2d):,} entries",
                expected=f"{vocab_size:,}, the vocab_size of config.json",
                why="map and config are of different targets, or the vocabulary was padded or cut in between",
                fix=("save the checkpoint again with the map and the vocab_size of its own run",),
            )
        ]
    if d2t is None:
        return _without_d2t(t2d, vocab_size, draft_vocab_size)
    if len(d2t) != draft_vocab_size:
        return None, [
            error(
                "V205",
                "d2t does not fit the draft vocabulary",
                where="d2t",
                found=f"{len(d2t):,} entries",
                expected=f"{draft_vocab_size:,}, the draft_vocab_size of config.json",
                why="engines index it with every draft token",
                fix=("put d2t, lm_head and draft_vocab_size of one run together",),
            )
        ]
    readings = read_both_ways(d2t, t2d, vocab_size)
    if not d2t.any() and draft_vocab_size < vocab_size:
        return VocabularyMap(readings["offsets"].ids, "offsets"), [_never_loaded(draft_vocab_size, vocab_size)]
    fitting = [form for form in FORMS if readings[form].fits]
    if len(fitting) == 1:
        [form] = fitting
        first = VocabularyMap(readings[form].ids, form)
        if first.identity and draft_vocab_size < vocab_size:
            return first, [_never_loaded(draft_vocab_size, vocab_size, "holds the first target ids in order")]
        return first, [] if form == declared else [_other_form(form, declared, readings, vocab_size)]
    if fitting:
        return VocabularyMap(readings[declared].ids, declared), [_ambiguous(declared)]
    return None, [_neither(readings, vocab_size)]


def _without_d2t(
    t2d: NDArray[np.bool_] | None, vocab_size: int, draft_vocab_size: int
) -> tuple[VocabularyMap | None, list[Finding]]:
    import numpy as np

    if draft_vocab_size == vocab_size:
        return None, []
    if t2d is not None and int(np.count_nonzero(t2d)) == draft_vocab_size:
        return VocabularyMap(np.flatnonzero(t2d).astype(np.int64), "t2d"), [
            warning(
                "V202",
                "d2t is missing; it was made anew from t2d",
                where="d2t",
                found=f"t2d marks {draft_vocab_size:,} target ids, as many as the draft vocabulary has",
                why="this is right where draft ids ascend with target ids, as every known trainer numbers them",
            )
        ]
    marked = "there is no t2d" if t2d is None else f"t2d marks {int(np.count_nonzero(t2d)):,} ids"
    return None, [
        error(
            "V204",
            "the draft vocabulary is smaller than the target's and there is no d2t",
            where="d2t",
            found=f"{draft_vocab_size:,} draft ids, {vocab_size:,} target ids; {marked}",
            expected="the map that training used",
            why="engines then take draft id i for target id i: a healthy server that accepts next to nothing",
            fix=("save the checkpoint again with the map that training used",),
        )
    ]


def _never_loaded(draft_vocab_size: int, vocab_size: int, holds: str = "is all zeros") -> Finding:
    last = f"{draft_vocab_size - 1:,}"
    return error(
        "V203",
        f"d2t {holds} though the draft vocabulary is smaller than the target's",
        where="d2t",
        found=f"draft ids 0..{last} would mean target ids 0..{last} of {vocab_size:,}",
        expected="the map that training used",
        why="a map that was never loaded: a healthy server whose drafts are rejected",
        fix=(
            "find the map of the training run (d2t in its data folder) and save the checkpoint with it",
            "where the head was frozen, the target's weights tell the map: --target FOLDER, or org/name on the Hub",
        ),
    )


def _other_form(form: Form, declared: Form, readings: dict[Form, Reading], vocab_size: int) -> Finding:
    return warning(
        "V201",
        f"d2t holds {_FORM_WORDS[form]}, not {_FORM_WORDS[declared]}; it was read as such",
        where="d2t",
        found=f"read as {declared}: {readings[declared].against(vocab_size)}",
        why="an engine that expects offsets would propose other tokens than were trained",
    )


def _ambiguous(declared: Form) -> Finding:
    return error(
        "V207",
        "d2t can be read as offsets and as ids, and nothing tells which was meant",
        where="d2t",
        found="both readings are in range and free of duplicates, and there is no t2d to decide",
        why="the wrong one proposes other tokens than were trained",
        fix=(f"if it holds {declared}, as this dialect writes it: --allow V207",),
    )


def _neither(readings: dict[Form, Reading], vocab_size: int) -> Finding:
    return error(
        "V208",
        "d2t is no map into the target's vocabulary, read as offsets or as ids",
        where="d2t",
        found="; ".join(f"as {form}: {readings[form].against(vocab_size)}" for form in FORMS),
        expected="target ids in range, without duplicates, those that t2d marks",
        why="the drafter would propose tokens that it does not mean",
        fix=("save the checkpoint again with the map of its own training run",),
    )


_FORM_WORDS = {"offsets": "offsets", "ids": "absolute ids"}

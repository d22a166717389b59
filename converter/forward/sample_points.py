"""Which capture point each state of a sample is, and which of them is the target's last."""

from __future__ import annotations

from converter.drafter.points import as_option, describe_points
from converter.drafter.spec import DrafterSpec
from converter.errors import InputError
from converter.findings import error
from converter.forward.sample_forms import LAST_STATE, OWN, Last, Opened, no_sample

UNNAMED = -1  # the target's last state where its depth is not known


def points_of(
    first: Opened, spec: DrafterSpec | None, given: tuple[int, ...] | None, last_point: int | None
) -> tuple[int, ...]:
    """The point of each state of the file; `UNNAMED` for a last state whose number is not known.

    spec   the drafter, whose capture points a trainer's states are; None where it states none
    """
    count = first.sequences[0].states.count
    if given is not None and len(set(given)) != len(given):
        raise _misnamed(first, count, "different points", as_option(given), spec, last_point)
    if first.form == OWN:
        stated = _stated(first, count)
        if stated is not None and given is not None and given != stated:
            raise _misnamed(first, count, f"{as_option(stated)}, as the file says", as_option(given), spec, last_point)
        names = stated or given or tuple(range(count))
    elif given is not None:
        names = given
    elif spec is None:
        expected = "their numbers: neither the file nor the drafter's config names them"
        raise _misnamed(first, count, expected, f"{count} states", spec, last_point)
    else:
        # The captures go through the layers in order, whatever the order of the ids (vLLM 0.33.0,
        # model_executor/models/interfaces.py, EagleModelMixin; speculators 0.3.0, custom_worker.py).
        own = set(spec.capture_points)
        if LAST_STATE[first.form] == "before norm" and last_point is not None:
            own.add(last_point)
        names = tuple(sorted(own))
        if LAST_STATE[first.form] == "before norm" and last_point is None:
            names = (*names, UNNAMED)
    if len(names) != count:
        expected = f"{len(names)}: {describe_points(tuple(n for n in names if n != UNNAMED))}"
        if names[-1:] == (UNNAMED,):
            expected += " and the target's last layer"
        raise _misnamed(first, count, expected, f"{count} states", spec, last_point)
    return names


def _stated(first: Opened, count: int) -> tuple[int, ...] | None:
    stated = first.metadata.get("capture_points")
    if stated is None:
        return None
    parts = stated.replace(",", " ").split()
    digits = all(p.isascii() and p.isdigit() and len(p) < 7 for p in parts)
    if not digits or len(parts) != count or len({int(p) for p in parts}) != count:
        raise no_sample(first.file, f"its capture_points {stated[:60]!r} do not name {count} different points")
    return tuple(int(p) for p in parts)


def _misnamed(
    first: Opened, count: int, expected: str, found: str, spec: DrafterSpec | None, last_point: int | None
) -> InputError:
    after = LAST_STATE.get(first.form) == "after norm"
    own = spec.capture_points if spec is not None else ()
    example = sorted({*own, *(() if after or last_point is None else (last_point,))})
    more = [p for p in range(count + max(example, default=0)) if p not in example]
    example = sorted([*example, *more[: max(count - len(example), 0)]])[:count]
    option = as_option(tuple(example))
    why = "the target's last state lies apart here, after the final norm, and is no capture point"
    return InputError(
        error(
            "F125",
            "the states of the sample and the capture points given for them do not match",
            where=str(first.file),
            found=f"{found} ({first.form})" if found.endswith("states") else f"{found} for {count} states",
            expected=expected,
            why=why if after else "",
            fix=(
                f"say what the {count} states are, in the file's order, e.g.  --sample-points {option}",
                "or correct the drafter's capture points with --aux",
            ),
        )
    )


def last_state(form: str, names: tuple[int, ...], last_point: int | None) -> Last:
    """Which state the target's choices follow from: its place, "normed" where it lies apart, "" for none."""
    if form == OWN:
        return ""
    if LAST_STATE[form] == "after norm":
        return "normed"
    if last_point is not None:
        return names.index(last_point) if last_point in names else ""
    return len(names) - 1  # by the trainer's convention, whatever its number

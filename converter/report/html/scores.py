"""How often the drafter is right, and how other wirings do."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from converter.drafter.points import describe_points
from converter.drafter.spec import NORM_FLAGS
from converter.report.html.charts import Row, differences, intervals, ticks_for
from converter.report.html.element import el
from converter.report.html.parts import right_of, share_of, table_of, unbroken
from converter.report.reading import between, percent
from converter.report.words import count

_SHOWN = 10  # wirings of a ranking that are drawn; the table has all
_LONGEST = 34  # characters of a wiring beside a drawing
_SHARES = [(0.0, "0"), (0.25, "25%"), (0.5, "50%"), (0.75, "75%"), (1.0, "100%")]


def accuracy_section(proof: Mapping[str, Any]) -> list[Any]:
    """Accuracy by draft step, acceptance length and accuracy by position, each as a drawing and a table."""
    scores = proof["scores"]
    if scores is None:
        return [el("p", "Nothing was run on a sample, so how often the drafter is right is not known.")]
    sample = proof["sample"] or {}
    against = {"text": "the text's own tokens", "computed": "the target's choice, computed by its head"}
    engines = " and ".join(e["engine"] for e in proof.get("engines", ()))
    intro = [
        f"As {engines} would compute it: " if engines else "As the trainer computes it, not an engine: ",
        f"{count(sample.get('sequences', 0), 'sequence')} of ", el("code", sample.get("path", "")),
        f", against {against.get(sample.get('labels', ''), 'the target’s own choice')}. Intervals hold 95%. ",
    ]  # fmt: skip
    coverage = scores.get("coverage")
    if coverage and coverage["share"] < 0.9995:
        intro.append(f"The draft vocabulary holds {percent(coverage['share'])} of these tokens: no accuracy can be "
                     "higher. ")  # fmt: skip
    steps = _steps(scores)
    return [el("p", intro), steps, _acceptance(scores), _by_position(scores)]


def _steps(scores: Mapping[str, Any]) -> list[Any]:
    ends = scores.get("interval") or [None] * len(scores["accuracy"])
    conditional = scores.get("conditional") or [None] * len(scores["accuracy"])
    rows, table = [], []
    for k, (share, interval) in enumerate(zip(scores["accuracy"], ends, strict=False)):
        rows.append(Row(f"step {k}", share, *(interval or (None, None))))
        after = conditional[k]
        table.append([
            str(k), right_of(scores["right"][k], scores["rows"][k]), share_of(share), unbroken(between(interval)),
            [share_of(after["share"]), f" of {after['rows']:,}"] if after else "–",
        ])  # fmt: skip
    title = "Accuracy per draft step: right at this step and at all before it"
    return [
        el("h3", title),
        el("figure", intervals(title, rows, 0, 1, _SHARES)),
        table_of(["step", "right", "accuracy", "95%", "of those right before it"], table, numbers=(1, 2, 3, 4)),
    ]


def _acceptance(scores: Mapping[str, Any]) -> list[Any]:
    chains = scores.get("acceptance") or []
    if not chains:
        return []
    rows = [Row(f"chain of {a['chain']}", a["length"], *a["interval"]) for a in chains]
    high = max([2, *(row.high or row.value for row in rows)])
    top = int(high) + (high > int(high))
    table = []
    for a in chains:
        counted = [f"{a['accepted']:,} in {a['steps']:,} steps"] if a.get("accepted") is not None else []
        places = ", ".join(percent(share) for share in a.get("per_position", ()))
        table.append([str(a["chain"]), el("data", f"{a['length']:.2f}", value=a["length"]),
                      unbroken(between(a["interval"], ".2f")), places, *counted])  # fmt: skip
    exact = chains[-1]["exact"]
    how = "replayed on greedy text" if exact else "estimated"
    greedy = scores.get("greedy")
    if greedy and not exact:
        how += (f": {percent(greedy['share'])} of {greedy['rows']:,} tokens are the target's first choice, and only "
                "rows of such tokens count")  # fmt: skip
    title = "Acceptance length: tokens per verification step, the target's own included"
    return [
        el("h3", title),
        el("p", how[0].upper() + how[1:], ".", class_="soft small"),
        el("figure", intervals(title, rows, 1, top, [(v, str(v)) for v in range(1, top + 1)])),
        table_of(
            ["chain", "length", "95%", "draft token 0, 1, ... accepted", "accepted"][: len(table[0])],
            table,
            numbers=(1, 2),
        ),
    ]


def _by_position(scores: Mapping[str, Any]) -> list[Any]:
    buckets = scores.get("by_position") or []
    if not buckets:
        return []
    rows, table = [], []
    for b in buckets:
        a, name = b["accuracy"], f"{b['first']:,}–{b['last']:,}"
        rows.append(Row(name, a["share"], *a["interval"]))
        table.append([name, right_of(a["right"], a["rows"]), share_of(a["share"]), unbroken(between(a["interval"]))])
    title = "Step 0 by position in the sequence"
    return [
        el("h3", title),
        el("figure", intervals(title, rows, 0, 1, _SHARES)) if len(rows) > 1 else None,
        table_of(["positions", "right", "accuracy", "95%"], table, numbers=(1, 2, 3)),
    ]


def ranking_section(proof: Mapping[str, Any]) -> list[Any]:
    """The other wirings that were tried, closest first, as a drawing and a table."""
    judged = proof.get("wiring")
    if judged is None:
        return [el("p", "Other wirings were not tried: that takes a sample with the target's states.")]
    of = judged["of"]
    flags = ", ".join(name for name in NORM_FLAGS if of[name]) or "none of the norm flags"
    what = "The wiring that a search found best" if judged["searched"] else "The declared wiring"
    others = judged["others"]
    unclear = [r for r in others if r["contrast"]["verdict"] == "undecided"]
    if judged["searched"] and unclear:
        what = "Best so far, and not told apart from others"
    parts: list[Any] = [el("p", el("b", what, ": "), describe_points(tuple(of["points"])), f"; {flags}. ",
                           f"{judged['positions']:,} positions were compared.")]  # fmt: skip
    if unclear:
        needed = judged.get("needed", 0)
        parts.append(el("p", f"{count(len(unclear), 'other')} cannot be told apart from it on so few positions"
                        + (f"; about {needed:,} would tell." if needed else ".")))  # fmt: skip
    if judged["searched"]:
        declared = judged.get("searched_from")
        if declared == of:
            parts.append(el("p", "It is the declared wiring."))
        elif judged.get("declared_by"):
            parts.append(el("p", "Declare it with ", el("code", shlex.join(judged["declared_by"])), "."))
    if not others:
        return [*parts, el("p", "The sample holds no other states to try.")]
    title = "Log-likelihood of the target's choices against it, nats per position, with one standard error"
    shown = [_row(r["differs"], r["contrast"]) for r in others[:_SHOWN]]
    low = min([0.0, *(row.low if row.low is not None else row.value for row in shown)])
    high = max([0.0, *(row.high if row.high is not None else row.value for row in shown)])
    figure = el("figure", differences(title, shown, ticks_for(low, high)),
                el("figcaption", "Left of 0: fits worse. Hollow: told apart; full: too close to "
                   "tell or to matter.", class_="small"))  # fmt: skip
    rows = [_contrast(r["differs"], r["contrast"], r["wiring"] == judged.get("searched_from")) for r in others]
    if judged["control"]:
        rows.append(_contrast("control: states of other tokens", judged["control"], False))
    table = table_of(["wiring", "nats / position", "± error", "z", "positions", ""], rows, numbers=(1, 2, 3, 4))
    fold = el("details", el("summary", f"All {count(len(others), 'other')}, with numbers"), table)
    return [*parts, el("h3", title), figure, table if len(others) <= _SHOWN else fold]


def _row(differs: str, contrast: Mapping[str, Any]) -> Row:
    mean, error = contrast["difference"], contrast["error"]
    low, high = (None, None) if error is None else (mean - error, mean + error)
    note = f"{mean:+.3f}" + ("" if contrast["z"] is None else f", z {contrast['z']:+.1f}")
    label = differs if len(differs) <= _LONGEST else differs[: _LONGEST - 1] + "…"
    return Row(label, mean, low, high, contrast["verdict"], note)


def _contrast(differs: str, contrast: Mapping[str, Any], declared: bool) -> list[Any]:
    words = {"equal": "fits as well"}.get(contrast["verdict"], contrast["verdict"])
    mean, error, z = contrast["difference"], contrast["error"], contrast["z"]
    return [
        [differs, el("b", " (declared)") if declared else ""],
        el("data", f"{mean:+.3f}", value=mean),
        "–" if error is None else f"{error:.3f}",
        "–" if z is None else f"{z:+.1f}",
        f"{contrast['positions']:,}",
        words,
    ]

"""What a report document says, for those who lay it out. Documents of older releases lack some keys."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converter.findings import SEVERITIES
from converter.report.words import count
from converter.transforms import MAP_OPERATIONS

Document = Mapping[str, Any]

_AGREES = "the engine's forward pass gives the trainer's logits"
_BEST = f"{_AGREES}, no other wiring fits the sample better"
LEVELS: Mapping[str, str] = {
    "none": "static checks only",
    "agreement": _AGREES,
    "sample": _BEST,
    "anchored": f"{_BEST}, and its layer labels are pinned to the target's own weights",
    "measured": f"{_BEST}, and it was captured from the target itself by this tool",
}
SYMBOLS = {"error": "✕", "warning": "!", "note": "i", "allowed": "○", "accepted": "○"}
VERDICT_SYMBOLS = {"works": "✓", "works after conversion": "✓", "cannot": "✕", "unknown": "?", "not looked at": "–"}


@dataclass(frozen=True)
class Found:
    """A finding of the document; engine is "" where it is about the drafter or about all engines."""

    finding: Mapping[str, Any]
    engine: str
    number: int

    @property
    def code(self) -> str:
        return str(self.finding["code"])

    @property
    def kind(self) -> str:
        """Its severity, or "allowed" or "accepted"."""
        if self.finding.get("accepted"):
            return "accepted"
        return "allowed" if self.finding["allowed"] else str(self.finding["severity"])

    @property
    def anchor(self) -> str:
        """Its id in a page."""
        return f"finding-{self.code}-{self.number}"


def is_error(document: Document) -> bool:
    """Whether the command ended before there was a report (error.schema.json)."""
    return str(document["schema"]) == "eagle3-convert/error/1"


def headline(document: Document) -> str:
    """The outcome in one line; of an error its message."""
    if is_error(document):
        return str(document["message"])
    fallback = {"refused": "Refused.", "converted": "Converted.", "planned": "Would be converted.",
                "validated": "Validated."}  # fmt: skip
    return str(document.get("headline") or fallback[document["outcome"]])


def findings(document: Document) -> list[Found]:
    """Of the drafter and of every engine, most severe first."""
    rows = [("", f) for f in document["findings"]]
    for engine in document.get("engines", ()):
        rows += [(engine_name(engine["engine"]), f) for f in engine["findings"] if f not in document["findings"]]
    order = {severity: i for i, severity in enumerate(SEVERITIES)}
    rows.sort(key=lambda row: (row[1]["allowed"] or row[1].get("accepted", False), order[row[1]["severity"]]))
    return [Found(finding, engine, number) for number, (engine, finding) in enumerate(rows, 1)]


def verdict(document: Document, engine: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is said of one of the document's engines: `word`, `why` and `command`, as verdict.Verdict has them."""
    if "verdict" in engine:
        stated: Mapping[str, Any] = engine["verdict"]
        return stated
    against = codes_against(engine)
    word = {"converted": "works", "refused": "not looked at"}.get(document["outcome"], "works after conversion")
    return {"word": "cannot" if against else word, "why": ", ".join(against), "command": []}


def codes_against(engine: Mapping[str, Any]) -> list[str]:
    """Of what speaks against an engine, also where a baseline accepts it."""
    return list(dict.fromkeys(f["code"] for f in engine["findings"] if f["severity"] == "error" and not f["allowed"]))


def level_words(proof: Mapping[str, Any]) -> str:
    """What the level of a proof means, here."""
    if proof["level"] == "none" and proof.get("engines"):
        return "the engine computes something else than was trained"
    if proof["level"] == "none" and proof["scores"] is not None:
        return "run as the trainer computes it, not as an engine would"
    return LEVELS[str(proof["level"])]


def stopping(found: Sequence[Found]) -> list[Found]:
    """Errors that stand in the way whatever the engine, without what follows from others."""
    return [f for f in found if f.kind == "error" and not f.engine and not f.finding["caused_by"]]


def engine_name(requirement: str) -> str:
    """`sglang 0.5.23` of `sglang==0.5.23`."""
    return requirement.replace("==", " ")


def baseline_words(document: Document) -> str:
    """What a baseline took off; "" without one."""
    held = document.get("baseline")
    if held is None:
        return ""
    words = f"{count(held['accepted'], 'finding')} accepted by {held['file']}."
    gone = [f"{key['code']} at {key['where'] or 'no place'} of {key['drafter']}" for key in held["gone"]]
    return f"{words} No longer there: {'; '.join(gone)}." if gone else words


def engine_columns(document: Document) -> list[str]:
    """Of several drafters (reports.schema.json): the releases that any was held against, in the order given."""
    return list(dict.fromkeys(e["engine"] for row in document["summary"] for e in row["engines"]))


def spans(suits: Mapping[str, Any]) -> str:
    """`0.5.17 to 0.5.23` of an engine's releases for which the output is right; several where there are gaps."""
    from packaging.version import InvalidVersion, Version

    right = set(suits["right"])
    every = right | {release for row in suits["wrong"] for release in row["releases"]}
    try:
        order = sorted(every, key=Version)
    except InvalidVersion:
        return ", ".join(suits["right"])
    runs: list[list[str]] = [[]]
    for release in order:
        if release in right:
            runs[-1].append(release)
        elif runs[-1]:
            runs.append([])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs if run)


def moves(tensors: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    """The renames of a plan as prefixes, old, new and how many: ("layers.0.*", "midlayer.*", 10)."""
    pairs: dict[tuple[str, str], int] = {}
    for tensor in tensors:
        old, new = tensor["source"].split("."), tensor["name"].split(".")
        if old == new:
            continue
        length = len(old)
        while len(old) > 1 and len(new) > 1 and old[-1] == new[-1]:
            old.pop()
            new.pop()
        tail = ".*" if len(old) < length else ""
        pair = (".".join(old) + tail, ".".join(new) + tail)
        pairs[pair] = pairs.get(pair, 0) + 1
    return [(old, new, count) for (old, new), count in pairs.items()]


def right_for(document: Document) -> list[str]:
    """The engines and releases for which an output is right as it lies there."""
    return [
        f"{s['engine']} {spans(s)}" + (" (unverified)" if s.get("unverified") else "")
        for s in document.get("suits", ())
        if s["right"]
    ]


def made(tensor: Mapping[str, Any]) -> bool:
    """True of a map tensor of a plan that the input has only in another form (plan.TensorPlan.made)."""
    of_map = any(o["name"] in MAP_OPERATIONS for o in tensor["operations"])
    return of_map and not tensor["source"].endswith(tensor["canonical"])


def value_words(value: Any) -> str:
    """A config value as JSON writes it."""
    return json.dumps(value, ensure_ascii=False)


def percent(share: float) -> str:
    """`50.1%` of a share from 0 to 1."""
    return f"{share:.1%}"


def between(interval: Sequence[float] | None, form: str = ".1%") -> str:
    """`45.0–55.3%`; a dash where there is none."""
    return "–" if interval is None else f"{interval[0]:{form}}".removesuffix("%") + f"–{interval[1]:{form}}"

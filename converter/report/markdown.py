"""A report document as Markdown, for pull requests and model cards: verdict, wiring, scores, findings, commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from converter.drafter.spec import NORM_FLAGS
from converter.report.markup import code, launches, plain, table
from converter.report.reading import (
    SYMBOLS,
    VERDICT_SYMBOLS,
    Document,
    Found,
    baseline_words,
    between,
    engine_columns,
    engine_name,
    findings,
    headline,
    is_error,
    level_words,
    percent,
    right_for,
    verdict,
)
from converter.report.words import count

_SHOWN = 5  # other wirings


def markdown(document: Document) -> str:
    """The whole text. `document` is valid by report.schema.json."""
    lines = [f"## {plain(headline(document))}", "", *_one(document)]
    if not is_error(document):
        lines += [*launches(document["launch"]), *_seal(document)]
    return "\n".join(lines).rstrip() + "\n"


def markdown_of_several(document: Document) -> str:
    """A table of all drafters, then each of them. `document` is valid by reports.schema.json."""
    lines = [f"## {plain(document['headline'])}", "", *_summary(document)]
    for row, one in zip(document["summary"], document["drafters"], strict=True):
        lines += [f"### {code(row['given'])}: {plain(headline(one))}", "", *_one(one)]
    lines.append(f"Made with eagle3-convert {plain(document['tool']['version'])}.")
    return "\n".join(lines).rstrip() + "\n"


def _one(document: Document) -> Iterator[str]:
    """What is known of a drafter, below its headline."""
    if not is_error(document):
        yield from _verdict(document)
        yield from _wiring(document)
        yield from _scores(document["proof"])
        yield from _ranking(document["proof"])
    yield from _findings(findings(document))
    if baseline_words(document):
        yield from (plain(baseline_words(document)), "")


def _summary(document: Document) -> Iterator[str]:
    engines = engine_columns(document)
    heads = ["drafter", "dialect", *(plain(engine_name(e)) for e in engines), "errors", "warnings", "accuracy"]
    rows = []
    for row in document["summary"]:
        said = {e["engine"]: e["word"] for e in row["engines"]}
        words = [f"{VERDICT_SYMBOLS[said[e]]} {said[e]}" if e in said else "–" for e in engines]
        accuracy = "–" if row["accuracy"] is None else percent(row["accuracy"])
        rows.append([code(row["given"]), plain(row["dialect"] or "–"), *words, str(row["errors"]),
                     str(row["warnings"]), accuracy])  # fmt: skip
    yield from table(heads, rows)


def _verdict(document: Document) -> Iterator[str]:
    given, target = document["input"], document["target"]
    made = f"{given['dialect']} {given['release']}".strip() or "an unknown trainer"
    depth = f", {target['layers']} layers" if target["layers"] else ""
    architecture = target["architecture"] or "an unknown target"
    yield f"{code(given['given'])} of {plain(made)}, for {plain(architecture)}{depth}."
    yield ""
    if document["engines"]:
        yield from table(["engine", "verdict", ""], [_engine(document, e) for e in document["engines"]])
    lost = (document["plan"] or {}).get("lost")
    if lost:
        yield f"Lost: {plain(', '.join(lost))} (the form has no key for them)."
        yield ""
    right = right_for(document)
    if right:
        yield f"The output is right for {plain(', '.join(right))}."
        yield ""
    proof = document["proof"]
    yield f"**Proof: {proof['level']}** ({level_words(proof)})."
    yield ""


def _engine(document: Document, engine: Mapping[str, Any]) -> list[str]:
    said = verdict(document, engine)
    how = code(shlex.join(said["command"])) if said["command"] else ""
    why = plain(said["why"])
    return [plain(engine_name(engine["engine"])), f"{VERDICT_SYMBOLS[said['word']]} {said['word']}",
            f"{why}: {how}" if why and how else why or how]  # fmt: skip


def _wiring(document: Document) -> Iterator[str]:
    if document.get("spec") is None:
        return
    flags = [name for name in NORM_FLAGS if document["spec"][name]["value"]]
    vocabulary = f"; vocabulary {document['vocabulary']}" if document.get("vocabulary") else ""
    on = ", ".join(flags) or "no norm flags"
    yield f"**Wiring:** {plain(document['wiring'] + ' → fc → drafter; ' + on + vocabulary)}."
    yield ""


def _scores(proof: Mapping[str, Any]) -> Iterator[str]:
    scores = proof["scores"]
    if scores is None:
        return
    ends = scores.get("interval") or [None] * len(scores["accuracy"])
    rows = [
        [str(k), f"{scores['right'][k]:,} of {scores['rows'][k]:,}", percent(share), between(interval)]
        for k, (share, interval) in enumerate(zip(scores["accuracy"], ends, strict=False))
    ]
    yield "Accuracy, right at this draft step and at all before it:"
    yield ""
    yield from table(["step", "right", "accuracy", "95%"], rows)
    for a in (scores.get("acceptance") or [])[-1:]:
        how = "replayed on greedy text" if a["exact"] else "estimated"
        yield (f"Acceptance length {a['length']:.2f} ({between(a['interval'], '.2f')}) with chains of {a['chain']}, "
               f"{how}.")  # fmt: skip
        yield ""


def _ranking(proof: Mapping[str, Any]) -> Iterator[str]:
    judged = proof.get("wiring")
    if judged is None or not judged["others"]:
        return
    what = "the wiring that a search found best" if judged["searched"] else "the declared wiring"
    others = count(len(judged["others"]), "other wiring")
    yield f"Closest of {others}, against {what} ({judged['positions']:,} positions):"
    yield ""
    rows = []
    for other in judged["others"][:_SHOWN]:
        c = other["contrast"]
        z = "–" if c["z"] is None else f"{c['z']:+.1f}"
        rows.append([plain(other["differs"]), f"{c['difference']:+.3f}", z, c["verdict"]])
    yield from table(["wiring", "nats per position", "z", ""], rows)


def _findings(found: Sequence[Found]) -> Iterator[str]:
    for f in found:
        finding = f.finding
        engine = f"{f.engine}: " if f.engine and f.engine not in finding["message"] else ""
        yield f"- **{SYMBOLS[f.kind]} {f.kind} {f.code}** {plain(engine + finding['message'])}"
        for name in ("where", "found", "expected"):
            if finding[name]:
                yield f"  - {name}: {code(finding[name])}"
        if finding["why"]:
            yield f"  - why: {plain(finding['why'])}"
        for fix in finding["fix"]:
            yield f"  - to do: {plain(fix)}"
        yield f"  - more: `eagle3 explain {f.code}`"
    if found:
        yield ""


def _seal(document: Document) -> Iterator[str]:
    sealed = document.get("sealed")
    if sealed is not None:
        yield from table(["file", "SHA-256"], [[code(f["name"]), code(f["sha256"] or "not digested")] for f in
                                               sealed["files"]])  # fmt: skip
    yield f"Made with eagle3-convert {plain(document['tool']['version'])}."

"""A report document as a page, from the verdict to the seal."""

from __future__ import annotations

import importlib.resources
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from converter.drafter.points import describe_points
from converter.drafter.spec import NORM_FLAGS
from converter.report.html.element import Markup, el, raw
from converter.report.html.faults import parts_of
from converter.report.html.parts import fact_list, made_by, outcome_sign, sign, unbroken
from converter.report.html.record import changes_section, finding_article, seal_section
from converter.report.html.scores import accuracy_section, ranking_section
from converter.report.html.wiring_svg import marks, wiring_svg
from converter.report.reading import (
    LEVELS,
    SYMBOLS,
    VERDICT_SYMBOLS,
    Document,
    Found,
    baseline_words,
    engine_name,
    findings,
    headline,
    is_error,
    level_words,
    right_for,
    stopping,
    value_words,
    verdict,
)
from converter.report.words import at_margin, by_command, count, mentions, size
from converter.rules.engine import STANDINGS

KINDS = {"works": "good", "works after conversion": "good", "cannot": "error"}
Section = tuple[str, str, list[Any]]  # id, heading, content


def page(document: Document) -> str:
    """The whole file. `document` is valid by report.schema.json."""
    found = findings(document)
    sections = [s for s in sections_of(document, found) if s[2]]
    links = [el("a", heading, href=f"#{name}") for name, heading, _ in sections]
    parts = [el("section", el("h2", heading), content, id=name) for name, heading, content in sections]
    body = el(
        "body",
        el("header", _title(document), verdict_part(document, found), el("nav", links) if len(links) > 1 else None),
        el("main", parts),
        _footer(document),
    )
    subject = "" if is_error(document) else f"{document['input']['given']}: "
    return html(f"{subject}{headline(document)}", body)


def html(title: str, body: Markup) -> str:
    """The file of a body."""
    return "<!DOCTYPE html>\n" + el("html", _head(title), "\n", body, lang="en") + "\n"


def _head(title: str) -> Markup:
    style = importlib.resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        # Nothing is loaded and nothing is run, whatever a report holds.
        el("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", title),
        el("style", raw(style)),
    )


def sections_of(document: Document, found: Sequence[Found]) -> list[Section]:
    """What is below the verdict, in order."""
    if is_error(document):
        return [("findings", "What to do", [finding_article(f) for f in found])]
    proof = document["proof"]
    return [
        ("wiring", "Wiring", _wiring(document, found)),
        ("accuracy", "Accuracy", accuracy_section(proof)),
        ("ranking", "Other wirings", ranking_section(proof)),
        ("changes", "What the conversion changes", changes_section(document)),
        (
            "findings",
            "Findings",
            [
                *([el("p", baseline_words(document), class_="soft")] if baseline_words(document) else []),
                *([finding_article(f) for f in found] or [el("p", "None.")]),
            ],
        ),
        ("seal", "Seal", seal_section(document)),
    ]


# --- verdict ------------------------------------------------------------------------------------------------


def _title(document: Document) -> list[Any]:
    """The command and the outcome."""
    bad = is_error(document) or document["outcome"] == "refused"
    command = "" if is_error(document) else f" {document.get('task', 'report')}"
    return [
        el("p", f"eagle3-convert{command}", class_="kicker"),
        el("h1", outcome_sign(bad), unbroken(headline(document))),
    ]


def verdict_part(document: Document, found: Sequence[Found]) -> list[Any]:
    """What stands in the way, each engine's verdict, how far it is proved, what to type."""
    if is_error(document):
        return []
    bad = document["outcome"] == "refused"
    given, target = document["input"], document["target"]
    release = f" {given['release']}" if given["release"] else ""
    depth = f", {target['layers']} layers" if target["layers"] else ", depth unknown"
    facts = [
        ("drafter", el("span", given["given"], class_="mono")),
        ("made by", f"{given['dialect']}{release}, {count(given['tensors'], 'tensor')}, {size(given['bytes'])}"
                    if given["dialect"] else "unknown"),
        ("target", [target["architecture"] or "unknown class", depth]),
    ]  # fmt: skip
    if document["output"]:
        facts.append(("output", el("span", document["output"]["folder"], class_="mono")))
    right = right_for(document)
    if right:
        facts.append(("right for", ", ".join(right)))
    told = [verdict(document, e) for e in document["engines"]]
    by_engine = " ".join(v["why"] if v["word"] == "cannot" else "K120" for v in told if v["word"] != "not looked at")
    stops = [f for f in stopping(found) if f.code not in by_engine] if bad else []
    return [
        [
            [
                el("p", el("a", f.code, href=f"#{f.anchor}"), " ", f.finding["message"]),
                [el("p", "→ ", unbroken(fix)) for fix in f.finding["fix"]],
            ]
            for f in stops
        ],
        fact_list(facts),
        el("ul", [_engine(document, e, found) for e in document["engines"]], class_="engines"),
        _level(document["proof"], any(f.code == "K142" for f in found)),
        _serve(document),
    ]


def _engine(document: Document, engine: Mapping[str, Any], found: Sequence[Found]) -> Markup:
    said = verdict(document, engine)
    word, name = said["word"], engine_name(engine["engine"])
    known = "" if engine["proved_rules"] else STANDINGS.get(engine.get("standing", "read"), "")
    if engine["newer_than_known"]:
        known = "newer than the rules: those of the newest known release were used"
    why: list[Any] = [el("p", said["why"])] if said["why"] and said["why"] != known and word != "cannot" else []
    if word == "cannot":
        others = {engine_name(e["engine"]) for e in document["engines"]} - {name}
        about = [f for f in found if f.code in said["why"] and f.engine in ("", name) and (
            mentions(f.finding["message"], name) or not any(mentions(f.finding["message"], o) for o in others))
        ]  # fmt: skip
        why += [el("p", el("a", f.code, href=f"#{f.anchor}"), " ", _matter(f)) for f in about]
        fixes = dict.fromkeys(fix for f in about for fix in f.finding["fix"])
        why += [el("p", "→ ", unbroken(fix)) for fix in fixes] if about else [el("p", said["why"])]
    if known and (word == "cannot" or known not in said["why"] or said["why"] == known):
        why.append(el("p", known, class_="soft small"))
    command = el("pre", shlex.join(said["command"])) if said["command"] else None
    words = el("span", sign("", VERDICT_SYMBOLS[word]), word, class_=KINDS.get(word, "note"))
    return el("li", el("b", name), el("div", words, why), command)


def _matter(found: Found) -> str:
    """What it says; of what follows from another finding, what it costs."""
    follows = found.finding["caused_by"] and found.finding["why"]
    return f"costs: {found.finding['why']}" if follows else str(found.finding["message"])


def _level(proof: Mapping[str, Any], unknown: bool) -> list[Any]:
    """How far it was proved, on the way from nothing to measured; `unknown`: no forward pass here computes it."""
    level = proof["level"]
    names = list(LEVELS)
    steps = [el("li", name, class_="reached" if 0 < i <= names.index(level) else None) for i, name in
             enumerate(names) if i]  # fmt: skip
    text = [el("b", "Proof: ", level), f" – {level_words(proof)}."]
    if proof["largest_logit_difference"] is not None:
        text.append(f" Logits differ by {proof['largest_logit_difference']:.2g} at most (up to 0.001 is agreement).")
    if proof["scores"] is None and level == "none" and not unknown:
        text.append(" Give a sample to have it run: --sample FILE (eagle3 sample makes one).")
    return [el("p", text), el("ol", steps, class_="levels", aria_label="levels of proof, in order")]


def _serve(document: Document) -> list[Any]:
    return [
        [el("h3", "Serve it with ", ", ".join(map(engine_name, engines))), el("pre", at_margin(command))]
        for command, engines in by_command(document["launch"]).items()
    ]


# --- wiring -------------------------------------------------------------------------------------------------


def _wiring(document: Document, found: Sequence[Found]) -> list[Any]:
    if document.get("spec") is None:
        return [el("p", "The drafter was not read far enough to know its wiring.")]
    spec = document["spec"]
    marked = marks(document, found)
    drawn = [f for f in found if parts_of(f, document)]
    legend: list[Any] = [el("p", "Nothing is marked: no finding is about the wiring.")]
    if drawn:
        rows = [el("li", el("a", sign(f.kind, SYMBOLS[f.kind]), f.code, href=f"#{f.anchor}", class_=f.kind), " ",
                   f"{f.engine}: " if f.engine and f.engine not in f.finding["message"] else "",
                   f.finding["message"]) for f in drawn]  # fmt: skip
        legend = [el("h3", "Marked in the drawing"), el("ul", rows, class_="marked")]
    points = spec["capture_points"]
    facts: list[tuple[str, Any]] = [("states", [document["wiring"], " ", _origin(points)])]
    plan = document["plan"]
    for engine, ids in (plan["layer_ids"] if plan else {}).items():
        facts.append((f"ids for {engine_name(engine)}", ", ".join(map(str, ids))))
    if plan and plan["capture_points"] != points["value"]:
        facts.append(("written as", "blocks of fc in layer order: " + describe_points(tuple(plan["capture_points"]))))
    if document.get("vocabulary"):
        facts.append(("vocabulary", document["vocabulary"]))
    facts += [(name, [value_words(spec[name]["value"]), " ", _origin(spec[name])]) for name in (*NORM_FLAGS, "dtype")]
    figure = el("figure", wiring_svg(document, marked), el("figcaption", "From the target's states, at the top, to a "
                "draft token.", class_="small"))  # fmt: skip
    return [el("div", figure, el("div", legend, el("h3", "In words"), fact_list(facts)), class_="split")]


def _origin(field: Mapping[str, Any]) -> Markup:
    words = {"default": "ASSUMED: the trainer's default"}.get(field["how"], field["how"])
    where = f", {field['where']}" if field["where"] else ""
    return el("span", f"({words}{where})", class_="soft small")


def _footer(document: Document) -> Markup:
    if is_error(document):
        return el("footer", f"The command ended with exit code {document['exit_code']}; there is no report.")
    command = el("pre", shlex.join(document["command"])) if document["command"] else None
    return el("footer", command, made_by(document))

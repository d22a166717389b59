"""What a conversion changes, what was found, and what the seal says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from converter.report.html.element import Markup, el
from converter.report.html.parts import fact_list, sign, table_of, unbroken
from converter.report.reading import SYMBOLS, Document, Found, engine_name, made, moves, value_words
from converter.report.words import at_commit, count, sentence, size
from converter.transforms import SPLIT_ROWS


def changes_section(document: Document) -> list[Any]:
    """Tensors and config keys, and where each comes from; what is not carried over."""
    plan = document["plan"]
    if plan is None:
        return [el("p", "Nothing was planned or written." if document.get("task") != "validate" else
                   "Validation writes nothing; eagle3-convert --dry-run prints what would be written.")]  # fmt: skip
    tensors = plan["tensors"]
    cut = [t for t in tensors if any(o["name"] == SPLIT_ROWS for o in t["operations"])]
    changed = [t for t in tensors if any(o["name"] != SPLIT_ROWS for o in t["operations"])]
    same = sum(t["name"] == t["source"] and not t["operations"] for t in tensors)
    moved = moves([t for t in tensors if t not in cut and not made(t)])
    renamed = sum(n for _, _, n in moved)
    facts: list[tuple[str, Any]] = [
        ("renamed", [count(renamed, "tensor"), [el("div", f"{old} → {new} ({n})", class_="mono") for old, new, n in
                                                moved]]),
        ("as it was", count(same, "tensor")),
        ("values changed", [count(len(changed), "tensor"), [el("div", t["name"], ": ", ", ".join(
            _operation(o) for o in t["operations"])) for t in changed]]),
        ("dropped", [el("div", name, f" ({why})") for name, why in plan["dropped"].items()] or "nothing"),
    ]  # fmt: skip
    if cut:
        facts.append(
            ("split", f"{count(len(cut), 'tensor')} out of {', '.join(dict.fromkeys(t['source'] for t in cut))}")
        )
    for name, files in (("files carried", plan["carried"]), ("files left", plan["left"])):
        if files:
            facts.append((name, ", ".join(files)))
    if plan.get("lost"):
        facts.append(("lost", f"{', '.join(plan['lost'])} (the form has no key for them)"))
    if plan["launch"]:
        facts.append(("said at launch", ", ".join(f"{k} {value_words(v)}" for k, v in plan["launch"].items())))
    config = [[el("span", e["key"], class_="mono"), el("span", value_words(e["value"]), class_="mono"), e["origin"]]
              for e in plan["config"]]  # fmt: skip
    rows = [[el("span", t["name"], class_="mono"),
             "" if t["name"] == t["source"] else el("span", t["source"], class_="mono"),
             f"{t['dtype']} {t['shape']}", ", ".join(o["name"] for o in t["operations"]) or "copied"]
            for t in tensors]  # fmt: skip
    return [
        fact_list(facts),
        el("details", el("summary", f"config.json: {count(len(config), 'key')} and where each comes from"),
           table_of(["key", "value", "from"], config)),
        el("details", el("summary", f"All {count(len(tensors), 'tensor')}"),
           table_of(["output", "input, where named otherwise", "form", "values"], rows)),
    ]  # fmt: skip


def _operation(operation: Mapping[str, Any]) -> str:
    arguments = ", ".join(f"{k} {value_words(v)}" for k, v in operation["arguments"].items())
    return str(operation["name"]) + (f" ({arguments})" if arguments else "")


def finding_article(found: Found) -> Markup:
    """A finding with its evidence and what to do; links in the page lead to it by its anchor."""
    f = found.finding
    kind = found.kind
    head = el("h3", sign("", SYMBOLS[kind]), f"{kind} {found.code}", el("span", f["message"], class_="plain"))
    facts = [(name, f[name]) for name in ("where", "found", "expected") if f[name]]
    if found.engine:
        facts.insert(0, ("engine", found.engine))
    if f["caused_by"]:
        facts.append(("follows from", f["caused_by"]))
    why = el("p", sentence(f["why"])) if f["why"] else None
    fixes = el("ul", [el("li", unbroken(fix)) for fix in f["fix"]]) if f["fix"] else None
    more = el("p", "More: ", el("code", f"eagle3 explain {found.code}"), class_="small soft")
    return el("article", head, fact_list(facts) if facts else None, why,
              el("p", el("b", "What to do")) if fixes else None, fixes, more,
              id=found.anchor, class_=kind)  # fmt: skip


def seal_section(document: Document) -> list[Any]:
    """What the seal beside the output records, with digests."""
    output, sealed, proof = document["output"], document.get("sealed"), document["proof"]
    if output is None:
        return [el("p", "There is none: nothing was written.")]
    sample = proof["sample"]
    facts: list[tuple[str, Any]] = [
        ("file", el("span", output["seal"], class_="mono")),
        ("made with", f"eagle3-convert {document['tool']['version']}"),
        ("engines", ", ".join(engine_name(e["engine"]) for e in document["engines"])),
        ("proof", proof["level"]),
        ("written", f"{size(output['bytes'])} in {output['seconds']:.1f} s"),
    ]
    if sample:
        facts.append(("sample", [el("span", sample["path"], class_="mono"), _digest("tokens", sample.get(
            "tokens_sha256", "")), _digest("target", sample.get("target_fingerprint", ""))]))  # fmt: skip
    if sealed is None:
        return [fact_list(facts)]
    facts.insert(1, ("sealed", sealed["sealed_at"]))
    commit = sealed["source"].get("commit", "")
    facts.append(("input", [el("span", sealed["source"]["given"] + at_commit(commit), class_="mono"),
                            _digest("config.json", sealed["source"]["config_sha256"])]))  # fmt: skip
    if sealed["allowed"]:
        facts.append(("allowed", ", ".join(sealed["allowed"])))
    files = [[f["name"], f"{f['size']:,}", el("span", f["sha256"] or "not digested", class_="mono")] for f in
             sealed["files"]]  # fmt: skip
    rules = [[name, el("span", digest, class_="mono")] for name, digest in sealed["rules"].items()]
    return [
        fact_list(facts),
        table_of(["file", "bytes", "SHA-256"], files, numbers=(1,)),
        el("details", el("summary", f"{count(len(rules), 'rule file')} in use"), table_of(["rules", "SHA-256"], rules)),
    ]


def _digest(name: str, digest: str) -> Markup | None:
    return el("div", f"{name} {digest}", class_="mono soft") if digest else None

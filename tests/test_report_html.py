"""Reports as a page and as Markdown: nothing from outside, nothing lost, nothing let in, marks where the faults are."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from converter.drafter.spec import FIELDS
from converter.pipeline import convert
from converter.report import markup
from converter.report.document import as_json
from converter.report.explain import known_codes
from converter.report.files import WRITERS
from converter.report.html import faults
from converter.report.html.element import text
from converter.report.html.page import page
from converter.report.html.wiring_svg import wiring_svg
from converter.report.markdown import markdown
from converter.report.reading import Found, findings, moves, spans
from converter.rules.schema import check as check_schema
from tests.reports import RUNS, document
from tests.support import DRAFTERS, SAMPLE, TARGET, copy_of, eagle3, quiet, request, run


class Page(HTMLParser):
    """tags in order, ids, the text of each element that has an id, and the marks of the drawing."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[tuple[str, str | None]] = []
        self.texts: dict[str, str] = {}
        self.everything = ""
        self.parts: dict[str, str] = {}
        self.badges: dict[str, tuple[str, str, str]] = {}  # part: codes, severity, words
        self.feed(text)
        self.close()
        assert not self.open, "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        assert len(known) == len(attrs)
        self.tags.append((tag, known))
        if tag != "meta":
            self.open.append((tag, known.get("id")))
        if "data-part" in known:
            kinds = set((known["class"] or "").split()) - {"part"}
            self.parts[known["data-part"] or ""] = " ".join(sorted(kinds))
        if "data-codes" in known:
            kind = (known["class"] or "").removeprefix("badge ")
            assert known["data-for"] not in self.badges
            self.badges[known["data-for"] or ""] = (known["data-codes"] or "", kind, "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self.everything += data
        for _, name in self.open:
            if name:
                self.texts[name] = self.texts.get(name, "") + data
        if any(tag == "a" for tag, _ in self.open) and any(tag == "text" for tag, _ in self.open):
            part, (codes, kind, words) = list(self.badges.items())[-1]
            self.badges[part] = (codes, kind, words + data)

    def attributes(self, name: str) -> list[str]:
        return [known[name] or "" for _, known in self.tags if name in known]


def page_of(name: str) -> Page:
    return Page(page(document(name)))


# --- the page -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_a_page_needs_nothing_else(name: str) -> None:
    text = page(document(name))
    parsed = Page(text)
    assert text.startswith("<!DOCTYPE html>\n<html lang=")
    used = {tag for tag, _ in parsed.tags}
    assert not used & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "image", "use", "video"}
    ids = parsed.attributes("id")
    assert len(ids) == len(set(ids))
    assert all(link[0] == "#" and link[1:] in ids for link in parsed.attributes("href"))
    assert not parsed.attributes("src") and not parsed.attributes("style")
    assert not [n for _, known in parsed.tags for n in known if n.startswith("on") or ":" in n]
    style = text.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style and "@import" not in style
    assert "prefers-color-scheme: dark" in style
    assert any("default-src 'none'" in content for content in parsed.attributes("content"))


@pytest.mark.parametrize("name", RUNS)
def test_every_finding_is_there_with_its_fixes(name: str) -> None:
    shown = document(name)
    parsed = page_of(name)
    text = markdown(shown)
    every = [*shown["findings"]] + [f for e in shown.get("engines", ()) for f in e["findings"]]
    articles = [words for anchor, words in parsed.texts.items() if anchor.startswith("finding-")]
    assert len(articles) == len(findings(shown)) == len({json.dumps(f) for f in every})
    for finding in every:
        [article] = [a for a in articles if finding["message"] in a and finding["found"] in a][:1]
        assert finding["code"] in article and f"eagle3 explain {finding['code']}" in article
        for field in ("where", "found", "expected"):
            assert finding[field] in article
        assert finding["why"][1:] in article
        assert all(fix in article for fix in finding["fix"])
        assert f"{finding['code']}**" in text and f"`eagle3 explain {finding['code']}`" in text


def test_the_verdict_comes_first() -> None:
    for name, first in (
        ("converted", "Converted."),
        ("refused", "Not converted: sglang 0.5.23 cannot compute this drafter."),
        ("miswired", "Not converted: the drafter is not in order."),
        ("unproved", "Converted, not proved."),
        ("planned", "Would be converted (--dry-run)."),
    ):
        assert document(name)["headline"] == first
        heading = page(document(name)).split("<h1>")[1].split("</h1>")[0]
        assert re.sub("<[^>]*>", "", heading)[1:] == first  # after the sign
        assert markdown(document(name)).startswith(f"## {first}\n".replace("(--", "(--"))


def test_verdicts_of_engines() -> None:
    told = {e["engine"]: e["verdict"] for e in document("validated")["engines"]}
    assert told["sglang==0.5.23"]["word"] == "works after conversion"
    command = told["sglang==0.5.23"]["command"]
    assert command[0] == "eagle3-convert" and command[command.index("--engine") + 1] == "sglang==0.5.23"
    assert (told["vllm==0.33.0"]["word"], told["vllm==0.33.0"]["command"]) == ("works", [])
    assert "Serve it with vllm 0.33.0" in page(document("validated"))
    assert "vllm serve" in markdown(document("validated"))
    assert told["sglang==0.5.9"]["word"] == "cannot" and told["sglang==0.5.9"]["command"] == []
    why = told["sglang==0.5.9"]["why"]
    assert why.startswith("fc_norm is true; it computes false (K105, K106); works in SGLang 0.5.12 to")
    engines = page(document("validated")).split('<ul class="engines">')[1].split("</ul>")[0]
    assert re.findall(r"</span>([a-z ]+)</span>", engines) == [v["word"] for v in told.values()]
    assert " ".join(command) in Page(page(document("validated"))).everything
    assert "works in SGLang 0.5.12 to 0.5.23" in re.sub("<[^>]*>", "", engines)  # what would
    assert document("converted")["engines"][0]["verdict"] == {"word": "works", "why": "", "command": []}
    unproved = document("unproved")["engines"][0]["verdict"]
    assert unproved["word"] == "works" and "--target checks it" in unproved["why"]
    assert document("miswired")["engines"][0]["verdict"]["word"] == "not looked at"
    assert document("planned")["engines"][0]["verdict"]["word"] == "works after conversion"


def test_an_allowed_finding_is_no_works(tmp_path: Path) -> None:
    shown = as_json(run(DRAFTERS / "b_nbr", tmp_path / "out", allow=("K103",)))
    assert shown["headline"] == "Converted, with K103 allowed."
    assert shown["engines"][0]["verdict"] == {"word": "cannot", "why": "K103: allowed", "command": []}
    assert Page(page(shown)).badges == {"residual": ("K103", "allowed", "○ K103")}
    assert shown["sealed"]["allowed"] == ["K103"] and "allowed: K103" in re.sub("</dt><dd>", ": ", page(shown))


def test_several_engines_each_with_its_own(tmp_path: Path) -> None:
    engines = ("sglang==0.5.23", "sglang==0.5.2", "vllm==0.33.0")
    shown = as_json(convert(request(DRAFTERS / "b_nbr", out=tmp_path / "out", engines=engines, target=TARGET), quiet))
    assert [e["verdict"]["word"] for e in shown["engines"]] == ["cannot", "cannot", "not looked at"]
    rows = re.findall("<li><b>(.*?)</b>(.*?)</li>", page(shown).split('<ul class="engines">')[1].split("</ul>")[0])
    for name, row in rows[:2]:
        assert f"norm_before_residual is true; {name} computes false" in row and row.count("computes false") == 1
    engines = ("sglang==0.5.12", "sglang==0.5.23")
    options = {"target": TARGET, "target_arch": "DeepseekV3ForCausalLM"}
    shown = as_json(convert(request(DRAFTERS / "a_plain", out=tmp_path / "out", engines=engines, **options), quiet))
    header = page(shown).split("</header>")[0]
    [k130] = [f for f in shown["findings"] if f["code"] == "K130"]
    assert text(k130["message"]) in header  # said in the verdict, though of no single engine


def test_an_engine_is_unknown_where_the_target_s_class_is(tmp_path: Path) -> None:
    def forget(config: dict[str, Any]) -> None:
        del config["speculators_config"]["verifier"]["architectures"]

    shown = as_json(run(copy_of("a_plain", tmp_path / "in", forget), tmp_path / "out", target=None))
    verdict = shown["engines"][0]["verdict"]
    assert verdict["word"] == "unknown" and "class is not known" in verdict["why"]
    assert {part: codes for part, (codes, *_) in Page(page(shown)).badges.items()} == {"target": "K120 A108"}


def test_figures_are_those_of_the_document() -> None:
    scores = document("converted")["proof"]["scores"]
    section = page(document("converted")).split('<section id="accuracy">')[1].split("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section)
    values = [[float(v) for v in re.findall(r'<data value="([^"]*)"', row)] for row in rows if "<data" in row]
    shown = [
        [r, a, c["share"]] for r, a, c in zip(scores["right"], scores["accuracy"], scores["conditional"], strict=True)
    ]
    shown += [[a["length"]] for a in scores["acceptance"]]
    shown += [[b["accuracy"]["right"], b["accuracy"]["share"]] for b in scores["by_position"]]
    assert values == shown
    assert f"{scores['right'][0]} of {scores['rows'][0]}" in re.sub("<[^>]*>", "", section)
    # Each dot of a chart lies where its value is on the scale.
    [chart, *_] = re.findall(r"<svg.*?</svg>", section)
    dots = [float(x) for x in re.findall(r'<circle cx="([^"]*)"', chart)]
    ticks = {words: float(x) for x, words in re.findall(r'<text x="([^"]*)"[^>]*>([\d%]+)</text>', chart)}
    for dot, share in zip(dots, scores["accuracy"], strict=True):
        assert dot == pytest.approx(ticks["0"] + share * (ticks["100%"] - ticks["0"]), abs=0.1)


def test_the_ranking_has_every_wiring_with_z_and_nats() -> None:
    for name in ("converted", "found"):
        judged = document(name)["proof"]["wiring"]
        section = page(document(name)).split('<section id="ranking">')[1].split("</section>")[0]
        text = Page(section).everything
        for other in judged["others"]:
            c = other["contrast"]
            assert f"{other['differs']}" in text and f"{c['difference']:+.3f}" in text and f"{c['z']:+.1f}" in text
        assert section.count("<tr>") == 1 + len(judged["others"]) + 1  # heads, the control
    assert "Declare it with --aux embed,2,4." in text
    assert judged["searched_from"]["points"] == [1, 3, 5] and judged["declared_by"] == ["--aux", "embed,2,4"]


def test_changes_and_seal() -> None:
    shown = document("converted")
    parsed = page_of("converted")
    changes, seal = parsed.texts["changes"], parsed.texts["seal"]
    assert "layers.0.* → midlayer.* (10)" in changes and "0 tensors" in changes
    for entry in shown["plan"]["config"]:
        assert entry["key"] in changes and json.dumps(entry["value"]) in changes and entry["origin"] in changes
    sealed = shown["sealed"]
    digests = [f["sha256"] for f in sealed["files"]] + list(sealed["rules"].values())
    for digest in (*digests, sealed["source"]["config_sha256"], shown["proof"]["sample"]["tokens_sha256"]):
        assert re.fullmatch("[0-9a-f]{64}", digest) and digest in seal
    assert shown["tool"]["version"] in seal and "anchored" in seal and "sglang 0.5.23" in seal
    assert "nothing was written" in page_of("refused").texts["seal"]


def test_renames_and_releases_in_words() -> None:
    pairs = [("a.x.weight", "b.x.weight"), ("a.y.weight", "b.y.weight"), ("d2t", "d2t"), ("t2d", "map")]
    tensors = [{"source": old, "name": new} for old, new in pairs]
    assert moves(tensors) == [("a.*", "b.*", 2), ("t2d", "map", 1)]
    wrong = [{"codes": ["K121"], "releases": ["0.5.9", "0.5.11"]}]
    assert spans({"engine": "x", "right": ["0.5.10", "0.5.12", "0.5.13"], "wrong": wrong}) == "0.5.10, 0.5.12 to 0.5.13"


# --- marks --------------------------------------------------------------------------------------------------


def _zeros(tensors: dict[str, Any]) -> None:
    tensors["d2t"] = torch.zeros_like(tensors["d2t"])


def _short_head(tensors: dict[str, Any]) -> None:
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].contiguous()


def _narrow_fc(tensors: dict[str, Any]) -> None:
    tensors["fc.weight"] = tensors["fc.weight"][:, :-64].contiguous()


def _no_norm(tensors: dict[str, Any]) -> None:
    del tensors["norm.weight"]


@pytest.mark.parametrize(
    ("name", "change", "engine", "options", "expected"),
    [
        ("a_plain", None, "sglang==0.5.23", {}, {}),
        ("b_nbr", None, "sglang==0.5.23", {}, {"residual": "K103"}),
        ("c_nbfc", None, "vllm==0.11.0", {}, {"fc-norms": "K104", "points": "K123"}),
        ("d_fcnorm_normout", None, "sglang==0.5.9", {},
         {"fc-norms": "K105", "feedback": "K106", "points": "K127"}),
        ("g_aux024", None, "sglang==0.5.21", {}, {"point-0": "K121"}),
        ("a_plain", None, "sglang==0.5.23", {"aux": (1, 3, 3)},
         {"point-1": "A101", "point-2": "A101", "points": "A106"}),
        ("a_plain", None, "sglang==0.5.23", {"aux": (1, 9, 5)}, {"point-1": "A102", "points": "A106"}),
        ("a_plain", _zeros, "sglang==0.5.23", {"target": None, "target_arch": "LlamaForCausalLM"},
         {"map": "V203", "target": "A108"}),
        ("a_plain", _short_head, "sglang==0.5.23", {}, {"head": "T104"}),
        ("a_plain", _narrow_fc, "sglang==0.5.23", {}, {"fc": "A103"}),
        ("a_plain", _no_norm, "sglang==0.5.23", {}, {"norm": "T103"}),
        ("g_aux024", None, "sglang==0.5.23", {"sample": SAMPLE, "aux": (1, 2, 4)},
         {"point-0": "A301", "points": "A106"}),
    ],
)  # fmt: skip
def test_marks_are_where_the_fault_is(
    name: str, change: Any, engine: str, options: dict[str, Any], expected: dict[str, str], tmp_path: Path
) -> None:
    shown = as_json(run(copy_of(name, tmp_path / "in", tensors=change), tmp_path / "out", engine, **options))
    parsed = Page(page(shown))
    assert {part: " ".join(sorted(codes.split())) for part, (codes, *_) in parsed.badges.items()} == expected
    drawn = {part for part, kind in parsed.parts.items() if kind}
    assert drawn == set(expected)
    for part, (codes, kind, words) in parsed.badges.items():
        assert parsed.parts[part] == kind
        assert words[0] in "✕!i" and all(code in words for code in codes.split())  # readable without colour


def test_extreme_values_are_drawn_too() -> None:
    shown = deepcopy(document("found"))
    shown["target"]["layers"] = 10**9
    shown["spec"]["capture_points"]["value"] = [10**8, 0, 5, -1, 7, 8, 9, 9]
    for flag in ("norm_before_fc", "fc_norm"):
        shown["spec"][flag]["value"] = True
    shown["spec"]["num_hidden_layers"]["value"] = 40
    for sign, other in zip((1, -1), shown["proof"]["wiring"]["others"], strict=False):
        other["contrast"] |= {"difference": sign * 1.7e308, "error": None, "z": None}
    shown["proof"]["scores"]["interval"] = [None, None, None]
    text = page(shown)
    assert len(text) < 300_000 and not re.search(r"\b(nan|inf)\b", text)
    assert len([p for p in Page(text).parts if p.startswith("point-")]) == 8


def test_what_the_sample_says_is_drawn_beside_what_is_declared() -> None:
    parsed = page_of("found")
    assert parsed.attributes("data-points") == ["0 2 4"]
    marked = {"point-0", "point-1", "point-2", "points"}  # by A301; by K121, of the embedding that the sample names
    assert {part for part, kind in parsed.parts.items() if kind == "error"} == marked
    assert not page_of("converted").attributes("data-points")


PARTS = {
    "target", "points", "point-0", "fc-norms", "fc", "embedding", "residual", "layers", "norm", "feedback", "head",
    "map", "drafter",
}  # fmt: skip


@pytest.mark.parametrize("name", ["converted", "validated", "unproved"])
def test_every_part_that_can_be_at_fault_is_drawn_with_its_label(name: str) -> None:
    named = {*faults._CODES.values(), *faults._FIELDS.values(), *(part for _, part in faults._TENSORS)}
    assert named <= PARTS and set(faults._CODES) <= known_codes()
    assert set(FIELDS) - {"hidden_size"} == set(faults._FIELDS)
    for part in PARTS:
        found = Found({"code": "K199", "severity": "error", "allowed": False}, "", 1)
        parsed = Page(wiring_svg(document(name), {part: [found]}))
        assert parsed.badges == {part: ("K199", "error", "✕ K199")}
        assert [p for p, kind in parsed.parts.items() if kind] == [part]


# --- strangers ----------------------------------------------------------------------------------------------

HOSTILE = "</title></style></svg>\"'><script>alert(1)</script><!--`|*[x](http://x.y)@me#1\u202e\u2066\x1b[31m\x00&amp;\r\n|a|\ud800"
_FIXED = {
    "schema", "outcome", "task", "severity", "code", "codes", "caused_by", "word", "level", "verdict", "how", "labels",
    "release", "releases", "right", "engine", "requirement", "shape", "allowed", "embedding", "last",
}  # fmt: skip


def filled(node: Any, words: str, key: str = "") -> Any:
    """The document with other words wherever text of a stranger can be."""
    if isinstance(node, dict):
        free = key in ("dropped", "launch", "environment", "layer_ids", "rules")
        kept = set() if key == "wiring" else _FIXED
        return {(words if free else k): v if k in kept else filled(v, words, k) for k, v in node.items()}
    if isinstance(node, list):
        return [filled(v, words) for v in node]
    return words if isinstance(node, str) else node


@pytest.mark.parametrize("name", RUNS)
def test_a_stranger_s_words_stay_words(name: str) -> None:
    hostile, harmless = (page(filled(document(name), words)) for words in (HOSTILE, "x"))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", hostile)
    hostile.encode()
    shapes = [[tag for tag, _ in Page(text).tags if tag != "span"] for text in (hostile, harmless)]
    assert shapes[0] == shapes[1]
    assert "<script" not in hostile and "<!--" not in hostile
    assert "\\u202e" in hostile and "\\u001b" in hostile


@pytest.mark.parametrize("name", RUNS)
def test_a_stranger_s_words_stay_words_in_markdown(name: str) -> None:
    hostile, harmless = (markdown(filled(document(name), words)) for words in (HOSTILE, "x"))
    hostile.encode()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", hostile)
    shapes = [[t for t, _ in _tokens(text) if t not in ("text", "html_inline")] for text in (hostile, harmless)]
    assert shapes[0] == shapes[1]
    for kind, words in _tokens(hostile):
        assert kind != "html_inline" or words == "<!-- -->"
        # Hosts make links and mentions out of bare text.
        assert kind != "text" or not re.search("@me|#1|://x", words)


@pytest.mark.parametrize("name", ["converted", "validated"])
def test_an_engine_of_a_stranger_s_report_is_no_markup(name: str) -> None:
    """The schema asks of its name only that a release follows it."""
    whole = document(name)
    named = json.loads(json.dumps(whole).replace("sglang==", "<b>[x](http://x.y)|=="))
    assert not check_schema(named, "report") and named != whole
    shapes = [[k for k, _ in _tokens(markdown(one)) if k not in ("text", "html_inline")] for one in (named, whole)]
    assert shapes[0] == shapes[1] and ("html_inline", "<b>") not in _tokens(markdown(named))


def test_a_bar_in_code_ends_no_cell() -> None:
    """Of two backslashes in a row GitHub takes the second for escaped, and a bar behind them for the end of a cell."""
    assert markup.code("a|b") == r"`a\|b`"
    assert markup.code(r"a\|b") == r"`a\\u007cb`"


def _tokens(text: str) -> list[tuple[str, str]]:
    """Kind and content of everything in a Markdown text, in order."""
    from markdown_it import MarkdownIt

    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        found += [(token.type, "")] + [(child.type, child.content) for child in token.children or ()]
    return found


# --- files and commands -------------------------------------------------------------------------------------


def test_markdown_says_the_same_in_short() -> None:
    text = markdown(document("converted"))
    assert "| sglang 0.5.23 | ✓ works |  |" in text
    assert "**Wiring:** embedding, layer 2, layer 4 → fc → drafter; no norm flags; vocabulary 384 of 512" in text
    assert "| 0 | 337 of 672 | 50.1% | 45.0–55.3% |" in text
    assert "```sh\npython -m sglang.launch_server" in text
    assert "**Proof: anchored**" in text
    refused = markdown(document("refused"))
    assert (
        "| sglang 0.5.23 | ✕ cannot | K103 |" in refused
        and "**✕ error K103** norm\\_before\\_residual is true" in refused
    )
    assert "sh\n" not in refused
    lists = markdown(document("unreadable"))
    assert lists.startswith("## ") and "error F100" in lists


def test_a_report_of_an_older_release_is_laid_out() -> None:
    for name in set(RUNS) - {"unreadable"}:
        old = deepcopy(document(name))
        for key in ("task", "headline", "vocabulary", "embedding", "sealed", "suits"):
            del old[key]
        for engine in old["engines"]:
            del engine["verdict"]
        if old["proof"]["wiring"]:
            for key in ("searched_from", "declared_by", "needed"):
                del old["proof"]["wiring"][key]
        if old["proof"]["sample"]:
            del old["proof"]["sample"]["tokens_sha256"]
        for key in ("engines", "anchors"):
            del old["proof"][key]
        assert check_schema(old, "report") == []
        parsed = Page(page(old))
        assert all(f["message"] in parsed.everything for f in old["findings"])
        assert markdown(old).startswith("## ")


def test_documents_are_published() -> None:
    for name in RUNS:
        assert check_schema(document(name), "report") == []


def test_reports_of_all_forms_from_the_command_line(tmp_path: Path) -> None:
    for suffix in WRITERS:
        file = tmp_path / f"r{suffix}"
        done = eagle3("convert", DRAFTERS / "b_nbr", tmp_path / "out", "--report", file)
        assert done.returncode == 1
        assert "K103" in file.read_text()
        done = eagle3("validate", tmp_path / "nothing", "--report", file)
        assert done.returncode == 3
        assert "F100" in file.read_text()
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")


def test_a_json_report_is_laid_out_later(tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    report.write_text(json.dumps(document("refused")))
    for suffix, written in ((".html", page), (".md", markdown)):
        done = eagle3("report", report, "-o", tmp_path / f"r{suffix}")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"r{suffix}").read_text() == written(document("refused"))
    (tmp_path / "other.json").write_text('{"schema": "something else"}')
    broken = deepcopy(document("converted"))
    broken["proof"]["scores"]["right"] = []
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    for words, code, said in (
        ((tmp_path / "other.json", "-o", tmp_path / "o.html"), 3, "is no report of eagle3-convert"),
        ((tmp_path / "broken.json", "-o", tmp_path / "o.html"), 3, "its parts do not fit each other"),
        ((tmp_path / "none.json", "-o", tmp_path / "o.html"), 3, "none.json"),
        ((report, "-o", tmp_path / "o.pdf"), 2, "reports are written as .json, .html, .md"),
        ((report, "-o", report), 2, "this file is what is read"),
        ((report, "-o", tmp_path / "no" / "o.md"), 4, "cannot write"),
    ):
        done = eagle3("report", *words)
        assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "o.html").exists()

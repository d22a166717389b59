"""The model card: made from real seals, kept where it is the user's, and read again by huggingface_hub."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from converter import gate, seal
from converter.errors import InputError
from converter.pipeline import convert
from converter.publish.card import card_of_folder, card_text, over
from converter.publish.sections import SECTIONS
from converter.report.document import as_json
from converter.report.words import launch_text
from tests.support import DRAFTERS, SAMPLE, TARGET, copy_of, eagle3, quiet, request, run

ENGINES = ("sglang==0.5.23", "vllm==0.33.0")


class Sealed:
    """A sealed drafter: its folder, its seal, its config, and what its conversion reported."""

    def __init__(self, folder: Path, report: Any) -> None:
        self.folder, self.report = folder, as_json(report)
        self.seal: dict[str, Any] = json.loads((folder / seal.NAME).read_text())
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())

    def card(self, existing: str | None = None, repo: str = "org/drafter", **changes: Any) -> str:
        """The card, `changes` made to the seal by dotted path; it is checked that a second time changes nothing."""
        document = copy.deepcopy(self.seal)
        for path, value in changes.items():
            *parents, last = path.split("__")
            place: Any = document
            for key in parents:
                place = place[key]
            place[last] = value
        card = card_text(document, existing, repo, self.config)
        assert card_text(document, card, repo, self.config) == card
        return card


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    """With a sample, for two engines."""
    out = tmp_path_factory.mktemp("measured") / "out"
    asked = request(DRAFTERS / "g_aux024", out=out, engines=ENGINES, target=TARGET, sample=SAMPLE)
    return Sealed(out, convert(asked, quiet))


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Sealed:
    """Without a sample, and with an error let through."""
    out = tmp_path_factory.mktemp("allowed") / "out"
    return Sealed(out, run(DRAFTERS / "b_nbr", out, allow=("K103",)))


def metadata(card: str) -> dict[str, Any]:
    """The block as the Hub reads it, which huggingface_hub's classes accept."""
    ModelCard(card)
    block = re.match(r"---\r?\n(.*?)\r?\n---\r?\n", card, re.DOTALL)
    assert block is not None
    data: dict[str, Any] = yaml.safe_load(block[1])
    return data


def section(card: str, name: str) -> str:
    found = re.findall(f"<!-- eagle3-convert:{name} -->(.*?)<!-- /eagle3-convert:{name} -->", card, re.DOTALL)
    assert len(found) == 1
    return str(found[0])


def index_of(card: str) -> list[dict[str, Any]]:
    return list(metadata(card)["model-index"][0]["results"])


# --- what it says -----------------------------------------------------------------------------------------------


def test_a_card_states_what_was_measured(measured: Sealed) -> None:
    card = measured.card()
    scores = measured.seal["proof"]["scores"]
    data = ModelCard(card).data
    assert (data.library_name, data.pipeline_tag, data.license, data.base_model) == (
        "transformers", "text-generation", None, None,
    )  # fmt: skip
    assert data.tags == ["eagle3", "speculative-decoding", "draft-model", "sglang", "vllm"]
    assert data.model_name == "drafter"
    accuracy, length = data.eval_results
    assert accuracy.metric_value == round(scores["accuracy"][0], 4)
    assert length.metric_value == round(scores["acceptance"][-1]["length"], 4)
    assert length.metric_args["chain"] == measured.seal["serving"]["draft_steps"] == 3
    for result in (accuracy, length):
        assert result.dataset_name == "tiny.safetensors" and result.task_type == "text-generation"
        assert re.fullmatch(r"(?:[\w-]+/)?[\w.-]+", result.dataset_type)
        assert result.dataset_args["tokens_sha256"] == measured.seal["proof"]["sample"]["tokens_sha256"]
        low, high = result.metric_args["interval_95"]
        assert low < result.metric_value < high

    said = section(card, "scores")
    assert "**anchored**" in said and "672 positions in 4 sequences" in said
    assert "| 0 | 337 of 672 | 50.1% | 45.0–55.3% |" in said
    assert "| 3 | 1.93 | 1.79–2.08 | estimated |" in said
    assert "*Accuracy*" in said and "*Acceptance length*" in said and "*Estimated*" in said and "*Intervals*" in said
    about = section(card, "about")
    assert "1 layer of width 64" in about and "embedding, layer 2, layer 4" in about
    assert "384 of the target's 512 tokens" in about and "16 tensors, 260 KB, bfloat16" in about
    made = section(card, "provenance")
    assert "| made from | `g_aux024` (its config.json: SHA-256 `" in made
    assert "sglang 0.5.23 (its own classes were run)" in made and "16, and of 16 of them" in made
    assert "K126" in made  # a warning of vllm's


def test_an_exact_length_is_told_as_one(measured: Sealed) -> None:
    rows = [a | {"exact": True} for a in measured.seal["proof"]["scores"]["acceptance"]]
    card = measured.card(proof__scores__acceptance=rows)
    assert "| 3 | 1.93 | 1.79–2.08 | exact |" in section(card, "scores")
    assert "*Exact*" in section(card, "scores") and "replayed" in index_of(card)[0]["metrics"][1]["name"]


def test_the_length_of_the_chain_that_is_launched(measured: Sealed) -> None:
    card = measured.card(serving__draft_steps=2)
    assert index_of(card)[0]["metrics"][1]["args"]["chain"] == 2
    assert "--speculative-num-steps 2" in section(card, "launch")


def test_nothing_measured_nothing_claimed(measured: Sealed, allowed: Sealed) -> None:
    for card in (allowed.card(), measured.card(proof__level="none")):
        assert "model-index" not in metadata(card)
    assert "Nothing was measured" in section(allowed.card(), "scores")
    assert "static checks only" in section(allowed.card(), "scores")


def test_what_was_let_through_is_told(allowed: Sealed) -> None:
    said = section(allowed.card(), "provenance")
    assert "not in all the drafter that was trained" in said and "- **K103** " in said


def test_the_launch_command_is_the_one_that_was_printed(measured: Sealed, allowed: Sealed) -> None:
    for drafter in (measured, allowed):
        said = section(drafter.card(), "launch")
        for line in drafter.report["launch"]:
            printed = launch_text(line).replace(str(TARGET), "TARGET").replace(str(drafter.folder), "org/drafter")
            assert printed.replace("\n      ", "\n    ").strip() in said
        assert "`TARGET` stands for" in said and "DRAFTER" not in said
        assert "`DRAFTER` stands for this repository" in section(drafter.card(repo=""), "launch")


def test_what_a_launch_command_needs_of_the_target(tmp_path: Path) -> None:
    """A target with a longer context, a trainer that drafts five tokens, and what travels in the command alone."""

    def five(config: dict[str, Any]) -> None:
        config["max_position_embeddings"] = config["transformer_layer_config"]["max_position_embeddings"] = 512
        config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 5

    source, out = copy_of("a_plain", tmp_path / "in", five), tmp_path / "out"
    engines = ("sglang==0.5.23", "tensorrt-llm", "llama.cpp")
    report = convert(request(source, out=out, engines=engines[:1], target=TARGET), quiet)
    drafter = Sealed(out, report)
    said = section(drafter.card(), "launch")
    assert "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1" in said and "--speculative-num-steps 5" in said
    for engine in engines[1:]:
        report = run(DRAFTERS / "a_plain", tmp_path / engine, engine)
        drafter = Sealed(tmp_path / engine, report)
        (line,) = drafter.report["launch"]
        printed = launch_text(line).replace(str(TARGET), "TARGET").replace(str(tmp_path / engine), "org/drafter")
        assert printed.replace("\n      ", "\n    ").strip() in section(drafter.card(), "launch")
    assert "downloaded first" in section(drafter.card(), "launch")


def test_rules_that_are_not_here(measured: Sealed) -> None:
    engines = [{**measured.seal["engines"][0], "engine": "other==1.0"}]
    card = measured.card(engines=engines)
    assert "The command for other 1.0 is not known here" in section(card, "launch")
    assert "other" in metadata(card)["tags"] and "width" not in section(card, "about")


def test_a_trainers_form(tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = convert(request(DRAFTERS / "a_plain", out=out, to="specforge", target=TARGET), quiet)
    card = Sealed(out, report).card()
    assert "in the form of specforge" in section(card, "launch")
    assert "1 layer of width 64" in section(card, "about")
    assert metadata(card)["tags"] == ["eagle3", "speculative-decoding", "draft-model"]


# --- what stays out ---------------------------------------------------------------------------------------------


def test_no_path_of_the_machine_gets_in(measured: Sealed, allowed: Sealed) -> None:
    for drafter in (measured, allowed):
        card = drafter.card()
        assert str(TARGET) not in card and str(SAMPLE.parent) not in card and str(Path.home()) not in card
        assert str(DRAFTERS) not in card and str(drafter.folder) not in card
    windows = measured.card(source__given="C:\\Users\\me\\run", proof__sample__path="D:\\data\\s.safetensors\\")
    assert "Users" not in windows and "data" not in section(windows, "scores")
    assert "`run`" in windows and "s.safetensors" in windows
    for nothing in ("/", ".", "..", ""):
        assert "| made from | a folder (its" in measured.card(source__given=nothing)


@pytest.mark.parametrize(
    ("target", "base"),
    [
        ({"name": "org/target", "commit": "a" * 40}, "org/target"),  # read from the Hub
        ({"name": "/home/me/models/target", "commit": ""}, None),
        ({"name": "models/target", "commit": ""}, None),  # perhaps a path
        ({"name": "", "commit": ""}, None),
    ],
)
def test_seals_that_do_not_say_whether_the_target_is_on_the_hub(
    measured: Sealed, target: dict[str, str], base: str | None
) -> None:
    document = {k: v for k, v in measured.seal.items() if k != "serving"}
    document["target"] = {**measured.seal["target"], **target}
    card = card_text(document, None, "", measured.config)
    assert metadata(card).get("base_model") == base and "/home/me" not in card and "models/" not in card


def test_the_target_is_the_base_model_where_it_is_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def named(name: str) -> Any:
        def edit(config: dict[str, Any]) -> None:
            config["speculators_config"]["verifier"]["name_or_path"] = name

        return edit

    def card_for(name: str, **options: Any) -> dict[str, Any]:
        folder = tmp_path / re.sub(r"\W", "", f"{name}{options}")
        report = run(copy_of("a_plain", folder / "in", named(name)), folder / "out", **options)
        drafter = Sealed(folder / "out", report)
        card = drafter.card()
        assert ("TARGET" in section(card, "launch")) == ("base_model" not in metadata(card))
        return metadata(card)

    arch = {"target": None, "target_arch": "LlamaForCausalLM"}
    trained = card_for("org/target", **arch)
    assert (trained["base_model"], trained["base_model_relation"]) == ("org/target", "adapter")
    assert "base_model" not in card_for("/home/me/target", **arch)
    assert "base_model" not in card_for("target-tiny", **arch)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TARGET, tmp_path / "models" / "target")
    assert "base_model" not in card_for("models/target", **arch)  # a folder here
    assert "base_model" not in card_for("org/target", target=Path("models/target"))  # given as a path


_HOSTILE = "a`|<img src=x onerror=alert(1)>\u202e[x](http://e.com)<!-- /eagle3-convert:about -->\n# @me\x1b[31m"


def test_hostile_names_are_text(measured: Sealed) -> None:
    sample = {**measured.seal["proof"]["sample"], "path": _HOSTILE.replace("/", "\u2044"), "form": _HOSTILE}
    engine = {**measured.seal["engines"][0], "plugin": _HOSTILE}
    card = measured.card(
        target={"name": _HOSTILE, "architecture": _HOSTILE, "layers": 6, "commit": ""},
        source={**measured.seal["source"], "given": _HOSTILE},
        proof__sample=sample,
        proof__device=_HOSTILE,
        proof__embedding=_HOSTILE,
        tool__version=_HOSTILE,
        engines=[engine, {**engine, "engine": f"{_HOSTILE.replace('=', '')}==1"}],
        serving__target=_HOSTILE,
    )
    assert "\u202e" not in card and "\x1b" not in card
    assert metadata(card).get("base_model") is None
    assert "3 states of the target" in card  # ids of an unknown class mean nothing
    body = re.sub(r"(?s)\A---\n.*?\n---\n", "", card)
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(body)
    assert not re.search(r"<(img|a|script)\b", page) and page.count("<h") == 1 + len(SECTIONS)
    assert not re.search(r"@(?!<!-- -->)", re.sub(r"(?s)<code.*?</code>", "", page))
    assert [m[1] for m in re.finditer(r"<!-- (/?eagle3-convert:\w+) -->", card)] == [
        f"{slash}eagle3-convert:{name}" for name in SECTIONS for slash in ("", "/")
    ]


# --- what is the user's -----------------------------------------------------------------------------------------

_USERS = """---
# chosen by hand
license:   'mit'   # really
tags: [mine]
language:
extra: {b: 1, a: 2}
---
My own words.

<!-- eagle3-convert:scores -->
old
<!-- /eagle3-convert:scores -->

Between.
<!-- eagle3-convert:about -->

<!-- /eagle3-convert:about -->
The end"""


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_a_users_text_and_keys_are_kept(measured: Sealed, line_break: str, bom: str) -> None:
    existing = bom + _USERS.replace("\n", line_break)
    card = measured.card(existing)
    assert (
        card.startswith(bom) and card.removeprefix(bom).replace(line_break, "").count("\n") == 0
    ) or line_break == "\n"
    card = card.removeprefix(bom).replace(line_break, "\n")
    head, _, body = card.partition("\n---\n")
    assert head.startswith(_USERS.partition("\n---\n")[0] + "\n# eagle3-convert:metadata\n")
    assert body.startswith("My own words.\n\n<!-- eagle3-convert:scores -->\n\n## Scores\n")
    assert "<!-- /eagle3-convert:scores -->\n\nBetween.\n<!-- eagle3-convert:about -->\n\n## What it is\n" in body
    assert "<!-- /eagle3-convert:about -->\nThe end\n\n<!-- eagle3-convert:launch -->\n" in body
    assert body.index("eagle3-convert:launch") < body.index("eagle3-convert:provenance")
    data = metadata(card)
    assert (data["license"], data["tags"], data["language"]) == ("mit", ["mine"], None)
    assert list(data["extra"]) == ["b", "a"] and data["library_name"] == "transformers"


def test_only_what_is_ours_is_renewed(measured: Sealed) -> None:
    first = measured.card("before")
    text = first.replace("---\n\nbefore", "datasets: [x]\n---\n\nbefore").replace("<!-- eagle3", "here\n<!-- eagle3", 1)
    second = measured.card(text, proof__sample=None, proof__scores=None, proof__level="agreement")
    assert "datasets: [x]\n---\n\nbefore" in second and "here\n<!-- eagle3-convert:about -->" in second
    assert "model-index" not in metadata(second) and "Nothing was measured" in section(second, "scores")
    assert section(second, "launch") == section(first, "launch")


_INDEX = """---
model-index:
# mine
- name: theirs
  results:
  - task: {type: text-generation}
    dataset: {type: mine, name: Mine}
    metrics: [{type: speed, value: 2.5, unit: x}]
# below
license: mit
---
"""


def test_a_users_own_results_stand_beside_ours(measured: Sealed) -> None:
    card = measured.card(_INDEX)
    theirs, ours = index_of(card)
    assert theirs["metrics"] == [{"type": "speed", "value": 2.5, "unit": "x"}]
    assert ours["dataset"]["name"] == "tiny.safetensors"
    assert metadata(card)["model-index"][0]["name"] == "theirs" and "# below\nlicense: mit\n" in card
    again = measured.card(card, proof__scores__accuracy=[0.25, 0.1, 0.05])
    assert [r["metrics"][0]["value"] for r in index_of(again)] == [2.5, 0.25]
    gone = measured.card(again, proof__sample=None, proof__scores=None)
    assert index_of(gone) == [theirs]


def test_results_whose_comments_were_lost_are_known_again(measured: Sealed) -> None:
    """The Hub's own editor writes the block anew."""
    card = re.sub(r"# /?eagle3-convert:metadata\n", "", measured.card())
    again = measured.card(card, proof__scores__accuracy=[0.25, 0.1, 0.05])
    assert [r["metrics"][0]["value"] for r in index_of(again)] == [0.25]
    assert "model-index" not in metadata(measured.card(again, proof__sample=None, proof__scores=None))


@pytest.mark.parametrize(
    "block",
    [
        "{license: mit, language: en}",
        "a: &x {b: 1}\nmodel-index: [&y {name: n, results: []}]\nc: *x\nd: *y",
        "license: mit\ntext: |+\n  words\n\n\n",
        "license: mit\n...",
    ],
)
def test_blocks_in_which_nothing_can_be_put_in_are_written_anew(measured: Sealed, block: str) -> None:
    before = yaml.safe_load(f"{block}\n")
    data = metadata(measured.card(f"---\n{block}\n---\nwords"))
    before.pop("model-index", None)
    assert {key: data[key] for key in before} == before and data["pipeline_tag"] == "text-generation"


def test_markers_that_are_damaged(measured: Sealed) -> None:
    card = measured.card("one\ntwo\n")
    opening, closing = "<!-- eagle3-convert:launch -->", "<!-- /eagle3-convert:launch -->"
    line = card[: card.index(opening)].count("\n") + 1
    end = card[: card.index(closing)].count("\n") + 1
    last = card.count("\n") + 1
    comment = card[: card.index("# /eagle3-convert:metadata")].count("\n") + 1
    for damaged, where in [
        (card.replace(closing, ""), line),
        (card.replace(opening, ""), end),
        (card + opening, last),
        (card + f"{opening}{closing}", last),
        (card.replace(opening, opening + "\n" + opening), line),
        (card + closing, last),
        (card.replace("\n", "\r\n").replace(closing, ""), line),
        (card.replace("# /eagle3-convert:metadata\n", ""), 2),
        (card.replace("# eagle3-convert:metadata\n", ""), comment - 1),
    ]:
        with pytest.raises(InputError) as raised:
            measured.card(damaged)
        assert (raised.value.finding.code, raised.value.finding.where) == ("H437", f"README.md, line {where}")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("---\nlicense: mit\n# no end\n", 1),
        ("--- \nlicense: mit\n---\n", 1),
        ("\n---\nlicense: mit\n  tags: x\n---\n", 4),
        ("---\r\nlicense: mit\r\ntags: [a\r\n---\r\n", 4),
        ("---\nlicense: mit\nlicense: apache-2.0\n---\n", 3),
        ("---\nwords\n---\n", 2),
        ("---\n- a\n---\n", 2),
        ("---\na: \x07\n---\n", 2),
        ("---\na: !!int x\n---\n", 2),
        ("---\na: !!timestamp x\n---\n", 2),
        ("---\na: !!python/name:os.system x\n---\n", 2),
        ("---\na: 2020-99-99\n---\n", 2),
        (f"---\na: {'[' * 1000}\n---\n", 2),
        ("---\nlicense: mit\nmodel-index: best\n---\n", 3),
        ("---\nlicense: mit\nmodel-index: [{name: x, results: {}}]\n---\n", 3),
        ("---\nlicense: mit\nmodel-index: [{name: x, results: [{task: {type: y}}]}]\n---\n", 3),
    ],
)
def test_metadata_that_cannot_be_read(measured: Sealed, text: str, line: int) -> None:
    with pytest.raises(InputError) as raised:
        measured.card(text)
    assert (raised.value.finding.code, raised.value.finding.where) == ("H438", f"README.md, line {line}")


def test_a_seal_that_is_none(measured: Sealed, tmp_path: Path) -> None:
    for key in ("proof", "files", "target"):
        folder = tmp_path / key
        folder.mkdir()
        seal.write_json(folder / seal.NAME, {**measured.seal, key: "x"})
        with pytest.raises(InputError) as raised:
            card_of_folder(folder, "")
        assert raised.value.finding.code == "H415" and key in raised.value.finding.message


# --- any text ---------------------------------------------------------------------------------------------------

_OURS = re.compile(r"<!-- eagle3-convert:(about|launch) -->.*?<!-- /eagle3-convert:\1 -->", re.DOTALL)
_BLOCK = re.compile(r"(\s*---(?:\r\n|\r|\n))((?:[\s\S]*?(?:\r\n|\r|\n))??)---[ \t]*(?:\r\n|\n|\Z)")
_LINES = [
    "", "words", "# Title", "---", "---", "--- ", "license: mit", "tags:", "- a", "a: b # c", "  indented", "text: |",
    "'", "# eagle3-convert:metadata", "# /eagle3-convert:metadata", "library_name: mine", "model-index: []", "...",
    *(f"<!-- {slash}eagle3-convert:{name} -->" for name in ("about", "launch", "other") for slash in ("", "/")),
]  # fmt: skip
_KEYS = {"library_name": "transformers", "tags": ["eagle3"], "base_model": "org/x"}
_SECTIONS = {"about": "## What\n\nIt is.", "launch": "## Launch"}


@settings(max_examples=150)
@given(
    lines=st.lists(st.sampled_from(_LINES) | st.text(max_size=8), max_size=12),
    line_break=st.sampled_from(["\n", "\r\n", "\r"]),
)
@example(lines=["---", "license: mit", "---", "words"], line_break="\n")
@example(lines=["---", "---", "words"], line_break="\n")
@example(lines=["---", "---"], line_break="\n")
@example(lines=["---", "model-index: []", "---"], line_break="\n")
@example(lines=["<!-- eagle3-convert:launch -->", "<!-- /eagle3-convert:launch -->", "words"], line_break="\r\n")
def test_whatever_is_there_is_kept(lines: list[str], line_break: str) -> None:
    existing = line_break.join(lines)
    try:
        card = over(existing, _KEYS, _SECTIONS)
    except InputError as problem:
        assert problem.finding.code in ("H437", "H438")
        return
    assert over(card, _KEYS, _SECTIONS) == card
    before, after = _split(existing), _split(card)
    if existing and not _BLOCK.match(existing):  # the new block has an empty line behind it
        after[1][0] = re.sub(r"\A\r?\n", "", after[1][0])
    assert {**_KEYS, **before[0]} == after[0]  # a key of the user's is the user's
    # The parts between our sections; behind the last come blank lines, and the sections that were not there.
    *whole, last = before[1]
    assert after[1][: len(whole)] == whole
    rest = "".join(after[1][len(whole) :])
    assert rest.startswith(last) and not rest.removeprefix(last).strip("\r\n")


def _split(text: str) -> tuple[dict[str, Any], list[str]]:
    """The keys that are not ours, and the parts of the body that are not."""
    block = _BLOCK.match(text)
    body = text[block.end() :] if block is not None else text
    keys = yaml.safe_load(block[2]) or {} if block is not None else {}
    return keys, _OURS.split(body)[::2]


# --- the command ------------------------------------------------------------------------------------------------


def test_the_command_prints_and_writes(measured: Sealed, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(measured.folder, tmp_path / "out"))
    readme = folder / "README.md"
    printed = eagle3("card", folder, "--repo", "org/drafter")
    assert (printed.returncode, printed.stderr) == (0, "") and not readme.exists()
    assert printed.stdout == measured.card()
    readme.write_bytes(b"mine\r\n")
    readme.chmod(0o640)
    written = eagle3("card", folder, "--repo", "org/drafter", "-o", readme)
    assert (written.returncode, written.stdout, written.stderr) == (0, "", f"wrote {readme}\n")
    assert readme.read_bytes().decode() == measured.card("mine\r\n")
    assert stat.S_IMODE(readme.stat().st_mode) == 0o640
    assert eagle3("card", folder, "--repo", "org/drafter", "-o", readme).returncode == 0
    assert readme.read_bytes().decode() == measured.card("mine\r\n")
    assert {p.name for p in folder.iterdir()} == {"README.md", *(p.name for p in measured.folder.iterdir())}
    assert gate.changed_since(measured.seal, seal.listing(folder), "it") == []


def test_the_command_refuses(measured: Sealed, tmp_path: Path) -> None:
    def refused(code: int, said: str, *arguments: object) -> None:
        done = eagle3("card", *arguments)
        assert done.returncode == code and said in " ".join(done.stderr.split()) and done.stdout == ""
        assert "Traceback" not in done.stderr

    refused(1, "H413", DRAFTERS / "a_plain", "-o", tmp_path / "card.md")
    refused(3, "F100", tmp_path / "nowhere")
    folder = Path(shutil.copytree(measured.folder, tmp_path / "out"))
    refused(2, "--repo drafter", folder, "--repo", "drafter")
    refused(4, "cannot write", folder, "-o", tmp_path / "nowhere" / "card.md")
    mine = tmp_path / "mine"
    mine.write_text("of this machine")
    (folder / "README.md").symlink_to(mine)
    refused(3, "H444", folder, "-o", folder / "README.md")
    assert mine.read_text() == "of this machine"
    (folder / "README.md").unlink()
    os.mkfifo(folder / "README.md")
    refused(3, "it is a pipe", folder)
    (folder / "README.md").unlink()
    (folder / "README.md").write_bytes(b"\xff\xfe")
    refused(3, "F110", folder, "-o", folder / "README.md")
    assert (folder / "README.md").read_bytes() == b"\xff\xfe"
    (folder / "README.md").write_text("---\na: [\n---\n")
    refused(3, "README.md, line 3", folder)
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    refused(1, "C233", folder)
    assert not (tmp_path / "card.md").exists()

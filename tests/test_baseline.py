"""`--baseline`: what is accepted is told but not counted, and nothing else changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from converter import workers
from converter.accepting import validate_against
from converter.baseline import Baseline, Key, acceptable, growing_baseline, read_baseline, renewed, write_baseline
from converter.cli import validate_command
from converter.errors import OutputError, UsageError
from converter.pipeline import Report
from converter.report import document, junit, sarif
from converter.report.explain import catalogue, never_allowed
from converter.rules.schema import check
from tests.support import DRAFTERS, TARGET, Config, Tensors, copy_of, request
from tests.test_schemas import assert_published

ENGINES = ("sglang==0.5.23", "vllm==0.33.0")
SGLANG = ENGINES[:1]


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 1)


def held(source: Path, baseline: Baseline, *engines: str, **options: Any) -> Report:
    asked = request(source, engines=engines or ENGINES, target=TARGET, **options)
    return validate_against(baseline, asked, lambda what: None)


def accept(file: Path, *sources: Path, engines: tuple[str, ...] = ENGINES, **options: Any) -> Baseline:
    """Write a baseline of what the drafters have now, and read it again."""
    old = growing_baseline(file)
    reports = [held(source, old, *engines, **options) for source in sources]
    write_baseline(renewed(old, [r.held for r in reports if r.held is not None]))
    return read_baseline(file)


def entries(file: Path) -> list[dict[str, Any]]:
    found = json.loads(file.read_text())
    assert check(found, "baseline") == []
    return list(found["accepted"])


def validate(*args: object) -> Result:
    return CliRunner().invoke(validate_command, list(map(str, args)))


def strange(*keys: str) -> Any:
    """Config keys that no dialect knows: C204, a warning each."""

    def edit(config: Config) -> None:
        config.update(dict.fromkeys(keys, 1))

    return edit


# --- what is accepted -----------------------------------------------------------------------------------------------


def test_an_accepted_warning_is_no_error_with_strict_and_another_one_is(tmp_path: Path) -> None:
    source, file = copy_of("a_plain", tmp_path / "in", strange("mine")), tmp_path / "baseline.json"
    baseline = accept(file, source)
    assert [(e["drafter"], e["code"], e["where"], e["count"]) for e in entries(file)] == [("in", "C204", "mine", 1)]
    report = held(source, baseline, strict=True)
    assert report.outcome == "validated" and [f.accepted for f in report.findings if f.code == "C204"] == [True]
    another = copy_of("a_plain", tmp_path / "another", strange("mine", "yours"))
    shutil.rmtree(source)
    another.rename(source)
    report = held(source, baseline, strict=True)
    assert report.outcome == "refused" and report.request.strict
    assert {f.where: (f.severity, f.accepted) for f in report.findings if f.code == "C204"} == {
        "mine": ("warning", True), "yours": ("error", False),
    }  # fmt: skip
    assert held(source, baseline).outcome == "validated"  # without --strict a warning is a warning


def test_the_verdict_of_an_engine_stays_what_it_is(tmp_path: Path) -> None:
    source = DRAFTERS / "b_nbr"
    baseline = accept(tmp_path / "b.json", source, engines=SGLANG)
    assert held(source, Baseline(tmp_path / "none"), *SGLANG).outcome == "refused"
    report = held(source, baseline, *SGLANG)
    found = document.as_json(report)
    assert found["outcome"] == "validated"
    assert_published(found, "report")
    assert found["engines"][0]["verdict"]["word"] == "cannot" and found["engines"][0]["verdict"]["command"] == []
    assert [(f["code"], f["severity"], f["accepted"]) for f in found["engines"][0]["findings"]] == [
        ("K103", "error", True)
    ]  # fmt: skip
    assert found["baseline"] == {"file": str(tmp_path / "b.json"), "accepted": 1, "gone": []}
    assert found["headline"] == "Not served by sglang 0.5.23."


def test_a_new_fault_that_takes_the_last_engine_counts(tmp_path: Path) -> None:
    """SGLang's fault was accepted while vLLM could serve it."""
    source = copy_of("b_nbr", tmp_path / "in")
    baseline = accept(tmp_path / "b.json", source, engines=SGLANG)
    assert held(source, baseline).outcome == "validated"

    both = held(source, baseline, "sglang==0.5.23", "vllm==0.9.1")
    assert [k for k, v in both.verdicts.items() if any(f.severity == "error" for f in v)] == list(both.verdicts)
    assert both.outcome == "refused"


def test_what_can_never_be_allowed_cannot_be_accepted() -> None:
    assert {code for code in catalogue() if not acceptable(code)} == {
        code for code in catalogue() if never_allowed(code)
    }


def test_an_error_that_ends_the_look_is_no_matter_for_a_baseline(tmp_path: Path) -> None:
    """--allow goes on to what comes after it; a baseline would leave that unseen."""

    def leftover(tensors: Tensors) -> None:
        tensors["adapter.weight"] = tensors["norm.weight"].clone()

    source = copy_of("a_plain", tmp_path / "in", tensors=leftover)
    report = held(source, growing_baseline(tmp_path / "b.json"))
    assert report.outcome == "refused" and report.held is not None
    assert report.held.never == ("T101",) and not report.held.found
    allowed = held(source, growing_baseline(tmp_path / "b.json"), allow=("T101",))
    assert allowed.outcome == "validated" and allowed.held is not None
    assert not any(key.code == "T101" for key in allowed.held.found)  # let through already


def test_a_changed_figure_is_the_same_fault_and_a_second_one_there_is_new(tmp_path: Path) -> None:
    def points(*layers: int) -> Any:
        return lambda config: config.update(eagle_aux_hidden_state_layer_ids=list(layers))

    file = tmp_path / "b.json"
    engine = "tensorrt-llm==1.4.0rc1"
    accept(file, copy_of("a_plain", tmp_path / "in", points(1, 3, 0)), engines=(engine,))
    [entry] = [e for e in entries(file) if e["code"] != "K133"]
    again = copy_of("a_plain", tmp_path / "other" / "in", points(1, 0, 3))
    (tmp_path / "other" / "b.json").write_bytes(file.read_bytes())  # both moved
    baseline = read_baseline(tmp_path / "other" / "b.json")
    report = held(again, baseline, engine)
    assert report.outcome == "validated" and report.held is not None and not report.held.gone
    fewer = Baseline(baseline.file, {k: n - (k.code == entry["code"]) for k, n in baseline.counts.items()})
    assert held(again, fewer, engine).outcome == "refused"


def test_another_tensor_is_another_finding(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", strange("mine"))
    baseline = accept(tmp_path / "b.json", source)
    renamed = copy_of("a_plain", tmp_path / "new" / "in", strange("yours"))
    (tmp_path / "new" / "b.json").write_bytes((tmp_path / "b.json").read_bytes())
    report = held(renamed, read_baseline(tmp_path / "new" / "b.json"), strict=True)
    assert report.outcome == "refused" and report.held is not None
    assert report.held.gone == (Key("in", "C204", "", "mine"),)
    assert held(source, baseline, strict=True).held.gone == ()  # type: ignore[union-attr]


def test_what_was_not_looked_at_is_not_said_to_be_gone(tmp_path: Path) -> None:
    baseline = accept(tmp_path / "b.json", DRAFTERS / "b_nbr", DRAFTERS / "j_attnbias", engines=SGLANG)
    drafter = {Path(k.drafter).name for k in baseline.counts}
    assert drafter == {"b_nbr", "j_attnbias"}
    with_proof = Baseline(
        baseline.file, {**baseline.counts, Key(next(iter(baseline.counts)).drafter, "N101", "", ""): 1}
    )
    report = held(DRAFTERS / "b_nbr", with_proof, ENGINES[1])
    assert report.held is not None and report.held.gone == ()


def test_a_star_is_every_drafter(tmp_path: Path) -> None:
    row = {"drafter": "*", "code": "K103", "engine": "sglang==0.5.23", "where": "norm_before_residual", "count": 1}
    (tmp_path / "b.json").write_text(json.dumps({"schema": "eagle3-convert/baseline/1", "accepted": [row]}))
    done = validate(DRAFTERS / "b_nbr", DRAFTERS / "l_defaults", "--engine", SGLANG[0], "--target", TARGET,
                    "--baseline", tmp_path / "b.json")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert f"2 findings accepted by {tmp_path / 'b.json'} (-v shows them)" in done.output


# --- the file -------------------------------------------------------------------------------------------------------


def test_written_twice_it_is_the_same_and_keeps_reasons_and_other_drafters(tmp_path: Path) -> None:
    a, b = (copy_of("a_plain", tmp_path / name, strange("zeta", "alpha")) for name in "ab")
    file = tmp_path / "baseline.json"
    accept(file, b, a)
    first = file.read_text()
    rows = entries(file)
    assert [(r["drafter"], r["where"]) for r in rows] == [(d, w) for d in "ab" for w in ("alpha", "zeta")]
    accept(file, a, b)
    assert file.read_text() == first
    rows[1]["reason"] = "ours since 2024"
    file.write_text(json.dumps({"schema": "eagle3-convert/baseline/1", "accepted": rows}))
    shutil.rmtree(a)
    copy_of("a_plain", a, strange("zeta"))
    accept(file, a)
    assert [(r["drafter"], r["where"], r.get("reason")) for r in entries(file)] == [
        ("a", "zeta", "ours since 2024"), ("b", "alpha", None), ("b", "zeta", None),
    ]  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "baseline.json"]


def test_a_drafter_given_twice_is_one(tmp_path: Path) -> None:
    source = copy_of("b_nbr", tmp_path / "in")
    once = accept(tmp_path / "once.json", source)
    assert accept(tmp_path / "twice.json", source, source).counts == once.counts and once.counts


def test_a_failed_write_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "b.json"
    file.write_text("old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match="No space left"):
        write_baseline(Baseline(file))
    assert [p.name for p in tmp_path.iterdir()] == ["b.json"] and file.read_text() == "old"


GOOD = {"drafter": "in", "code": "C204", "engine": "", "where": "mine", "count": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "this is no JSON"),
        ("[]", "found []"),
        (json.dumps({"accepted": []}), "schema: missing, expected name and version"),
        (json.dumps({"schema": "eagle3-convert/report/1", "accepted": []}), 'expected "eagle3-convert/baseline/1"'),
        ([{**GOOD, "count": 0}], "accepted[0].count: found 0, expected how many"),
        ([GOOD, {**GOOD, "code": "F112"}], "accepted[1].code: found F112, which can never be accepted"),
        ([{**GOOD, "code": "C999"}], "accepted[0].code: found C999, expected a code that eagle3 explain knows"),
        ([{**GOOD, "wher": ""}], "accepted[0].wher: unknown key, expected"),
        ([{k: v for k, v in GOOD.items() if k != "where"}], "accepted[0].where: missing"),
        ([{**GOOD, "engine": "sglang"}], "accepted[0].engine: found"),
    ],
)
def test_a_malformed_file_is_named_with_the_place(text: Any, words: str, tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    if not isinstance(text, str):
        text = json.dumps({"schema": "eagle3-convert/baseline/1", "accepted": text})
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_baseline(file)
    assert words in str(caught.value) and str(caught.value).startswith(f"--baseline {file}: ")


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_writes_tells_and_drops(tmp_path: Path) -> None:
    source, file = copy_of("b_nbr", tmp_path / "in", strange("mine")), tmp_path / "b.json"
    options = ("--engine", SGLANG[0], "--target", TARGET, "--strict")
    wrote = validate(source, *options, "--write-baseline", file)
    assert wrote.exit_code == 0 and f"wrote {file}: 2 entries" in wrote.output
    done = validate(source, *options, "--baseline", file)
    assert done.exit_code == 0 and f"2 findings accepted by {file} (-v shows them)" in done.output
    assert "K103: " not in done.output and "error K103" not in done.output and "Not served by sglang" in done.output
    shown = validate(source, *options, "--baseline", file, "-v").output
    assert "accepted K103  norm_before_residual" in shown and "accepted C204" in shown
    shutil.rmtree(source)
    copy_of("b_nbr", source)
    fewer = validate(source, *options, "--baseline", file)
    assert fewer.exit_code == 0 and f"1 entry of {file} no longer occurs" in fewer.output
    assert "C204 at mine of in" in fewer.output
    assert validate(source, *options, "--write-baseline", file).exit_code == 0 and len(entries(file)) == 1
    assert validate(source, *options).exit_code == 1


def test_where_a_baseline_may_not_be_written(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in")
    other = tmp_path / "notes.json"
    other.write_text("{}")
    for options, words in (
        (("--write-baseline", source / "config.json"), "is read or written by this run"),
        (("--write-baseline", source / "b.json"), "is read or written by this run"),
        (("--write-baseline", other), "schema: missing"),
        (("--write-baseline", tmp_path / "no" / "b.json"), "there is no folder"),
        (("--write-baseline", other, "--report", other), "is read or written by this run"),
        (("--write-baseline", tmp_path / "b.json", "--baseline", other), "give it alone"),
        (("--baseline", tmp_path / "missing.json"), "No such file"),
    ):
        done = validate(source, *options)
        assert done.exit_code == 2 and words in done.output, (options, done.output)
    assert other.read_text() == "{}" and sorted(p.name for p in source.iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_several_drafters_share_a_baseline(tmp_path: Path) -> None:
    sources = [copy_of(name, tmp_path / name) for name in ("b_nbr", "j_attnbias")]
    options = ("--engine", SGLANG[0], "--target", TARGET)
    file = tmp_path / "b.json"
    wrote = validate(*sources, tmp_path / "nowhere", *options, "--write-baseline", file)
    assert wrote.exit_code == 3 and {e["drafter"] for e in entries(file)} == {"b_nbr", "j_attnbias"}
    done = validate(*sources, *options, "--baseline", file, "--json")
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and check(found, "reports") == []
    assert [row["accepted"] for row in found["summary"]] == [1, 1]
    assert [row["engines"][0]["word"] for row in found["summary"]] == ["cannot", "cannot"]
    only = validate(sources[0], *options, "--write-baseline", file)
    assert only.exit_code == 0 and {e["drafter"] for e in entries(file)} == {"b_nbr", "j_attnbias"}


def test_sarif_and_junit_say_so(tmp_path: Path) -> None:
    baseline = accept(tmp_path / "b.json", DRAFTERS / "b_nbr", engines=SGLANG)
    report = held(DRAFTERS / "b_nbr", baseline, *SGLANG)
    log = sarif.as_sarif(report)
    [result] = log["runs"][0]["results"]
    assert result["suppressions"] == [{"kind": "external", "status": "accepted", "justification": "--baseline"}]
    assert log["runs"][0]["invocations"][0]["exitCode"] == 0
    root = ElementTree.fromstring(junit.as_junit(report))
    assert root.attrib["failures"] == "0"
    skipped = root.find(".//testcase[@classname='eagle3.sglang==0.5.23']/skipped")
    assert skipped is not None and skipped.attrib["message"].startswith("accepted: ")


def test_page_and_markdown_say_so(tmp_path: Path) -> None:
    from converter.report.files import WRITERS

    baseline = accept(tmp_path / "b.json", DRAFTERS / "b_nbr", engines=SGLANG)
    report = held(DRAFTERS / "b_nbr", baseline, *SGLANG)
    page, text = WRITERS[".html"](report), WRITERS[".md"](report)
    assert "accepted K103" in page and "**○ accepted K103**" in text
    assert all("1 finding accepted by " in written for written in (page, text))

"""`eagle3-validate` of several drafters: what is said of each and of all, and that none hides another."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from converter import workers
from converter.cli import validate_command
from converter.cli.report import report_command
from converter.errors import UsageError
from converter.report import files
from converter.report.several import Several, SeveralPrinter, validate_several
from converter.rules.schema import check
from tests.support import DRAFTERS, ROOT, SAMPLE, TARGET, request
from tests.test_report_files import form
from tests.test_schemas import assert_published

ENGINES = ("sglang==0.5.23", "vllm==0.33.0")
GIVEN = (DRAFTERS / "l_defaults", DRAFTERS / "nowhere", DRAFTERS / "a_plain", TARGET)  # the last is no drafter


def several(*given: Path, engines: tuple[str, ...] = ENGINES, **options: Any) -> Several:
    return validate_several([request(path, engines=engines, target=TARGET, **options) for path in given], jobs=1)


@cache
def mixed() -> Several:
    return several(*GIVEN)


def printed(found: Several, **options: bool) -> str:
    file = io.StringIO()
    SeveralPrinter(file, **options).several(found.as_json())
    return file.getvalue()


def validate(*args: object) -> Result:
    """The command in this process, which does not fork."""
    return CliRunner().invoke(validate_command, list(map(str, args)))


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 1)


def test_each_is_told_in_the_order_given_and_the_worst_decides() -> None:
    found = mixed().as_json()
    assert [row["given"] for row in found["summary"]] == list(map(str, GIVEN))
    assert [row["exit_code"] for row in found["summary"]] == [0, 3, 0, 1]
    assert found["exit_code"] == mixed().exit_code == 3
    assert found["headline"] == "4 drafters: 2 in order, 1 not in order, 1 could not be read."
    words = [{e["engine"]: e["word"] for e in row["engines"]} for row in found["summary"]]
    assert words[0] == {ENGINES[0]: "cannot", ENGINES[1]: "works"} and words[1] == {}
    assert several(GIVEN[0], GIVEN[3]).exit_code == 1 and several(GIVEN[0], GIVEN[2]).exit_code == 0


def test_the_document_is_published_and_holds_what_single_runs_say() -> None:
    from converter.report.document import as_json
    from tests.support import check as alone

    assert_published(mixed().as_json(), "reports")
    found = json.loads(json.dumps(mixed().as_json()))
    assert found["drafters"][0] == as_json(alone(GIVEN[0], *ENGINES))
    assert found["drafters"][1]["schema"] == "eagle3-convert/error/1"
    assert found["drafters"][1]["findings"][0]["code"] == "F100"
    found["summary"][0]["exit_code"] = "1"
    assert check(found, "reports") and check({**found, "drafters": []}, "reports")


def test_the_table_comes_first_and_errors_of_those_not_in_order_below() -> None:
    text = printed(mixed())
    lines = text.splitlines()
    assert lines[0].startswith("4 drafters: ") and not any(line != line.rstrip() for line in lines)
    table, _, rest = text.partition("\n\n" + str(GIVEN[1]))
    assert [line.split()[0] for line in table.splitlines() if str(DRAFTERS) in line] == [str(g) for g in GIVEN[:3]]
    assert re.search(r"l_defaults +speculators +cannot K103 +works +0 +0\n", table)
    assert re.search(r"nowhere +- +- +- +1 +0\n", table) and "error" not in table.partition("warnings")[2]
    assert f"error F100  {GIVEN[1]} does not exist" in rest and "error F112" in rest
    assert "K103" not in rest  # it is in order: one engine can serve it
    assert f"more: eagle3-validate {TARGET} --engine sglang==0.5.23 --engine vllm==0.33.0 --target {TARGET}" in rest


def test_verbose_shows_all_findings_and_quiet_only_errors() -> None:
    text = printed(mixed(), verbose=True)
    assert "error K103" in text and "-> works in vLLM" in text and "error F112" in text
    quiet = printed(mixed(), quiet=True)
    assert "errors" not in quiet and "error F100" in quiet
    assert printed(several(GIVEN[2]), quiet=True) == ""


def test_the_same_fault_is_told_once_for_all_that_have_it() -> None:
    text = printed(several(DRAFTERS / "b_nbr", DRAFTERS / "l_defaults", engines=ENGINES[:1]))
    assert text.count("error K103") == 1
    assert text.count("more: eagle3-validate") == 2


def test_what_every_engine_lacks_is_told_once_and_without_their_names() -> None:
    made = DRAFTERS.parent / "producers" / "specforge_sglang"
    text = printed(validate_several([request(path, engines=ENGINES) for path in (made, GIVEN[2])], jobs=1))
    assert text.count("error K120") == 1 and "error K120  the target's class is not known" in text


def test_names_too_long_for_the_line_have_one_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converter.report.text._WIDTH", 60)
    lines = printed(mixed()).splitlines()
    at = lines.index(f"  {GIVEN[0]}")
    assert lines[at + 1].split() == ["speculators", "cannot", "K103", "works", "0", "0"]


def test_a_sample_gives_every_drafter_its_accuracy() -> None:
    found = several(DRAFTERS / "f_qwen3", TARGET, engines=ENGINES[1:], sample=SAMPLE)
    measured, unread = found.as_json()["summary"]
    assert (measured["accuracy"], unread["accuracy"]) == (336 / 672, None)  # as alone
    assert measured["level"] != unread["level"] == "none"
    assert re.search(r"f_qwen3 .* 50\.0%\n", printed(found))


def test_what_is_wrong_with_all_is_a_usage_error() -> None:
    for options, words in (
        ({"engines": ("tgi",)}, "no rules for engine"),
        ({"engines": ("sglang",), "min_accuracy": 0.5}, "needs --sample"),
        ({"engines": ("sglang",), "dialect": "nobody"}, "nobody"),
    ):
        with pytest.raises(UsageError, match=words):
            several(GIVEN[0], GIVEN[2], **options)  # type: ignore[arg-type]


# --- files ----------------------------------------------------------------------------------------------------------


def test_sarif_has_all_results_in_one_run() -> None:
    log = json.loads(files.SEVERAL[".sarif"](mixed()))
    [run] = form("log", log)["runs"]
    rules = form("driver", form("tool", form("run", run)["tool"])["driver"])["rules"]
    assert [r["id"] for r in rules] == ["F100", "F112", "K103"]
    assert [rules[r["ruleIndex"]]["id"] for r in run["results"]] == [r["ruleId"] for r in run["results"]]
    assert [(Path(r["properties"]["drafter"]).name, r["ruleId"]) for r in run["results"]] == [
        ("l_defaults", "K103"), ("nowhere", "F100"), (TARGET.name, "F112"),
    ]  # fmt: skip
    [invocation] = run["invocations"]
    assert (invocation["exitCode"], invocation["executionSuccessful"]) == (3, False)
    twice = json.loads(files.SEVERAL[".sarif"](several(DRAFTERS / "b_nbr", DRAFTERS / "l_defaults")))["runs"][0]
    prints = [r["partialFingerprints"]["finding/v1"] for r in twice["results"]]
    assert len(set(prints)) == len(prints) == 2  # the same fault in two drafters is two
    assert twice["invocations"][0]["executionSuccessful"]


def test_junit_has_a_suite_per_drafter() -> None:
    from xml.etree import ElementTree

    root = ElementTree.fromstring(files.SEVERAL[".xml"](mixed()))
    assert [suite.attrib["name"] for suite in root] == list(map(str, GIVEN))
    failed = {
        Path(suite.attrib["name"]).name: [
            (case.attrib["classname"].rpartition("/")[2], case.attrib["name"][:4])
            for case in suite if case.find("failure") is not None or case.find("error") is not None
        ] for suite in root
    }  # fmt: skip
    assert failed == {
        "l_defaults": [("l_defaults.sglang==0.5.23", "K103")],
        "nowhere": [("nowhere.drafter", "F100")],
        "a_plain": [],
        TARGET.name: [(f"{TARGET.name}.drafter", "F112")],
    }
    assert int(root.attrib["tests"]) == sum(int(suite.attrib["tests"]) for suite in root)


def test_page_and_markdown_have_a_table_and_every_drafter() -> None:
    page = files.SEVERAL[".html"](mixed())
    assert page.count("<h1>") == 1 and page.count("<h2>") == 4 and page.count("<table>") >= 1
    anchors = re.findall(r'id="([^"]+)"', page)
    assert len(anchors) == len(set(anchors)) and set(re.findall(r'href="#([^"]+)"', page)) <= set(anchors)
    assert page.count('<details open="">') == 2  # those that are not in order
    text = files.SEVERAL[".md"](mixed())
    assert text.startswith("## 4 drafters") and text.count("\n### ") == 4
    assert text.index("| drafter | dialect |") < text.index("\n### ") and "**✕ error F112**" in text


def test_a_kept_document_can_be_laid_out_later(tmp_path: Path) -> None:
    kept = tmp_path / "all.json"
    kept.write_text(files.SEVERAL[".json"](mixed()))
    for suffix in (".html", ".md"):
        out = tmp_path / f"all{suffix}"
        done = CliRunner().invoke(report_command, [str(kept), "-o", str(out)])
        assert done.exit_code == 0, done.output
        assert out.read_text() == files.SEVERAL[suffix](mixed())
    kept.write_text(kept.read_text().replace('"summary"', '"sum"'))
    assert CliRunner().invoke(report_command, [str(kept), "-o", str(tmp_path / "x.md")]).exit_code == 3


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_prints_and_writes_one_document(tmp_path: Path) -> None:
    out = tmp_path / "all.json"
    done = validate(*GIVEN, "--engine", "vllm", "--target", TARGET, "--json", "--report", out)
    assert done.exit_code == 3
    document = json.loads(done.stdout)
    assert check(document, "reports") == [] and document["headline"] in done.stderr
    assert json.loads(out.read_text()) == document
    assert "\x1b" not in done.stderr and "━" not in done.stderr  # no bar where nobody looks
    assert validate(GIVEN[0], GIVEN[2], "--target", TARGET, "-q").output == ""


def test_one_drafter_is_told_as_it_always_was() -> None:
    alone = validate(GIVEN[0], "--target", TARGET)
    assert alone.exit_code == 0 and alone.stdout.startswith("Served by vllm 0.33.0 as it lies. Not by ")
    assert json.loads(validate(GIVEN[0], "--target", TARGET, "--json").stdout)["schema"] == "eagle3-convert/report/1"


def test_a_report_may_not_lie_in_any_of_the_drafters() -> None:
    done = validate(GIVEN[0], GIVEN[2], "--report", GIVEN[2] / "report.json")
    assert done.exit_code == 2 and "is read or written by this run" in done.stderr
    assert not (GIVEN[2] / "report.json").exists()
    assert validate().exit_code == 2


def test_a_folder_of_drafters_is_refused_as_one(tmp_path: Path) -> None:
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
        for file in ("config.json", "model.safetensors"):
            (tmp_path / name / file).symlink_to(GIVEN[2] / file)
    single, with_another = validate(tmp_path), validate(tmp_path, GIVEN[2])
    assert single.exit_code == with_another.exit_code == 3
    document = json.loads(validate(tmp_path, GIVEN[2], "--json").stdout)["drafters"][0]
    assert document == json.loads(validate(tmp_path, "--json").stdout)


# --- processes ------------------------------------------------------------------------------------------------------

WORK = """
import os, sys, time
from converter.workers import each
def work(n):
    if n == {dies}: os.kill(os.getpid(), 9)
    time.sleep({sleeps})
    return n * n
if __name__ == "__main__":
    print(each(work, range(7), 3, lambda n, code: (n, code)), flush=True)
"""


def script(tmp_path: Path, **values: object) -> list[str]:
    (tmp_path / "work.py").write_text(WORK.format(**values))
    return [sys.executable, str(tmp_path / "work.py")]


def test_results_keep_their_order_and_a_dead_worker_costs_only_its_own(tmp_path: Path) -> None:
    command, environment = script(tmp_path, dies=2, sleeps=0.01), {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[0, 1, (2, -9), 9, 16, 25, 36]"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_command_leaves_no_process_and_no_words(number: signal.Signals) -> None:
    """Ctrl-C on a terminal, and its end, reach the workers, too; a signal to the parent alone does not."""
    code = "import converter.pipeline, time, sys; converter.pipeline.validate = lambda *a: time.sleep(60)\n"
    code += "import converter.accepting; converter.accepting.validate = converter.pipeline.validate\n"
    code += "import converter.workers; converter.workers.cores = lambda: 2\n"
    code += "import converter.cli; print('begun', flush=True); converter.cli.validate_main()"
    command = [sys.executable, "-c", code, str(GIVEN[0]), str(GIVEN[2])]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    assert running.stdout is not None and running.stdout.readline() == "begun\n"
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    for _ in range(300):
        if len(children.read_text().split()) == 2:
            break
        time.sleep(0.05)
    else:
        pytest.fail("no workers")
    os.killpg(running.pid, number)
    try:
        out, err = running.communicate(timeout=30)
    finally:
        running.kill()
    assert (running.returncode, out, err) == (130, "", "error  interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)


def test_processes_say_what_one_says() -> None:
    """The same document, but for the command line."""
    command = [sys.executable, "-m", "converter", "validate", *map(str, GIVEN), "--target", str(TARGET), "--json"]
    command += [word for engine in ENGINES for word in ("--engine", engine)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    document = json.loads(done.stdout)
    assert done.returncode == 3
    for one in (document, *(d for d in document["drafters"] if "command" in d)):
        one["command"] = []
    assert document == json.loads(json.dumps(mixed().as_json()))

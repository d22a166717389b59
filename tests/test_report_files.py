"""`--report`: SARIF and JUnit XML of real runs, against what the formats ask for."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse
from xml.etree import ElementTree

import pytest

from converter.errors import InputError, OutputError, UsageError
from converter.findings import SEVERITIES, error
from converter.pipeline import Report
from converter.report import files, junit, sarif
from converter.report.explain import GROUPS, catalogue
from tests.support import DRAFTERS, SAMPLE, TARGET, Config, Tensors, check, copy_of, eagle3, run

ENGINES = ("sglang==0.5.23", "vllm==0.33.0")

# The properties of each object in the official schema of SARIF 2.1.0 (which forbids all others), required ones first;
# only of those that are written here.
FORM: dict[str, tuple[set[str], set[str]]] = {
    "log": ({"version", "runs"}, {"$schema", "inlineExternalProperties", "properties"}),
    "run": ({"tool"}, {"invocations", "results", "columnKind", "properties", "artifacts", "originalUriBaseIds"}),
    "tool": ({"driver"}, {"extensions", "properties"}),
    "driver": ({"name"}, {"version", "semanticVersion", "rules", "informationUri", "properties"}),
    "rule": ({"id"}, {"name", "shortDescription", "fullDescription", "help", "helpUri", "defaultConfiguration",
                      "properties"}),
    "text": ({"text"}, {"markdown", "properties"}),
    "configuration": (set(), {"enabled", "level", "rank", "parameters", "properties"}),
    "invocation": ({"executionSuccessful"}, {"exitCode", "commandLine", "arguments", "toolExecutionNotifications"}),
    "notification": ({"message"}, {"level", "descriptor", "associatedRule", "locations", "properties"}),
    "result": ({"message"}, {"ruleId", "ruleIndex", "level", "kind", "locations", "partialFingerprints", "fingerprints",
                             "suppressions", "properties"}),
    "location": (set(), {"id", "physicalLocation", "logicalLocations", "message", "properties"}),
    "physical": (set(), {"artifactLocation", "region", "contextRegion", "address", "properties"}),
    "artifact": (set(), {"uri", "uriBaseId", "index", "description", "properties"}),
    "logical": (set(), {"name", "fullyQualifiedName", "decoratedName", "kind", "parentIndex", "index", "properties"}),
    "suppression": ({"kind"}, {"status", "justification", "guid", "location", "properties"}),
}  # fmt: skip


def form(kind: str, node: Any) -> dict[str, Any]:
    assert isinstance(node, dict)
    required, others = FORM[kind]
    assert required <= node.keys() <= required | others, (kind, node.keys())
    return node


def results(log: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of a log whose every object has been looked at."""
    log = json.loads(json.dumps(log, allow_nan=False))
    assert form("log", log)["version"] == "2.1.0"
    [one] = log["runs"]
    driver = form("driver", form("tool", form("run", one)["tool"])["driver"])
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", driver["semanticVersion"])
    rules = driver["rules"]
    assert [r["id"] for r in rules] == sorted({r["ruleId"] for r in one["results"]})  # each once, and none for nothing
    for rule in rules:
        form("rule", rule)
        assert form("configuration", rule["defaultConfiguration"])["level"] in SEVERITIES
        assert rule["properties"]["tags"] == [GROUPS[rule["id"][0]]]
        entry = catalogue()[rule["id"]]
        assert rule["shortDescription"]["text"] == entry["title"]
        assert "What it means" in rule["help"]["text"] and "**What it means.**" in rule["help"]["markdown"]
        for part in ("shortDescription", "fullDescription", "help"):
            assert form("text", rule[part])["text"]
    for invocation in one["invocations"]:
        form("invocation", invocation)
        for notification in invocation.get("toolExecutionNotifications", ()):
            form("text", form("notification", notification)["message"])
    for result in one["results"]:
        form("result", result)
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in SEVERITIES and form("text", result["message"])["text"]
        assert all(isinstance(v, str) and v for v in result["partialFingerprints"].values())
        for location in result["locations"]:
            artifact = form(
                "artifact", form("physical", form("location", location)["physicalLocation"])["artifactLocation"]
            )
            assert re.fullmatch(r"[!-~]+", artifact["uri"]) and " " not in artifact["uri"]
            for logical in location.get("logicalLocations", ()):
                assert form("logical", logical)["fullyQualifiedName"]
        for suppression in result.get("suppressions", ()):
            assert form("suppression", suppression)["kind"] in ("inSource", "external")
            assert suppression["status"] in ("accepted", "underReview", "rejected")
    return list(one["results"])


def place(result: dict[str, Any]) -> tuple[Path, list[str]]:
    [location] = result["locations"]
    file = Path(unquote(urlparse(location["physicalLocation"]["artifactLocation"]["uri"]).path))
    return file, [row["fullyQualifiedName"] for row in location.get("logicalLocations", ())]


def suites(text: str) -> dict[str, dict[str, ElementTree.Element]]:
    """The cases of each suite by name, its counts checked."""
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites" and text.startswith('<?xml version="1.0" encoding="UTF-8"?>\n')
    found = {}
    for suite in root:
        assert suite.tag == "testsuite"
        cases = {case.attrib["name"]: case for case in suite}
        assert len(cases) == len(suite) == int(suite.attrib["tests"])
        for tag, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            assert int(suite.attrib[attribute]) == sum(case.find(tag) is not None for case in suite)
        for case in suite:
            assert case.tag == "testcase" and case.attrib["classname"] == f"eagle3.{suite.attrib['name']}"
            assert {child.tag for child in case} <= {"failure", "error", "skipped", "system-out"}
        found[suite.attrib["name"]] = cases
    for attribute in ("tests", "failures", "errors", "skipped"):
        assert int(root.attrib[attribute]) == sum(int(suite.attrib[attribute]) for suite in root)
    return found


def failed(cases: dict[str, ElementTree.Element]) -> list[str]:
    return [name[:4] for name, case in cases.items() if case.find("failure") is not None]


def skipped(cases: dict[str, ElementTree.Element]) -> list[str]:
    return [name.partition(":")[0] for name, case in cases.items() if case.find("skipped") is not None]


# --- runs ---------------------------------------------------------------------------------------------------------


def test_a_drafter_in_order() -> None:
    report = check(DRAFTERS / "a_plain", *ENGINES)
    assert results(sarif.as_sarif(report)) == []
    found = suites(junit.as_junit(report))
    assert list(found) == ["drafter", "sglang==0.5.23", "vllm==0.33.0"]
    assert [name[0] for name in found["drafter"]] == list("FTVACN")
    assert skipped(found["drafter"]) == ["N"]  # nothing was run, so nothing of it passed
    assert list(found["vllm==0.33.0"]) == ["K: Engine compatibility"] and not any(failed(c) for c in found.values())


def test_a_proof_is_a_case_that_passed() -> None:
    found = suites(junit.as_junit(check(DRAFTERS / "a_plain", "vllm==0.33.0", sample=SAMPLE)))
    assert skipped(found["drafter"]) == [] and failed(found["drafter"]) == []


def test_what_one_engine_cannot_do_fails_in_its_suite_alone() -> None:
    report = check(DRAFTERS / "l_defaults", *ENGINES)
    [result] = results(sarif.as_sarif(report))
    assert (result["ruleId"], result["level"]) == ("K103", "error")
    assert result["properties"]["engine"] == "sglang==0.5.23"
    assert place(result) == ((DRAFTERS / "l_defaults" / "config.json").resolve(), ["norm_before_residual"])
    assert result["locations"][0]["logicalLocations"][0]["kind"] == "property"
    assert "To mend it: works in vLLM" in result["message"]["text"]
    found = suites(junit.as_junit(report))
    assert {name: failed(cases) for name, cases in found.items()} == {
        "drafter": [], "sglang==0.5.23": ["K103"], "vllm==0.33.0": [],
    }  # fmt: skip
    [case] = found["sglang==0.5.23"].values()
    assert case.attrib["name"] == "K103: norm_before_residual is not honoured"
    failure = case.find("failure")
    assert failure is not None and failure.attrib["type"] == "K103" and "expected: false" in str(failure.text)


def test_tensors_are_where_findings_about_them_are(tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        del tensors["layers.0.mlp.up_proj.weight"]
        tensors["norm.weight"] = tensors["norm.weight"][:32].clone()
        tensors["adapter.weight"] = tensors["norm.weight"].clone()

    report = check(copy_of("a_plain", tmp_path / "a b#é", tensors=spoil))
    by_code = {r["ruleId"]: r for r in results(sarif.as_sarif(report))}
    weights = (tmp_path / "a b#é" / "model.safetensors").resolve()
    assert place(by_code["T104"]) == (weights, ["norm.weight"])
    assert place(by_code["T101"]) == (weights, ["adapter.weight"])
    assert place(by_code["T103"]) == (weights.parent / "config.json", ["layers.0.mlp.up_proj.weight"])
    found = suites(junit.as_junit(report))
    assert set(failed(found["drafter"])) == {"T101", "T103", "T104"}
    assert all(skipped(found[name]) == ["K"] for name in ("sglang==0.5.23", "vllm==0.33.0"))  # not looked at


def test_several_findings_of_a_code_are_one_case_and_several_results(tmp_path: Path) -> None:
    def lose(tensors: Tensors) -> None:
        del tensors["layers.0.mlp.up_proj.weight"], tensors["norm.weight"]

    report = check(copy_of("a_plain", tmp_path / "in", tensors=lose))
    twice = results(sarif.as_sarif(report))
    assert [r["ruleId"] for r in twice] == ["T103", "T103"]
    assert twice[0]["partialFingerprints"] != twice[1]["partialFingerprints"]
    case = suites(junit.as_junit(report))["drafter"]["T103: " + catalogue()["T103"]["title"]]
    text = str(case.find("failure").text)  # type: ignore[union-attr]
    assert "layers.0.mlp.up_proj.weight is missing" in text and "norm.weight is missing" in text


def test_warnings_pass_and_allowed_errors_are_suppressed(tmp_path: Path) -> None:
    report = run(DRAFTERS / "b_nbr", tmp_path / "out", allow=("K103",))
    assert report.outcome == "converted"
    [result] = [r for r in results(sarif.as_sarif(report)) if r["ruleId"] == "K103"]
    assert result["suppressions"] == [{"kind": "external", "status": "accepted", "justification": "--allow K103"}]
    found = suites(junit.as_junit(report))
    assert skipped(found["sglang==0.5.23"]) == ["K103"] and failed(found["sglang==0.5.23"]) == []

    def unknown(config: Config) -> None:
        config["mine"] = 1

    report = check(copy_of("a_plain", tmp_path / "in", unknown), *ENGINES)
    [warned] = results(sarif.as_sarif(report))
    assert warned["level"] == "warning" and place(warned)[1] == ["mine"]
    case = suites(junit.as_junit(report))["drafter"]["C204: " + catalogue()["C204"]["title"]]
    assert [child.tag for child in case] == ["system-out"] and "config key mine" in str(case[0].text)
    strict = check(tmp_path / "in", *ENGINES, strict=True)
    assert failed(suites(junit.as_junit(strict))["drafter"]) == ["C204"]


def test_a_refused_conversion_has_each_engine_s_findings_in_its_suite(tmp_path: Path) -> None:
    from converter.pipeline import convert
    from tests.support import quiet, request

    engines = ("sglang==0.5.9", "sglang==0.5.23", "vllm==0.33.0")
    report = convert(
        request(DRAFTERS / "d_fcnorm_normout", out=tmp_path / "out", engines=engines, target=TARGET), quiet
    )
    found = suites(junit.as_junit(report))
    assert {name: sorted(failed(cases)) for name, cases in found.items()} == {
        "drafter": [], "sglang==0.5.9": ["K105", "K106"], "sglang==0.5.23": [], "vllm==0.33.0": [],
    }  # fmt: skip
    assert {r["ruleId"] for r in results(sarif.as_sarif(report)) if r["level"] == "error"} == {"K105", "K106"}


def test_what_could_not_be_read_is_not_said_to_be_in_order() -> None:
    report = check(TARGET)
    assert [r["ruleId"] for r in results(sarif.as_sarif(report))] == ["F112"]
    found = suites(junit.as_junit(report))
    assert failed(found["drafter"]) == ["F112"] and skipped(found["drafter"]) == list("TVACN")
    assert all(skipped(found[name]) == ["K"] for name in ("sglang==0.5.23", "vllm==0.33.0"))


def test_hostile_text_is_escaped_and_makes_no_link(tmp_path: Path) -> None:
    def hostile(config: Config) -> None:
        config["[x](https://evil.invalid)\x1b[2J\x00<![CDATA[\ufffe\U0001f600"] = "]]>\u202e"

    report = check(copy_of("a_plain", tmp_path / "in", hostile), *ENGINES)
    [result] = results(sarif.as_sarif(report))
    assert "\\](https" in result["message"]["text"] and "[x](" not in result["message"]["text"]
    text = junit.as_junit(report)
    case = suites(text)["drafter"]["C204: " + catalogue()["C204"]["title"]]
    assert "\\u001b[2J\\u0000<![CDATA[\\ufffe\U0001f600" in str(case[0].text)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", text + json.dumps(result, ensure_ascii=False))
    assert "\ufffe" not in text


def test_fingerprints_outlive_numbers_and_know_the_engine() -> None:
    reports = [check(DRAFTERS / "b_nbr", engine) for engine in ("sglang==0.5.22", "sglang==0.5.23", "sglang==0.5.23")]
    first, second, again = (results(sarif.as_sarif(r))[0]["partialFingerprints"] for r in reports)
    assert second == again != first


# --- files --------------------------------------------------------------------------------------------------------


def test_relative_paths_stay_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DRAFTERS / "b_nbr", tmp_path / "my drafter")
    monkeypatch.chdir(tmp_path)
    [result] = results(sarif.as_sarif(check(Path("my drafter"), "sglang==0.5.23")))
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "my%20drafter/config.json"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are Unicode")
def test_a_name_that_is_no_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"\xff")
    shutil.copytree(DRAFTERS / "b_nbr", name)
    [result] = results(sarif.as_sarif(check(Path(name), "sglang==0.5.23")))
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "%FF/config.json"


def test_the_suffix_chooses_and_stdout_is_as_it_was(tmp_path: Path) -> None:
    options = [word for engine in ENGINES for word in ("--engine", engine)]
    for suffix in files.WRITERS:
        report = tmp_path / f"r{suffix}"
        done = eagle3("validate", DRAFTERS / "l_defaults", *options, "--target", TARGET, "--json", "--report", report)
        assert done.returncode == 0 and json.loads(done.stdout)["outcome"] == "validated"
    assert json.loads((tmp_path / "r.json").read_text()) | {"command": 0} == json.loads(done.stdout) | {"command": 0}
    log = json.loads((tmp_path / "r.sarif").read_text())
    assert [r["ruleId"] for r in results(log)] == ["K103"]
    [invocation] = log["runs"][0]["invocations"]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (True, 0)
    assert invocation["commandLine"].endswith(f"--report {tmp_path / 'r.sarif'}")
    assert failed(suites((tmp_path / "r.xml").read_text())["sglang==0.5.23"]) == ["K103"]


def test_a_run_that_ended_before_a_report_says_so_in_the_file(tmp_path: Path) -> None:
    for suffix in files.FAILURES:
        done = eagle3("validate", tmp_path / "nothing", "--report", tmp_path / f"r{suffix}")
        assert done.returncode == 3
    log = json.loads((tmp_path / "r.sarif").read_text())
    assert [r["ruleId"] for r in results(log)] == ["F100"]
    [invocation] = log["runs"][0]["invocations"]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (False, 3)
    [case] = suites((tmp_path / "r.xml").read_text())["drafter"].values()
    assert case.find("error") is not None and case.attrib["name"].startswith("F100: ")
    assert json.loads((tmp_path / "r.json").read_text())["exit_code"] == 3


def test_failures_without_a_finding() -> None:
    assert results(sarif.failure(OutputError("the disk is full"))) == []
    for problem, name in ((OutputError("full"), "output"), (UsageError("what"), "usage")):
        assert list(suites(junit.failure(problem))["drafter"]) == [name]
    located = results(
        sarif.failure(InputError(error("F110", "no JSON", where=str(DRAFTERS / "a_plain" / "config.json"))))
    )
    assert place(located[0])[0].name == "config.json"


def test_every_suffix_writes_text_and_others_are_refused(tmp_path: Path) -> None:
    report: Report = check(DRAFTERS / "e_2layers", "sglang==0.5.9")
    for suffix, write in files.WRITERS.items():
        assert write(report).endswith("\n"), suffix
    assert set(files.FAILURES) <= set(files.WRITERS)
    done = eagle3("validate", DRAFTERS / "a_plain", "--report", tmp_path / "r.docx")
    assert done.returncode == 2 and "reports are written as .json, .html, .md, .sarif, .xml" in done.stderr

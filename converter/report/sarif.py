"""A report as SARIF 2.1.0, which code hosts and editors show: a rule per code, a result per finding.

Form: OASIS sarif-v2.1.0, sections 3.13 (log), 3.14 (run), 3.27 (result), 3.49 (rule).
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from converter.baseline import HOW
from converter.errors import Eagle3Error
from converter.findings import Finding
from converter.proving import proof_json
from converter.report.explain import GROUPS, SECTIONS, catalogue, explain
from converter.report.words import clean
from converter.rules.fields import lookup
from converter.run import Report
from converter.source import Source
from converter.version import __version__

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


@dataclass(frozen=True)
class _Said:
    """A finding, of one engine release ("" for one about the drafter)."""

    finding: Finding
    engine: str


def as_sarif(report: Report) -> dict[str, Any]:
    """The log of one run. A refused drafter is a run that ended well, with results of level error."""
    said = [_Said(f, "") for f in report.findings]
    said += [_Said(f, engine) for engine, findings in report.verdicts.items() for f in findings]
    properties = {
        "outcome": report.outcome,
        "dialect": report.dialect.name if report.dialect is not None else "",
        "engines": [engine.requirement for engine in report.engines],
        "proof": proof_json(report)["level"],
    }
    exit_code = 1 if report.outcome == "refused" else 0
    return _log(said, report.source, report.request.command, exit_code, properties)


def failure(problem: Eagle3Error) -> dict[str, Any]:
    """The log of a run that ended before there was a report."""
    said = [_Said(problem.finding, "")] if problem.finding is not None else []
    log = _log(said, None, (), problem.exit_code, {})
    [invocation] = log["runs"][0]["invocations"]
    invocation["executionSuccessful"] = False
    invocation["toolExecutionNotifications"] = [{"level": "error", "message": {"text": clean(str(problem))}}]
    return log


def of_several(logs: Sequence[tuple[str, Mapping[str, Any]]], command: Sequence[str], exit_code: int) -> dict[str, Any]:
    """The log of one run out of those of single drafters, by their names, which are in the properties of results."""
    runs = [(given, run) for given, log in logs for run in log["runs"]]
    rules = {rule["id"]: rule for _, run in runs for rule in run["tool"]["driver"]["rules"]}
    log = _log([], None, command, exit_code, {"drafters": [{"drafter": g, **run["properties"]} for g, run in runs]})
    [whole] = log["runs"]
    codes = sorted(rules)
    whole["tool"]["driver"]["rules"] = [rules[code] for code in codes]
    for given, run in runs:
        for result in run["results"]:
            prints = {k: _digest(given, v) for k, v in result["partialFingerprints"].items()}
            whole["results"].append({
                **result,
                "ruleIndex": codes.index(result["ruleId"]),
                "partialFingerprints": prints,
                "properties": {"drafter": clean(given), **result["properties"]},
            })  # fmt: skip
    told = [n for _, run in runs for n in run["invocations"][0].get("toolExecutionNotifications", ())]
    if told:
        whole["invocations"][0] |= {"executionSuccessful": False, "toolExecutionNotifications": told}
    return log


def _log(
    said: Sequence[_Said], source: Source | None, command: Sequence[str], exit_code: int, properties: Mapping[str, Any]
) -> dict[str, Any]:
    codes = sorted({s.finding.code for s in said})
    invocation: dict[str, Any] = {"executionSuccessful": True, "exitCode": exit_code}
    if command:
        invocation["commandLine"] = shlex.join(command)
    run = {
        "tool": {
            "driver": {
                "name": "eagle3-convert",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": [_rule(code) for code in codes],
            }
        },
        "invocations": [invocation],
        "results": [_result(s, codes.index(s.finding.code), source) for s in said],
        "columnKind": "utf16CodeUnits",
        "properties": dict(properties),
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(code: str) -> dict[str, Any]:
    entry = catalogue()[code]
    sections = [f"**{heading}.** {_flowed(entry[key])}" for key, heading in SECTIONS.items() if key in entry]
    return {
        "id": code,
        "shortDescription": {"text": entry["title"]},
        "fullDescription": {"text": _flowed(entry["means"])},
        "help": {"text": explain(code), "markdown": "\n\n".join(sections)},
        "defaultConfiguration": {"level": entry["severity"]},
        "properties": {"tags": [GROUPS[code[0]]]},
    }


def _flowed(text: Any) -> str:
    return " ".join(str(text).split())


def _result(said: _Said, index: int, source: Source | None) -> dict[str, Any]:
    f = said.finding
    evidence = {"found": f.found, "expected": f.expected, "why": f.why, "causedBy": f.caused_by, "engine": said.engine}
    result: dict[str, Any] = {
        "ruleId": f.code,
        "ruleIndex": index,
        "level": f.severity,
        "message": {"text": _message(said)},
        "locations": _locations(f, source),
        "partialFingerprints": {"finding/v1": _fingerprint(said)},
        "properties": {**{k: clean(v) for k, v in evidence.items() if v}, "fix": [clean(fix) for fix in f.fix]},
    }
    if f.allowed or f.accepted:
        by = f"--allow {f.caused_by or f.code}" if f.allowed else "--baseline"
        result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": by}]
    return result


def _message(said: _Said) -> str:
    """What is wrong, with evidence and what to do: viewers show only this."""
    f = said.finding
    evidence = (("found", f.found), ("expected", f.expected))
    told = [f"{name} {text}" for name, text in evidence if text and text not in f.message]
    parts = [f.message, "; ".join(told), f.why, *(f"To mend it: {fix}" for fix in f.fix[:1])]
    text = ". ".join(part.rstrip(".") for part in parts if part) + "."
    return clean(text).replace("](", "\\](")  # not a link, whatever a stranger's file says (section 3.11.6)


def _fingerprint(said: _Said) -> str:
    """The same for the same fault in a later run, whatever numbers its message holds."""
    f = said.finding
    return _digest(f.code, f.where, said.engine)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:32]


# --- where --------------------------------------------------------------------------------------------------


def _locations(f: Finding, source: Source | None) -> list[dict[str, Any]]:
    """A file of the drafter, and in it the config keys or tensors that the finding is about."""
    where = HOW.sub("", f.where)
    if source is None:
        return [_location(Path(where), ())] if where and Path(where).exists() else []
    config = source.folder / "config.json"
    tensors = [name for name in where.split(", ") if name in source.checkpoint.tensors]
    by_file: dict[Path, list[str]] = {}
    for name in tensors:
        by_file.setdefault(source.checkpoint.tensors[name].file, []).append(name)
    if by_file:
        return [_location(file, [(name, "tensor") for name in names]) for file, names in by_file.items()]
    if where and Path(where).exists():
        return [_location(Path(where), ())]
    return [_location(config, list(_named(where, source)))]


def _named(where: str, source: Source) -> Iterator[tuple[str, str]]:
    """Config keys, or whatever else a finding names: an option, a parameter that is missing."""
    for name in where.split(" or ") if where and where != "config.json" else ():
        known = lookup(source.config, name) is not None
        yield name, "property" if known else "option" if name.startswith("--") else "value"


def _location(file: Path, names: Sequence[tuple[str, str]]) -> dict[str, Any]:
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": _uri(file)}}}
    if names:
        location["logicalLocations"] = [
            {"name": clean(name.rpartition(".")[2] or name), "fullyQualifiedName": clean(name), "kind": kind}
            for name, kind in names
        ]
    return location


def _uri(file: Path) -> str:
    """A relative path stays relative, to wherever the command ran."""
    return file.as_uri() if file.is_absolute() else quote(os.fsencode(file.as_posix()))

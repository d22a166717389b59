"""A report as JUnit XML, which CI systems show: a suite for the drafter and one per engine release, a case per finding.

There is no standard; this is what Jenkins, GitLab and GitHub's readers have in common: `testsuites`, `testsuite` with
counts, `testcase` with `classname` and `name`, and in it `failure`, `error`, `skipped` or `system-out`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from converter.errors import Eagle3Error
from converter.findings import Finding, counts
from converter.report.explain import GROUPS, catalogue
from converter.report.words import clean, mentions
from converter.rules.engine import EngineRelease
from converter.run import Report

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, section 2.2
_DRAFTER = "FTVACN"  # groups of findings about the drafter itself


@dataclass(frozen=True)
class Case:
    """outcome: passed, failure, error or skipped; message for the last three, text for all"""

    name: str
    outcome: str = "passed"
    kind: str = ""
    message: str = ""
    text: str = ""


Suites = dict[str, list[Case]]


def as_junit(report: Report) -> str:
    """Errors that stop are failures; allowed ones are skipped; warnings and notes pass, with what they say."""
    return _text(suites(report))


def failure(problem: Eagle3Error) -> str:
    """One case that could not be run."""
    return _text(failed(problem))


def of_several(drafters: Iterable[tuple[str, Suites]]) -> str:
    """A suite per drafter, by its name; what would be its suites are classes of cases."""
    return _document(
        (name, [(f"eagle3.{name}.{suite}", case) for suite, cases in suites.items() for case in cases])
        for name, suites in drafters
    )


def suites(report: Report) -> Suites:
    """The cases by suite: of the drafter, and of every engine release."""
    found = {"drafter": list(_drafter(report))}
    for engine in report.engines:
        found[engine.requirement] = list(_engine(report, engine))
    return found


def failed(problem: Eagle3Error) -> Suites:
    """The suites of a run that ended before there was a report."""
    finding = problem.finding
    name = _title(finding) if finding is not None else "usage" if problem.exit_code == 2 else "output"
    text = _body([finding]) if finding is not None else str(problem)
    return {"drafter": [Case(name, "error", finding.code if finding else name, str(problem), text)]}


def _drafter(report: Report) -> Iterator[Case]:
    mine = [f for f in report.findings if f.code[0] in _DRAFTER or not report.engines]
    yield from _cases(mine)
    for group in _DRAFTER:
        if not any(f.code[0] == group for f in mine):
            yield _without_findings(group, report)


def _without_findings(group: str, report: Report) -> Case:
    name = f"{group}: {GROUPS[group]}"
    if group == "N" and report.proof is None:
        return Case(name, "skipped", message="nothing was run (--sample FILE or --prove)")
    if group != "F" and report.drafter is None:
        return Case(name, "skipped", message="not looked at: the drafter could not be read")
    return Case(name)


def _engine(report: Report, engine: EngineRelease) -> Iterator[Case]:
    """What stands in one release's way. A report of `convert` has all engines' findings together."""
    findings = report.verdicts.get(engine.requirement)
    if findings is None and report.plan is None and not _of_engines(report):
        yield Case("K: " + GROUPS["K"], "skipped", message="not looked at: the drafter is not in order")
        return
    if findings is None:
        findings = [
            f
            for f in _of_engines(report)
            if mentions(f.message, str(engine)) or not any(mentions(f.message, str(e)) for e in report.engines)
        ]
    yield from _cases(findings)
    if not any(f.code[0] == "K" for f in findings):
        yield Case("K: " + GROUPS["K"])


def _of_engines(report: Report) -> list[Finding]:
    return [f for f in report.findings if f.code[0] not in _DRAFTER]


def _cases(findings: Sequence[Finding]) -> Iterator[Case]:
    """A case per code, with every finding of it."""
    by_code: dict[str, list[Finding]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, []).append(finding)
    for code, several in by_code.items():
        name, text = _title(several[0]), _body(several)
        stopping = [f for f in several if counts(f)]
        if stopping:
            yield Case(name, "failure", code, "; ".join(f.message for f in stopping), text)
        elif any(f.severity == "error" or f.accepted for f in several):
            word = "accepted" if any(f.accepted for f in several) else "allowed"
            yield Case(name, "skipped", message=f"{word}: {several[0].message}", text=text)
        else:
            yield Case(name, text=text)


def _title(finding: Finding) -> str:
    return f"{finding.code}: {catalogue()[finding.code]['title']}"


def _body(findings: Iterable[Finding]) -> str:
    parts = []
    for f in findings:
        rows = [("where", f.where), ("found", f.found), ("expected", f.expected), ("why", f.why)]
        rows += [("to mend it", fix) for fix in f.fix]
        parts.append("\n".join([f"{f.severity}: {f.message}", *(f"{name}: {text}" for name, text in rows if text)]))
    return "\n\n".join(parts)


def _text(suites: Suites) -> str:
    return _document((name, [(f"eagle3.{name}", case) for case in cases]) for name, cases in suites.items())


def _document(suites: Iterable[tuple[str, Sequence[tuple[str, Case]]]]) -> str:
    """The XML of suites, whose cases have the name of their class beside them."""
    suites = list(suites)
    root = ElementTree.Element("testsuites", {"name": "eagle3-convert", **_counts([c for _, cs in suites for c in cs])})
    for name, cases in suites:
        suite = ElementTree.SubElement(root, "testsuite", {"name": _legal(name), **_counts(cases)})
        for classname, case in cases:
            _add(suite, case, classname)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _counts(cases: Sequence[tuple[str, Case]]) -> dict[str, str]:
    count = {f"{outcome}s": sum(c.outcome == outcome for _, c in cases) for outcome in ("failure", "error")}
    skipped = sum(c.outcome == "skipped" for _, c in cases)
    return {"tests": str(len(cases)), **{k: str(v) for k, v in count.items()}, "skipped": str(skipped), "time": "0"}


def _add(suite: ElementTree.Element, case: Case, classname: str) -> None:
    element = ElementTree.SubElement(suite, "testcase", classname=_legal(classname), name=_legal(case.name), time="0")
    if case.outcome != "passed":
        attributes = {"message": _legal(case.message), **({"type": case.kind} if case.kind else {})}
        inner = ElementTree.SubElement(element, case.outcome, attributes)
        if case.outcome != "skipped":
            inner.text = _legal(case.text)
            return
    if case.text:
        ElementTree.SubElement(element, "system-out").text = _legal(case.text)


def _legal(text: str) -> str:
    """Only characters that XML may hold; others as visible escapes."""
    return _NOT_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", clean(text))

"""Several drafters, validated at once: what is said of each, and of all (schemas/reports.schema.json).

Each may be looked at in a process of its own, so what goes on from there is its document and what else is written of
it, not the report. Everything for people is a function of the document of all.
"""

from __future__ import annotations

import shlex
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from converter import workers
from converter.accepting import validate_against
from converter.baseline import Baseline, Held
from converter.errors import Eagle3Error, OutputError, UsageError
from converter.findings import Finding
from converter.report import document, junit, sarif
from converter.report.reading import (
    Document,
    codes_against,
    engine_columns,
    engine_name,
    findings,
    headline,
    is_error,
    verdict,
)
from converter.report.text import Printer
from converter.report.words import clean, count
from converter.rules.releases import resolve
from converter.run import Request

SCHEMA = "eagle3-convert/reports/1"
ENDS = {0: "in order", 1: "not in order", 3: "could not be read"}  # exit code of one -> what is said of it
_OTHER_END = "failed"
_KILLED = -9
_SHORT = {"works after conversion": "converts", "not looked at": "-"}  # a verdict's word, in a column
_FIELDS = tuple(Finding.__dataclass_fields__)


@dataclass(frozen=True)
class Single:
    """One drafter of several.

    document  its report, or the error document where there is none
    log       its SARIF log
    suites    its JUnit suites
    again     the command that looks at it alone
    held      its findings, held against a baseline, where there is one and the drafter could be read
    """

    given: str
    exit_code: int
    document: Document
    log: Mapping[str, Any]
    suites: junit.Suites
    again: tuple[str, ...]
    held: Held | None = None


@dataclass(frozen=True)
class Several:
    """All of them, in the order given."""

    command: tuple[str, ...]
    drafters: Sequence[Single] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """The worst of the single ones, which is the highest: unreadable (3) outweighs an error finding (1)."""
        return max(d.exit_code for d in self.drafters)

    def as_json(self) -> dict[str, Any]:
        """The document of all (schemas/reports.schema.json)."""
        return {
            "schema": SCHEMA,
            "tool": document.tool_json(),
            "command": list(self.command),
            "headline": _headline([d.exit_code for d in self.drafters]),
            "exit_code": self.exit_code,
            "summary": [_row(d) for d in self.drafters],
            "drafters": [d.document for d in self.drafters],
        }


@dataclass(frozen=True)
class _Task:
    request: Request
    baseline: Baseline | None


def validate_several(
    requests: Sequence[Request],
    baseline: Baseline | None = None,
    jobs: int | None = None,
    began: Callable[[int], None] = lambda index: None,
    ended: Callable[[int], None] = lambda index: None,
    told: Callable[[str], None] = lambda what: None,
) -> Several:
    """Validate each, whatever becomes of the others; the requests differ in `source` alone.

    Static checks share the cores among `jobs` processes (default: one a core). A forward pass uses all cores, or a
    device, by itself and sums in an order that depends on their number, so those run one after another in this process,
    with the figures of a run alone. Raises UsageError for what is wrong with all of them.
    """
    first = requests[0]
    first.wish.check()
    for requirement in first.engines:
        resolve(requirement)
    if first.wish.anything:
        jobs = 1

    def single(task: _Task) -> Single:
        return _single(task, told)

    tasks = [_Task(request, baseline) for request in requests]
    jobs = workers.cores() if jobs is None else jobs
    drafters = workers.each(_single if jobs > 1 else single, tasks, jobs, _lost, began, ended)
    if (
        all(d.exit_code == UsageError.exit_code for d in drafters)
        and len({headline(d.document) for d in drafters}) == 1
    ):
        raise UsageError(headline(drafters[0].document))
    return Several(first.command, drafters)


def _single(task: _Task, told: Callable[[str], None] = lambda what: None) -> Single:
    request = task.request
    try:
        report = validate_against(task.baseline, request, told)
    except Eagle3Error as problem:
        return _ended(request, problem)
    except OSError as problem:
        return _ended(request, OutputError(f"{problem.filename or 'the system'}: {problem.strerror or problem}"))
    return Single(
        request.source,
        1 if report.outcome == "refused" else 0,
        document.as_json(report),
        sarif.as_sarif(report),
        junit.suites(report),
        again(report.request),
        report.held,
    )


def _ended(request: Request, problem: Eagle3Error) -> Single:
    return Single(
        request.source,
        problem.exit_code,
        document.error_json(problem),
        sarif.failure(problem),
        junit.failed(problem),
        again(request),
    )


def _lost(task: _Task, code: int) -> Single:
    """Of a process that ended on its own."""
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    perhaps = "; perhaps memory ran out" if code == _KILLED else ""
    return _ended(task.request, OutputError(f"the process that looked at {task.request.source} {how}{perhaps}"))


def again(request: Request) -> tuple[str, ...]:
    """The command that looks at one of several alone."""
    wish = request.wish
    words = ["eagle3-validate", request.source]
    for engine in request.engines:
        words += ["--engine", engine]
    words += request.again()
    flags = {
        "--prove": wish.prove,
        "--find-wiring": wish.find_wiring,
        "--strict": request.strict,
        "--no-scan": not request.scan,
    }
    return (*words, *(flag for flag, given in flags.items() if given))


# --- the document -------------------------------------------------------------------------------------------------


def is_several(found: Document) -> bool:
    """Whether a document is one of several drafters."""
    return str(found["schema"]) == SCHEMA


def _headline(codes: Sequence[int]) -> str:
    ends = Counter(_end(code) for code in codes)
    parts = [f"{ends[end]} {end}" for end in (*ENDS.values(), _OTHER_END) if ends[end]]
    return f"{count(len(codes), 'drafter')}: {', '.join(parts)}."


def _end(code: int) -> str:
    return ENDS.get(code, _OTHER_END)


def _row(single: Single) -> dict[str, Any]:
    found = single.document
    kinds = Counter(f.kind for f in findings(found) if not f.engine)
    error = is_error(found)
    scores = None if error else found["proof"]["scores"]
    return {
        "given": single.given,
        "exit_code": single.exit_code,
        "headline": headline(found),
        "dialect": "" if error else found["input"]["dialect"],
        "engines": [{"engine": e["engine"], **_verdict_of(found, e)} for e in found.get("engines", ())],
        "errors": kinds["error"],
        "warnings": kinds["warning"],
        "notes": kinds["note"],
        "allowed": kinds["allowed"],
        "accepted": sum(f.kind == "accepted" for f in findings(found)),
        "accuracy": None if scores is None else scores["accuracy"][0],
        "level": "none" if error else found["proof"]["level"],
        "again": list(single.again),
    }


def _verdict_of(found: Document, engine: Mapping[str, Any]) -> dict[str, Any]:
    said = verdict(found, engine)
    return {"word": said["word"], "why": said["why"], "codes": codes_against(engine)}


# --- SARIF and JUnit ----------------------------------------------------------------------------------------------


def as_sarif(several: Several) -> dict[str, Any]:
    """One log out of those of all."""
    return sarif.of_several([(d.given, d.log) for d in several.drafters], several.command, several.exit_code)


def as_junit(several: Several) -> str:
    """One file out of the suites of all."""
    return junit.of_several((d.given, d.suites) for d in several.drafters)


# --- text ---------------------------------------------------------------------------------------------------------


class SeveralPrinter(Printer):
    """A table of all, then what is wrong with those that are not in order."""

    def several(self, found: Document) -> None:
        """The end of `eagle3 validate` with several drafters."""
        rows = found["summary"]
        worst = found["exit_code"]
        if not (self.quiet and worst == 0):
            self._line(found["headline"], "bold red" if worst else "bold")
        if not self.quiet:
            self._table(found)
        if self.verbose:
            for row, one in zip(rows, found["drafters"], strict=True):
                self._whole(row, one)
        else:
            self._errors(found)

    def _table(self, found: Document) -> None:
        engines = engine_columns(found)
        measured = any(row["accuracy"] is not None for row in found["summary"])
        heads = ["drafter", "dialect", *map(engine_name, engines), "errors", "warnings", *(["accuracy"] * measured)]
        lines = [heads]
        for row in found["summary"]:
            said = {e["engine"]: e for e in row["engines"]}
            verdicts = [_cell(said[e]) if e in said else "-" for e in engines]
            accuracy = "-" if row["accuracy"] is None else f"{row['accuracy']:.1%}"
            of_all = [str(row["errors"]), str(row["warnings"]), *([accuracy] * measured)]
            lines.append([clean(row["given"]), row["dialect"] or "-", *verdicts, *of_all])
        widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
        right = range(len(heads) - 2 - measured, len(heads))
        wide = sum(widths) + 2 * len(widths) > self.console.width  # then names have lines of their own
        self._gap()
        for line, row in zip(lines, [None, *found["summary"]], strict=True):
            style = "dim" if row is None else "red" if row["exit_code"] else ""
            cells = [c.rjust(widths[i]) if i in right else c.ljust(widths[i]) for i, c in enumerate(line)]
            if wide:
                if row is not None:
                    self._line(f"  {line[0]}", style)
                cells[0] = "  "
            self._line("  " + "  ".join(cells).rstrip(), style)

    def _errors(self, found: Document) -> None:
        """Each fault once, for all drafters that have the same ones."""
        groups: dict[tuple[tuple[str, str], ...], list[Mapping[str, Any]]] = {}
        for row, one in zip(found["summary"], found["drafters"], strict=True):
            if row["exit_code"]:
                groups.setdefault(tuple(_faults(one)), []).append(row)
        for faults, rows in groups.items():
            self._gap()
            for row in rows:
                self._line(clean(row["given"]), "bold")
            for code, message in faults:
                self._hang(f"  error {code}".rstrip(), message, "bold red")
            for row in rows:
                self._line(f"  more: {shlex.join(row['again'])}", "dim")

    def _whole(self, row: Mapping[str, Any], one: Document) -> None:
        self._gap()
        self._line(f"{clean(row['given'])}: {clean(headline(one))}", "bold red" if row["exit_code"] else "bold")
        self._said.clear()
        for f in findings(one):
            values: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in f.finding.items() if k in _FIELDS}
            said = Finding(**values)
            at = f"{f.engine}: " if f.engine and f.engine not in said.message else ""
            self.findings([replace(said, message=at + said.message)])


def _cell(said: Mapping[str, Any]) -> str:
    """`converts`, or `cannot K103`."""
    word = said["word"]
    return " ".join([word, ", ".join(said["codes"])]) if word == "cannot" else _SHORT.get(word, word)


def _faults(one: Document) -> Iterator[tuple[str, str]]:
    """Code and message of every error that counts, once; of an error without a finding, what it says."""
    of: dict[tuple[str, str], list[str]] = {}  # code and message -> the engines that it does not name
    for f in findings(one):
        if f.kind == "error":
            message = str(f.finding["message"])
            of.setdefault((f.code, message), []).extend([f.engine] if f.engine and f.engine not in message else [])
    for (code, message), engines in of.items():
        every = len(engines) == len(one.get("engines", ()))
        yield code, message if every or not engines else f"{', '.join(engines)}: {message}"
    if not of:
        yield "", headline(one)


def held_of(several: Several) -> list[Held]:
    """What a baseline took off, of the drafters that could be read."""
    return [d.held for d in several.drafters if d.held is not None]

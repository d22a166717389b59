"""Findings that were accepted once (`--baseline FILE`): a file that people read and that CI holds later runs against.

An entry is a drafter, a code, an engine release and a place (tensor, config key, file), and how often; what a message
says is no part of it, so a figure may change and a release may word it anew, while another tensor is another entry.
Paths are relative to the file (drafters, targets) or to the drafter (its files), so all may move together.

What may be accepted: warnings, and errors that --allow could let through, once every engine was looked at. An error
that ends the look earlier would hide what comes after it; that is what --allow is for, which goes on. Notes count
nowhere, so they need no entry. A verdict stays what it is: an engine that cannot serve a drafter cannot.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from converter.checkpoint.jsonfile import dumped, parse
from converter.checkpoint.paths import real
from converter.checkpoint.whole import write_output
from converter.drafter.spec import How
from converter.errors import UsageError
from converter.findings import Finding, judge
from converter.rules import loading

SCHEMA = "eagle3-convert/baseline/1"
ANY = "*"  # as the drafter of an entry: every drafter
HOW = re.compile(rf" \(({'|'.join(get_args(How))})\)$")  # what `Origin` appends to a config key
_MOST_BYTES = 64_000_000


@dataclass(frozen=True, order=True)
class Key:
    """What an entry stands for; engine "" is the drafter itself."""

    drafter: str
    code: str
    engine: str
    where: str

    def __str__(self) -> str:
        of = f" for {self.engine}" if self.engine else ""
        return f"{self.code}{of} at {self.where or 'no place'} of {self.drafter}"


@dataclass(frozen=True)
class Baseline:
    """counts: how many findings each entry stands for; reasons: why people accepted them, as they wrote in the file;
    growing: it is to be written, and accepts all that can be accepted."""

    file: Path
    counts: Mapping[Key, int] = field(default_factory=dict)
    reasons: Mapping[Key, str] = field(default_factory=dict)
    growing: bool = False


@dataclass(frozen=True)
class Scope:
    """What a run looked at of one drafter.

    drafter    its name in the file
    folder     where its files are
    engines    the releases that were looked at; empty where the look ended before them
    ran        whether a forward pass was computed
    """

    drafter: str
    folder: Path
    engines: frozenset[str]
    ran: bool

    def covers(self, key: Key) -> bool:
        """Whether an entry that did not occur would have been seen."""
        mine = key.drafter in (self.drafter, ANY) and bool(self.engines)
        return mine and (not key.engine or key.engine in self.engines) and (self.ran or key.code[0] != "N")


@dataclass(frozen=True)
class Held:
    """A drafter's findings, held against a baseline.

    accepted  how many it accepts
    used    how many findings each entry accepted
    found   what could be accepted, accepted or not: what a new baseline would hold of this drafter
    never   codes of what no baseline can accept here
    file    the baseline
    gone    its entries that stand for more than was found, though the run looked there
    """

    scope: Scope
    findings: list[Finding]
    verdicts: dict[str, list[Finding]]
    accepted: int
    used: Counter[Key]
    found: Counter[Key]
    never: tuple[str, ...]
    file: Path
    gone: tuple[Key, ...]

    def as_json(self) -> dict[str, Any]:
        """The `baseline` object of a report."""
        return {
            "file": str(self.file),
            "accepted": self.accepted,
            "gone": [asdict(key) for key in self.gone],
        }


def acceptable(code: str) -> bool:
    """False for what can never be let through: nothing right could be written, so nothing is right to overlook."""
    return bool(loading.load("", "findings")["findings"][code].get("allow") != "never")


def hold(
    baseline: Baseline,
    scope: Scope,
    findings: Sequence[Finding],
    verdicts: Mapping[str, Sequence[Finding]],
    strict: bool,
) -> Held:
    """Mark what the baseline accepts; `strict` makes errors of the other warnings. No error becomes less than one."""
    left, used, found, never = Counter(baseline.counts), Counter[Key](), Counter[Key](), list[str]()

    def marked(finding: Finding, engine: str) -> Finding:
        if finding.severity == "note" or finding.allowed:
            return finding
        if not acceptable(finding.code) or (finding.severity == "error" and not scope.engines):
            never.append(finding.code)
            return finding
        key = Key(scope.drafter, finding.code, engine, place(finding.where, scope.folder, baseline.file))
        found[key] += 1
        for entry in (key, replace(key, drafter=ANY)):
            if left[entry] > 0:
                left[entry] -= 1
                used[entry] += 1
                return replace(finding, accepted=True)
        return replace(finding, accepted=baseline.growing)

    about = judge([marked(f, "") for f in findings], strict=strict)
    of_engines = {engine: judge([marked(f, engine) for f in several], strict=strict)
                  for engine, several in verdicts.items()}  # fmt: skip
    gone = sorted(key for key, n in baseline.counts.items() if scope.covers(key) and used[key] < n)
    accepted = (found if baseline.growing else used).total()
    barred = tuple(dict.fromkeys(never))
    return Held(scope, about, of_engines, accepted, used, found, barred, baseline.file, tuple(gone))


def gone(held: Sequence[Held]) -> list[Key]:
    """Entries that no longer occur in any of several drafters that were looked at: one of `*` may, in another one."""
    keys = {key for h in held for key in h.gone}
    return sorted(k for k in keys if all(k in h.gone for h in held if h.scope.covers(k)))


def drafter_name(given: str, file: Path) -> str:
    """A drafter as entries name it: its path from the folder of the file, or what was given where there is no such
    path (a repository of the Hub)."""
    path = Path(given)
    if not path.exists():
        return given
    return _relative(path.parent if path.name == "config.json" else path, file)


def place(where: str, folder: Path, file: Path) -> str:
    """Where a finding is, whatever lies around it: files of the drafter from its folder, others from the baseline's."""
    where = HOW.sub("", where)
    path = Path(where)
    with suppress(ValueError):
        return path.relative_to(folder).as_posix() if where else where
    return _relative(path, file) if path.is_absolute() and path.exists() else where


def _relative(path: Path, file: Path) -> str:
    try:
        return Path(os.path.relpath(real(path), real(file).parent)).as_posix()
    except ValueError:  # another drive
        return real(path).as_posix()


# --- the file -----------------------------------------------------------------------------------------------------


def growing_baseline(file: Path) -> Baseline:
    """The one to be written to `file`, with what that holds, if it is there. Raises UsageError, as read_baseline."""
    if not file.exists():
        return Baseline(file, growing=True)
    return replace(read_baseline(file, "--write-baseline"), growing=True)


def read_baseline(file: Path, option: str = "--baseline") -> Baseline:
    """Raises UsageError: unreadable, no JSON, against schemas/baseline.schema.json, or what nobody may accept."""
    from converter.rules.schema import check

    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_BYTES)
        document = parse(text)
    except OSError as problem:
        write = f" (--write-baseline {file} makes one)" if isinstance(problem, FileNotFoundError) else ""
        raise UsageError(f"{option} {file}: {problem.strerror}{write}") from problem
    except ValueError as problem:
        raise UsageError(
            f"{option} {file}: this is no JSON ({problem}); expected a file that --write-baseline wrote"
        ) from problem
    faults = check(document, "baseline")
    if not faults:
        faults = [fault for i, row in enumerate(document["accepted"]) for fault in _faults(i, row)]
    if faults:
        raise UsageError(f"{option} {file}: " + "; ".join(faults[:5]))
    counts, reasons = Counter[Key](), {}
    for row in document["accepted"]:
        key = Key(row["drafter"], row["code"], row["engine"], row["where"])
        counts[key] += row["count"]
        if row.get("reason"):
            reasons[key] = row["reason"]
    return Baseline(file, counts, reasons)


def _faults(index: int, row: Mapping[str, Any]) -> Iterable[str]:
    code = row["code"]
    if code not in loading.load("", "findings")["findings"]:
        yield f"accepted[{index}].code: found {code}, expected a code that eagle3 explain knows"
    elif not acceptable(code):
        yield f"accepted[{index}].code: found {code}, which can never be accepted: nothing right could be written"


def renewed(old: Baseline, held: Iterable[Held]) -> Baseline:
    """What the runs found, and of the old entries those that they could not have seen."""
    held = list({h.scope.drafter: h for h in held}.values())  # one that was given twice counts once
    found = sum((h.found for h in held), Counter[Key]())
    kept = {key: n for key, n in old.counts.items() if not any(h.scope.covers(key) for h in held)}
    for key, n in old.counts.items():
        if key.drafter == ANY and key not in kept and any(h.used[key] for h in held):
            kept[key] = n
            for h in held:
                found[replace(key, drafter=h.scope.drafter)] -= h.used[key]
    return Baseline(old.file, {**kept, **{k: n for k, n in found.items() if n > 0}}, old.reasons)


def write_baseline(baseline: Baseline) -> None:
    """Write the file whole or not at all. Raises OutputError."""
    titles = loading.load("", "findings")["findings"]
    rows = []
    for key, count in sorted(baseline.counts.items()):
        row = {"drafter": key.drafter, "code": key.code, "title": titles[key.code]["title"], "engine": key.engine,
               "where": key.where, "count": count}  # fmt: skip
        reason = baseline.reasons.get(key)
        rows.append({**row, "reason": reason} if reason else row)
    write_output(baseline.file, dumped({"schema": SCHEMA, "accepted": rows}))

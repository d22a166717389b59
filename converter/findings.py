"""Findings: coded observations about a drafter.

A finding says where something is, what was found, what was expected, why it matters and what to do.
The code is a letter and three digits and never changes its meaning; the general text behind a code
(`eagle3 explain CODE`) is in `mappings/findings.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
Level = Literal["none", "agreement", "sample", "anchored", "measured"]  # how far a drafter is proved, in this order
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True)
class Finding:
    """One observation.

    code       letter and three digits, e.g. "K103"
    severity   "error" stops a conversion; "warning" and "note" do not
    message    one sentence: what is wrong
    where      file, tensor or config key
    found, expected, why   evidence and consequence; empty where they add nothing
    fix        what to type or do, one line each, best first
    caused_by  the code of the finding that this one follows from, if any
    allowed    true where the user let it through with --allow
    accepted   true where a baseline holds it: told, but not counted; what it says of an engine stands
    """

    code: str
    severity: Severity
    message: str
    where: str = ""
    found: str = ""
    expected: str = ""
    why: str = ""
    fix: tuple[str, ...] = ()
    caused_by: str = ""
    allowed: bool = False
    accepted: bool = False

    def as_json(self) -> dict[str, Any]:
        """The published form (schemas/finding.schema.json)."""
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "where": self.where,
            "found": self.found,
            "expected": self.expected,
            "why": self.why,
            "fix": list(self.fix),
            "caused_by": self.caused_by,
            "allowed": self.allowed,
            "accepted": self.accepted,
        }


# Commands that fixes suggest, in words for what only a run knows: `Report.judged` puts in what the user gave.
CONVERT = "eagle3-convert IN OUT"
SEARCH = "eagle3-validate IN --sample SAMPLE --find-wiring"
CAPTURE = "eagle3 sample --target TARGET -o SAMPLE.safetensors"

_NAMED = 4
_QUOTED = 120  # characters of a value in a finding


def some_of(names: Sequence[str]) -> str:
    """The first of several names: `a, b, c, d, ...`."""
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def quoted(value: Any) -> str:
    """A value out of a file as Python writes it, of a long one the beginning: `'x'`, `[1, 2, 3...`."""
    text = repr(value)
    return text if len(text) <= _QUOTED else text[: _QUOTED - 3] + "..."


def error(code: str, message: str, **rest: Any) -> Finding:
    return Finding(code, "error", message, **rest)


def warning(code: str, message: str, **rest: Any) -> Finding:
    return Finding(code, "warning", message, **rest)


def note(code: str, message: str, **rest: Any) -> Finding:
    return Finding(code, "note", message, **rest)


def judge(findings: Iterable[Finding], allow: Iterable[str] = (), strict: bool = False) -> list[Finding]:
    """Apply --allow and --strict, most severe first, then by code; equal findings are kept once.

    A finding is allowed when its own code or the code it follows from (`caused_by`) is; --strict makes
    warnings errors, but for accepted ones.
    """
    allowed = set(allow)
    judged: dict[Finding, None] = {}
    for finding in findings:
        if strict and finding.severity == "warning" and not finding.accepted:
            finding = replace(finding, severity="error")
        if finding.code in allowed or finding.caused_by in allowed:
            finding = replace(finding, allowed=True)
        judged[finding] = None
    return sorted(judged, key=lambda f: (f.allowed or f.accepted, SEVERITIES.index(f.severity), f.code))


def stops(findings: Iterable[Finding]) -> bool:
    """True where at least one error was not allowed."""
    return any(f.severity == "error" and not f.allowed for f in findings)


def counts(finding: Finding) -> bool:
    """True of an error that neither --allow nor a baseline takes off."""
    return finding.severity == "error" and not finding.allowed and not finding.accepted

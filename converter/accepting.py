"""Validate, and hold what was found against a baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

from converter.baseline import Baseline, Held, Scope, drafter_name, hold
from converter.findings import counts, stops
from converter.pipeline import validate
from converter.run import Report, Request


def validate_against(baseline: Baseline | None, request: Request, told: Callable[[str], None]) -> Report:
    """Validate; what the baseline accepts is marked and not counted, and the outcome is the one that the rest gives.

    --strict would end the look at a warning that the baseline accepts, so it comes after it.
    """
    if baseline is None:
        return validate(request, told)
    return _hold(validate(replace(request, strict=False), told), baseline, request.strict)


def _hold(report: Report, baseline: Baseline, strict: bool) -> Report:
    folder = report.source.folder if report.source is not None else baseline.file.parent
    name = drafter_name(report.request.source, baseline.file)
    scope = Scope(name, folder, frozenset(report.verdicts), report.proof is not None)
    held = hold(baseline, scope, report.findings, report.verdicts, strict)
    return replace(
        report,
        request=replace(report.request, strict=strict),
        findings=held.findings,
        verdicts=held.verdicts,
        outcome="refused" if _refuses(held) else "validated",
        held=held,
    )


def _refuses(held: Held) -> bool:
    """An error of the drafter that counts; or where no engine can serve it, one that counts of any of them."""
    if any(map(counts, held.findings)) or not held.verdicts:
        return True
    new = any(map(counts, chain.from_iterable(held.verdicts.values())))
    return new and all(map(stops, held.verdicts.values()))

"""What `--report FILE` writes, by the suffix of FILE."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from converter.errors import Eagle3Error
from converter.pipeline import Report
from converter.report import document, junit, sarif


def _json(found: object) -> str:
    return json.dumps(found, indent=2) + "\n"


# Suffix -> the whole text of a report of `convert` or `validate`.
WRITERS: Mapping[str, Callable[[Report], str]] = {
    ".json": lambda report: _json(document.as_json(report)),
    ".sarif": lambda report: _json(sarif.as_sarif(report)),
    ".xml": junit.as_junit,
}

# Suffix -> what is written where the command ended before there was a report; of the others nothing is.
FAILURES: Mapping[str, Callable[[Eagle3Error], str]] = {
    ".json": lambda problem: _json(document.error_json(problem)),
    ".sarif": lambda problem: _json(sarif.failure(problem)),
    ".xml": junit.failure,
}

"""The forms that a report is written in, by the suffix of the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from converter.checkpoint.jsonfile import dumped
from converter.errors import Eagle3Error
from converter.report import document, junit, sarif, several
from converter.report.reading import Document
from converter.report.several import Several
from converter.run import Report


def _html(found: Document) -> str:
    from converter.report.html.page import page
    from converter.report.html.several import page_of_several

    return page_of_several(found) if several.is_several(found) else page(found)


def _markdown(found: Document) -> str:
    from converter.report.markdown import markdown, markdown_of_several

    return markdown_of_several(found) if several.is_several(found) else markdown(found)


# Suffix -> the text of a report document (schemas/report.schema.json), of one of several drafters
# (schemas/reports.schema.json) or of an error (schemas/error.schema.json).
LAYOUTS: Mapping[str, Callable[[Document], str]] = {".json": dumped, ".html": _html, ".md": _markdown}


def _of_report(lay: Callable[[Document], str]) -> Callable[[Report], str]:
    return lambda report: lay(document.as_json(report))


def _of_error(lay: Callable[[Document], str]) -> Callable[[Eagle3Error], str]:
    return lambda problem: lay(document.error_json(problem))


# Suffix -> the text of a report of `convert` or `validate`.
WRITERS: Mapping[str, Callable[[Report], str]] = {
    **{suffix: _of_report(lay) for suffix, lay in LAYOUTS.items()},
    ".sarif": lambda report: dumped(sarif.as_sarif(report)),
    ".xml": junit.as_junit,
}


def _of_several(lay: Callable[[Document], str]) -> Callable[[Several], str]:
    return lambda found: lay(found.as_json())


# Suffix -> the text of a report of `validate` with several drafters.
SEVERAL: Mapping[str, Callable[[Several], str]] = {
    **{suffix: _of_several(lay) for suffix, lay in LAYOUTS.items()},
    ".sarif": lambda found: dumped(several.as_sarif(found)),
    ".xml": several.as_junit,
}

# Suffix -> what is written where the command ended before there was a report.
FAILURES: Mapping[str, Callable[[Eagle3Error], str]] = {
    **{suffix: _of_error(lay) for suffix, lay in LAYOUTS.items()},
    ".sarif": lambda problem: dumped(sarif.failure(problem)),
    ".xml": junit.failure,
}

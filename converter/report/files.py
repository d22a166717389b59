"""The forms that a report document is written in, by the suffix of the file. Each takes the document and gives text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Document = Mapping[str, Any]


def _json(document: Document) -> str:
    return json.dumps(document, indent=2) + "\n"


def _html(document: Document) -> str:
    from converter.report.html.page import page

    return page(document)


def _markdown(document: Document) -> str:
    from converter.report.markdown import markdown

    return markdown(document)


WRITERS: Mapping[str, Callable[[Document], str]] = {".json": _json, ".html": _html, ".md": _markdown}

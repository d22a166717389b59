"""`eagle3 report`: a JSON report of any release as a page or as Markdown."""

from __future__ import annotations

from pathlib import Path

import click

from converter.cli.common import CONTEXT, fail, run_work


@click.command("report", context_settings=CONTEXT, short_help="Lay out a JSON report as a page or Markdown.")
@click.argument("file", metavar="FILE.json", type=click.Path(path_type=Path))
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="What to write: .html (one page, for people) or .md.")  # fmt: skip
def report_command(file: Path, out: Path) -> None:
    """Lay out a JSON report (of --report or --json), of one drafter or of several, as a page or as Markdown."""
    from converter.checkpoint.jsonfile import read_object
    from converter.checkpoint.paths import real
    from converter.checkpoint.whole import write_output
    from converter.report.files import LAYOUTS
    from converter.report.several import SCHEMA
    from converter.rules.schema import check

    if out.suffix not in LAYOUTS:
        fail(2, f"-o {out}: reports are written as {', '.join(LAYOUTS)}")
    if real(out) == real(file):
        fail(2, f"-o {out}: this file is what is read")

    def work() -> None:
        document = read_object(file, pipe=True)
        wrong = check(document, "reports" if document.get("schema") == SCHEMA else "report")
        if wrong:
            fail(3, f"{file} is no report of eagle3-convert: {wrong[0]}")
        try:
            text = LAYOUTS[out.suffix](document)
        except (LookupError, TypeError, ValueError, ArithmeticError):
            fail(3, f"{file} is no report of eagle3-convert: its parts do not fit each other")
        write_output(out, text)

    run_work(work)

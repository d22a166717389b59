"""`eagle3 card`; the card itself is made in converter/publish/card.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from converter.cli.common import CONTEXT, VERSION, reader_may_leave, run_work
from converter.report.words import clean

if TYPE_CHECKING:
    from converter.findings import Finding

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("card", context_settings=CONTEXT, short_help="Make the model card of a sealed drafter.")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--repo", default="", metavar="ORG/NAME", help="The repository on the Hub that it is for.")
@click.option("-o", "--out", type=_FILE, metavar="FILE", help="Write it there; it may be FOLDER/README.md.")
@VERSION
def card_command(folder: Path, repo: str, out: Path | None) -> None:
    """Print the model card (README.md) of the sealed drafter in FOLDER: what it is, how it is launched, what was
    measured and where it came from. FOLDER/README.md is kept, but for the sections between this tool's markers, which
    are renewed.
    """

    def work() -> tuple[str, list[Finding]]:
        from converter.checkpoint.whole import write_output
        from converter.publish.card import card_of_folder

        card, found = card_of_folder(folder, repo)
        if card and out is not None:
            write_output(out, card)
        return card, found

    card, found = run_work(work)
    if found:
        from converter.report.text import Printer

        with reader_may_leave():
            Printer(sys.stderr).findings(found)
        sys.exit(1)
    with reader_may_leave():
        if out is not None:
            click.echo(clean(f"wrote {out}"), err=True)
        else:
            sys.stdout.buffer.write(card.encode())
            sys.stdout.buffer.flush()

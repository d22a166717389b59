"""`eagle3 card`; the card itself is made in converter/publish/card.py."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from converter.cli.common import CONTEXT, VERSION, fail, reader_may_leave
from converter.signals import interruptible

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
    from converter.errors import Eagle3Error, OutputError
    from converter.report.text import Printer

    try:
        with interruptible():
            from converter.checkpoint.jsonfile import reading
            from converter.publish.card import card_of_folder

            with reading(folder):
                card, found = card_of_folder(folder, repo)
            if card and out is not None:
                from converter.checkpoint.whole import write_whole

                try:
                    write_whole(out, card)
                except OSError as problem:
                    raise OutputError(f"cannot write {out}: {problem.strerror or problem}") from problem
    except Eagle3Error as problem:
        with reader_may_leave():
            Printer(sys.stderr).failed(problem)
        sys.exit(problem.exit_code)
    except KeyboardInterrupt:
        fail(130, "interrupted")
    if found:
        with reader_may_leave():
            Printer(sys.stderr).findings(found)
        sys.exit(1)
    if out is None:
        with reader_may_leave():
            sys.stdout.buffer.write(card.encode())
            sys.stdout.buffer.flush()

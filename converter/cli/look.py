"""`eagle3 inspect` and `eagle3 diff`; what they do is in converter/look/."""

from __future__ import annotations

import sys
from typing import Any

import click

from converter.cli.common import CONTEXT, VERSION, reader_may_leave, run_work, say_json
from converter.cli.options import with_options

_shared = with_options("target", "target-arch", "mapping", "json", "verbose")


@click.command("inspect", context_settings=CONTEXT, short_help="Tell what a drafter is.")
@click.argument("source", metavar="DRAFTER")
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="NAME[==RELEASE]",
    help="Whose view of the folder is shown. [default: the newest of every engine]",
)
@click.option("--dialect", default="", metavar="NAME", help="Read it as this dialect, whatever it looks like.")
@_shared
@VERSION
def inspect_command(
    source: str, engines: tuple[str, ...], dialect: str, as_json: bool, verbose: bool, **rest: Any
) -> None:
    """Tell on one screen what the drafter DRAFTER is: who wrote it, its wiring, its parts and their cost, and what each
    engine would make of the folder as it is. Nothing is run or converted, and nothing is too broken to look at that can
    be opened.
    """

    def work() -> Any:
        from converter.look.inspect import inspect
        from converter.look.subject import Asked

        return inspect(source, Asked(engines, rest["target"], rest["target_arch"], dialect))

    found = run_work(work, rest["mappings"], as_json)
    from converter.report.inspect_text import InspectPrinter
    from converter.report.inspected import as_json as document

    if as_json:
        say_json(document(found))
    else:
        with reader_may_leave():
            InspectPrinter(sys.stdout, verbose).inspected(found)


@click.command("diff", context_settings=CONTEXT, short_help="Tell what differs between two drafters.")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@_shared
@VERSION
def diff_command(a: str, b: str, as_json: bool, verbose: bool, **rest: Any) -> None:
    """Tell what differs between the drafters A and B: wiring first, then the rest of the spec, the tensors by their
    canonical names, and config keys. They may be of different trainers, or outputs of this tool, which are read as
    their engine reads them. Exit code 0: the same drafter; 1: they differ.
    """

    def work() -> Any:
        from converter.look.diff import diff
        from converter.look.subject import Asked

        return diff(a, b, Asked(target=rest["target"], target_arch=rest["target_arch"]))

    found = run_work(work, rest["mappings"], as_json)
    from converter.report.differing import DiffPrinter
    from converter.report.differing import as_json as document

    if as_json:
        say_json(document(found))
    else:
        with reader_may_leave():
            DiffPrinter(sys.stdout, verbose).differing(found)
    sys.exit(0 if found.same else 1)

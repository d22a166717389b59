"""`eagle3 engines check`: an engine's package against the rules, without importing it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from converter.cli.common import CONTEXT, reader_may_leave, run_work, say_json
from converter.report.words import clean

if TYPE_CHECKING:
    from converter.upkeep.compare import Comparison
    from converter.upkeep.package import Package
    from converter.upkeep.write import Renewal

_FILE = click.Path(path_type=Path)


@click.command("check", context_settings=CONTEXT, short_help="Hold an engine's package against the rules.")
@click.argument("engine", required=False, metavar="[NAME]")
@click.option("--installed", is_flag=True, help="The package of this Python; NAME where it has more than one engine.")
@click.option(
    "--wheel", type=_FILE, metavar="FILE", help="A wheel, e.g. of pip download --no-deps; its metadata names it."
)
@click.option(
    "--mapping", "mappings", multiple=True, type=_FILE, metavar="FILE", help="Rules of your own to compare with."
)
@click.option("--write", is_flag=True, help="Renew the tables of this checkout with what could be told.")
@click.option("--write-to", type=_FILE, metavar="FILE.yaml", help="The same as a new file for --mapping.")
@click.option("--json", "as_json", is_flag=True, help="Everything that was compared, as JSON on stdout.")
@click.option("-v", "--verbose", is_flag=True, help="Also what is the same.")
def check_command(
    engine: str | None,
    installed: bool,
    wheel: Path | None,
    mappings: tuple[Path, ...],
    write: bool,
    write_to: Path | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Read a SGLang or vLLM package, never importing it, and say where it differs from the rules.

    Exit code: 0 no difference, 1 differences, 2 usage, 3 unreadable file.
    """
    from converter.report.upkeep import comparison_json, comparison_text, renewal_text
    from converter.upkeep import write as writing

    def work() -> tuple[Comparison, Path | None, writing.Renewal | None]:
        from converter.upkeep.compare import compare, nearest_known, written_architectures
        from converter.upkeep.readers import READERS
        from converter.upkeep.reading import read_package

        package = _package(engine, installed, wheel)
        folder = writing.checkout() if write else None
        against = nearest_known(package.name, package.release)
        reading = read_package(READERS[package.name], package, written_architectures(package.name, against))
        found = compare(package.name, against, reading)
        return found, folder, writing.renewal(found) if write or write_to else None

    found, folder, renewed = run_work(work, mappings, as_json)
    if as_json:
        say_json(comparison_json(found))
    else:
        with reader_may_leave():
            click.echo(clean(comparison_text(found, verbose)))
    if renewed is None:
        sys.exit(1 if found.different else 0)
    written = run_work(lambda: _written(renewed, folder, write_to))
    with reader_may_leave():
        click.echo(clean("\n" + renewal_text(renewed, written)), err=as_json)
    sys.exit(1 if renewed.left else 0)


def _written(renewed: Renewal, folder: Path | None, file: Path | None) -> list[str]:
    """Renew the tables of the checkout `folder`, write `file`, or both; says what was written."""
    from converter.upkeep.write import write_checkout, write_mapping

    written = [str(p) for p in write_checkout(renewed, folder)] if folder is not None else []
    if file is not None and (renewed.rows or renewed.ends or renewed.known):
        write_mapping(renewed, file)
        written.append(str(file))
    return written


def _package(engine: str | None, installed: bool, wheel: Path | None) -> Package:
    from converter.errors import UsageError
    from converter.upkeep.package import is_installed, open_installed, open_wheel
    from converter.upkeep.readers import READERS

    readable = ", ".join(READERS)
    if engine is not None and engine not in READERS:
        raise UsageError(f"{engine}: no reader for its package; there is one for {readable}")
    if installed == (wheel is not None):
        raise UsageError("give one of --installed and --wheel FILE")
    if wheel is not None:
        package = open_wheel(wheel)
        if package.name not in READERS or (engine or package.name) != package.name:
            raise UsageError(f"--wheel {wheel}: found {package.name} {package.release}, expected {engine or readable}")
        return package
    names = [engine] if engine else [name for name in READERS if is_installed(name)]
    if len(names) != 1:
        raise UsageError(
            f"--installed: this Python has {' and '.join(names) or 'none of ' + readable}; name one that it has"
        )
    return open_installed(names[0])

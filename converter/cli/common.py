"""What all commands have in common."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from converter.report.words import clean
from converter.signals import interruptible
from converter.version import __version__

if TYPE_CHECKING:
    from converter.errors import Eagle3Error
    from converter.report.text import Printer

_T = TypeVar("_T")
CONTEXT = {"help_option_names": ["-h", "--help"]}
VERSION = click.version_option(__version__, prog_name="eagle3-convert")


def open_streams() -> None:
    """Streams that were closed by who started this (`>&-`, a service) take what is said, to nowhere."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115


def fail(code: int, message: str) -> NoReturn:
    """End the command with one line on stderr and an exit code."""
    try:
        click.echo(f"error  {clean(message)}", err=True)
    except OSError:  # then the exit code alone says it
        _give_up()
    sys.exit(code)


def run_work(work: Callable[[], _T], mappings: tuple[Path, ...] = (), as_json: bool = False) -> _T:
    """The result of `work`; ends the command with text, the error document and the exit code where there is none."""
    from converter.checkpoint.jsonfile import reading
    from converter.errors import Eagle3Error

    try:
        with interruptible(), reading(Path()):
            if mappings:
                from converter.rules import loading

                for path in mappings:
                    loading.add(path)
            return work()
    except Eagle3Error as problem:
        say_failure(problem, as_json)
        sys.exit(problem.exit_code)
    except KeyboardInterrupt:
        fail(130, "interrupted")


def failure_of(problem: Eagle3Error | OSError, state: str = "") -> Eagle3Error:
    """What is told of an error that nobody was nearer to: of the system it is one of output, disk or network. `state`:
    what is said behind that.
    """
    from converter.errors import OutputError

    if isinstance(problem, OSError):
        return OutputError(f"{problem.filename or 'the system'}: {problem.strerror or problem}{state}")
    return problem


def say_failure(problem: Eagle3Error, as_json: bool = False, printer: Printer | None = None) -> None:
    """Text on stderr, and the error document on stdout."""
    from converter.report import text

    if as_json:
        from converter.report.document import error_json

        say_json(error_json(problem))
    with reader_may_leave():
        (printer or text.Printer(sys.stderr)).failed(problem)


def say_json(document: Any) -> None:
    """The document on stdout, as any strict parser reads it."""
    from converter.checkpoint.jsonfile import dumped

    with reader_may_leave():
        click.echo(dumped(document), nl=False)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """A reader that closes the pipe early (`| head`) is no error: the verdict is in the exit code. What cannot be
    written for another reason (a full disk) ends the command with 4.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up()
    except OSError as problem:
        _give_up()
        fail(4, f"cannot write what there is to say: {problem.strerror}")


def _give_up() -> None:
    """What a stream did not take goes nowhere; the end of the process would try again, and change its exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

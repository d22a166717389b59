"""What all commands have in common."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from converter.version import __version__

CONTEXT = {"help_option_names": ["-h", "--help"]}
VERSION = click.version_option(__version__, prog_name="eagle3-convert")


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that the staging folder is removed."""

    def stop(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def fail(code: int, message: str) -> NoReturn:
    click.echo(f"error  {message}", err=True)
    sys.exit(code)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """A reader that closes the pipe early (`| head`) is no error: the verdict is in the exit code."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

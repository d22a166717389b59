"""Signals that end the command: they unwind it as Ctrl-C does, and wait while something is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

# Ctrl-C, `kill`, and a terminal that was closed.
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt as SIGINT does, so that the staging folder is removed. What is ignored
    (`nohup`) stays so. One that comes while a lock of `threading` changes hands ends in that lock's RuntimeError. Here
    that is KeyboardInterrupt again, whatever it was taken for in between.
    """

    def stop(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    before = {n: h for n in ENDING if (h := signal.getsignal(n)) in (signal.SIG_DFL, signal.default_int_handler)}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    except Exception as problem:
        if _broke_a_lock(problem):
            raise KeyboardInterrupt from problem
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _broke_a_lock(problem: BaseException | None) -> bool:
    """Whether it was told because of a RuntimeError that an interrupt ended in."""
    seen: list[BaseException] = []
    while problem is not None and problem not in seen:  # `raise e.__cause__ from e` makes a circle
        if isinstance(problem, RuntimeError) and isinstance(problem.__context__, KeyboardInterrupt):
            return True
        seen.append(problem)
        problem = problem.__cause__
    return False


@contextmanager
def unbroken() -> Iterator[None]:
    """A signal that comes inside is answered at the end of the block: for steps that are short and belong together."""
    if threading.current_thread() is not threading.main_thread():  # others are never interrupted
        yield
        return
    came: list[int] = []
    before = {n: h for n in ENDING if callable(h := signal.getsignal(n))}
    try:
        for number in before:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])

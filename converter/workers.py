"""Several independent pieces of work at once, each in a process of its own.

Static checks are Python at work, which one interpreter does one at a time; so threads would not use a second core.
Processes are forked: what the parent has imported and read (rules of the user's own, too) is there in every worker,
and it starts no thread that could be cut off. Where forking is not safe, everywhere but on Linux, one follows another.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from converter.signals import ENDING

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_FORKS = sys.platform == "linux"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(
    work: Callable[[_In], _Out],
    items: Sequence[_In],
    jobs: int,
    lost: Callable[[_In, int], _Out],
    began: Callable[[int], None] = lambda index: None,
    ended: Callable[[int], None] = lambda index: None,
) -> list[_Out]:
    """`work` of every item, in their order, by at most `jobs` processes; with one job, in this one.

    Items and results must be picklable. Where a worker ends on its own (killed for its memory, a crash), `lost`
    gives the result from the item and the exit code, negative for a signal; the others go on. An exception here,
    Ctrl-C too, ends the workers at once. `began` and `ended` hear the indexes of items.
    """
    if jobs <= 1 or len(items) <= 1 or not _FORKS:
        results = []
        for index, item in enumerate(items):
            began(index)
            results.append(work(item))
            ended(index)
        return results
    return _Pool(work, items, lost, began, ended).run(min(jobs, len(items)))


class _Pool(Generic[_In, _Out]):
    def __init__(
        self,
        work: Callable[[_In], _Out],
        items: Sequence[_In],
        lost: Callable[[_In, int], _Out],
        began: Callable[[int], None],
        ended: Callable[[int], None],
    ) -> None:
        import multiprocessing

        self._work, self._items, self._lost, self._began, self._ended = work, items, lost, began, ended
        self._context: Any = multiprocessing.get_context("fork")
        self._workers: dict[Connection, tuple[BaseProcess, int]] = {}  # and the item that it has
        self._waiting = list(range(len(items)))[::-1]
        self._results: dict[int, _Out] = {}

    def run(self, jobs: int) -> list[_Out]:
        from multiprocessing.connection import Connection, wait

        try:
            for _ in range(jobs):
                self._start()
            while self._workers:
                for line in wait(list(self._workers)):
                    assert isinstance(line, Connection)
                    self._hear(line)
        finally:
            for process, _ in self._workers.values():
                process.kill()  # it only reads, so nothing is left half done
            for line, (process, _) in self._workers.items():
                process.join()
                line.close()
        return [self._results[index] for index in range(len(self._items))]

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(self._work, theirs), daemon=True)
        with _no_signals():  # until it is known here, and answers them in its own way there
            process.start()
            index = self._waiting.pop()
            self._workers[ours] = process, index
        theirs.close()
        self._give(ours, index)

    def _give(self, line: Connection, index: int) -> None:
        self._began(index)
        with suppress(BrokenPipeError):  # it ended already, which is heard where its answer is
            line.send((self._items[index],))

    def _hear(self, line: Connection) -> None:
        process, index = self._workers.pop(line)
        try:
            self._results[index] = line.recv()
        except (EOFError, ConnectionResetError):
            process.join()
            self._results[index] = self._lost(self._items[index], process.exitcode or 0)
        self._ended(index)
        if self._waiting and process.is_alive():
            index = self._waiting.pop()
            self._workers[line] = process, index
            self._give(line, index)
            return
        with suppress(BrokenPipeError):
            line.send(())  # hanging up would not do: workers forked later hold this end as well
        line.close()
        process.join()
        if self._waiting:
            self._start()


@contextmanager
def _no_signals() -> Iterator[None]:
    """Signals that end the command wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(work: Callable[[_In], _Out], line: Connection) -> None:
    """A worker: items in, results out, until there are no more. Ctrl-C is the parent's to answer; what else the parent
    unwinds at ends a worker at once.
    """
    for number in ENDING:
        if callable(signal.getsignal(number)):  # what is ignored (`nohup`) stays so
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    while True:
        try:
            given = line.recv()
        except EOFError:  # the parent is gone
            return
        if not given:
            return
        line.send(work(given[0]))

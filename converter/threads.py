"""Work for a few threads, whose results a signal may interrupt the wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast

from converter.signals import unbroken

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def in_threads(work: Callable[[_In], _Out], items: Sequence[_In], threads: int, name: str) -> Iterator[_Out]:
    """`work` of each item, in their order; what it raises is raised here. What has not begun is given up with the
    iterator.

    Results come through a SimpleQueue: an interrupt while a Future is waited for could leave its lock held for ever.
    """
    from concurrent.futures import ThreadPoolExecutor
    from queue import SimpleQueue

    results: SimpleQueue[tuple[int, _Out | None, BaseException | None]] = SimpleQueue()

    def run(index: int) -> None:
        try:
            results.put((index, work(items[index]), None))
        except BaseException as problem:
            results.put((index, None, problem))

    pool = ThreadPoolExecutor(threads, name)
    try:
        with unbroken():
            for index in range(len(items)):
                pool.submit(run, index)
        early: dict[int, tuple[_Out | None, BaseException | None]] = {}
        for wanted in range(len(items)):
            while wanted not in early:
                index, done, problem = results.get()
                early[index] = done, problem
            done, problem = early.pop(wanted)
            if problem is not None:
                raise problem
            yield cast(_Out, done)
    finally:
        pool.shutdown(cancel_futures=True)

"""The Hub asked again where that may help: as late as it says, and not for long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from converter.hub.refusals import transport_errors

_T = TypeVar("_T")

_TRIES = 3
_LONGEST_WAIT = 30  # seconds that a busy Hub may ask for


def patiently(ask: Callable[[], _T], passes: Callable[[BaseException], bool]) -> _T:
    """What `ask` returns, after three attempts at most; `passes` says of an error of the client's whether the same may
    succeed a little later. Raises what the last attempt does.
    """
    for attempt in range(_TRIES - 1):
        try:
            return ask()
        except transport_errors() as problem:
            if not passes(problem):
                raise
            answer = getattr(problem, "response", None)
            asked = answer.headers.get("Retry-After", "") if answer is not None else ""
        time.sleep(min(int(asked), _LONGEST_WAIT) if asked.isdecimal() else 2**attempt)
    return ask()

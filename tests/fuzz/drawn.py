"""One target with examples that hypothesis draws: `python -m tests.fuzz.drawn TARGET EXAMPLES`."""

from __future__ import annotations

import importlib
import resource
import sys
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.guard import watched

_MOST_MEMORY = 512  # MB that a target may need beyond what is there before the first example: torch alone is some 300


def run(target: Any, examples: int, derandomize: bool = False) -> int:
    """How many were run. Raises what the target raises, of the smallest example that hypothesis finds."""
    folders = target.folders()
    count = 0

    @settings(
        max_examples=examples, deadline=timedelta(seconds=5), database=None, derandomize=derandomize,
        phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(target.EXAMPLES)
    def each(data: bytes) -> None:
        nonlocal count
        count += 1
        with watched(*folders):
            target.one(data)

    each()
    return count


def _megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    module = importlib.import_module(f"tests.fuzz.{sys.argv[1]}")
    run(module, 20, derandomize=True)  # late imports
    before = _megabytes()
    done = run(module, int(sys.argv[2]))
    assert _megabytes() - before < _MOST_MEMORY, f"{_megabytes() - before} MB"
    print(done, _megabytes())

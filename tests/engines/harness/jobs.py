"""Runs the jobs of a file one after the other, each in a process of its own.

An engine takes seconds to import and keeps global state (its process groups, its server
arguments), so a script imports it once and forks for every job.

The file of jobs is a JSON list of objects, each with a `name`; the results are written as one JSON
object, from name to result.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Result = dict[str, Any]
#: Fills in the result as it goes, so that what was found before a failure is kept.
Work = Callable[[Job, Result], None]


def main(work: Work, description: str) -> None:
    """Read the jobs named on the command line, do them and write their results."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", help="JSON list of jobs, - for standard input")
    parser.add_argument("results", help="where to write the results as JSON, - to print them")
    arguments = parser.parse_args()

    gc.freeze()  # what was imported: no job has to look through it again
    text = sys.stdin.read() if arguments.jobs == "-" else Path(arguments.jobs).read_text()
    results = {job["name"]: _in_a_fork(work, job) for job in json.loads(text)}
    output = json.dumps(results, indent=1)
    if arguments.results == "-":
        print(output)
    else:
        Path(arguments.results).write_text(output)


def _in_a_fork(work: Work, job: Job) -> Result:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        with os.fdopen(write_end, "w") as pipe:
            json.dump(_caught(work, job), pipe, default=str)
        os._exit(0)  # without the parent's clean-up, which is not this process's to do
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        return {"stage": "process", "error": _error("Died", f"wait status {status}", [])}
    return json.loads(text)


def _caught(work: Work, job: Job) -> Result:
    result: Result = {"stage": "start", "error": None}
    try:
        work(job, result)
        result["stage"] = "done"
    except Exception as failure:
        trace = traceback.format_exc(limit=-4).splitlines()
        result["error"] = _error(type(failure).__name__, str(failure), trace)
    return result


def _error(kind: str, message: str, trace: list[str]) -> dict[str, Any]:
    return {"type": kind, "message": message, "traceback": trace}

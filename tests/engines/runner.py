"""Runs jobs in the engine environment, one process for all the jobs of a release.

    python -m tests.engines.runner sglang==0.5.23 load_sglang.py jobs.json

makes the environment if need be, runs the jobs of a file and prints the results as JSON. What a job
and a result hold is written at the top of each script in `harness/`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support import ROOT

from . import environment

HARNESS = Path(__file__).with_name("harness")
SECONDS_ALLOWED = 600


class HarnessFailure(Exception):
    """A script of the harness did not run to its end; the message holds what it printed."""


def run_jobs(
    engines: environment.EngineEnvironment,
    requirement: str,
    script: str,
    jobs: Sequence[dict[str, Any]],
    plugin: str = "",
) -> dict[str, dict[str, Any]]:
    """Run jobs with one release, such as `sglang==0.5.23`; results by name of job.

    plugin   the package of this repository in which SGLang looks for more model classes
    """
    path, more = engines.pythonpath(requirement), {}
    if plugin:
        path, more = os.pathsep.join([path, str(ROOT)]), {"SGLANG_EXTERNAL_MODEL_PACKAGE": plugin}
    return run_script(engines, path, script, jobs, requirement, more)


def run_script(
    engines: environment.EngineEnvironment,
    path: str,
    script: str,
    jobs: Sequence[dict[str, Any]],
    what: str,
    more: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, dict[str, Any]]:
    """Run jobs with what `path` (a PYTHONPATH) adds to the environment; `what` names it in a failure.

    more   environment variables beside the usual ones
    """
    variables = {**environment.clean_variables(), **more}
    variables["PYTHONPATH"] = path
    variables["PYTHONNOUSERSITE"] = "1"
    with tempfile.TemporaryDirectory(prefix="engine-jobs-") as folder:
        results = Path(folder) / "results.json"
        done = subprocess.run(
            [engines.python, HARNESS / script, "-", results],
            input=json.dumps(jobs),
            env={**variables, "TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_ALLOWED,
        )
        if done.returncode or not results.exists():
            raise HarnessFailure(f"{script} under {what}:\n{done.stdout[-4000:]}")
        return json.loads(results.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", help="such as sglang==0.5.23")
    parser.add_argument("script", help="load_sglang.py, load_vllm.py, capture_sglang.py or capture_vllm.py")
    parser.add_argument("jobs", type=Path, help="JSON list of jobs")
    arguments = parser.parse_args()
    try:
        results = run_jobs(
            environment.ensure(),
            arguments.release,
            arguments.script,
            json.loads(arguments.jobs.read_text()),
        )
    except (environment.EnvironmentFailure, HarnessFailure) as failure:
        sys.exit(str(failure))
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from . import environment, runner

Results = dict[str, dict[str, Any]]


class Engines:
    """The engine environment, with what tests do in it."""

    def __init__(self, engines: environment.EngineEnvironment) -> None:
        self.environment = engines

    def load_with_sglang(self, release: str, jobs: Sequence[dict[str, Any]]) -> Results:
        """Load drafters with SGLang's draft class: see harness/load_sglang.py."""
        return runner.run_jobs(self.environment, f"sglang=={release}", "load_sglang.py", jobs)

    def load_with_plugin(self, release: str, jobs: Sequence[dict[str, Any]]) -> Results:
        """Load drafters with this project's own class in SGLang: see harness/load_sglang.py."""
        return runner.run_jobs(
            self.environment, f"sglang=={release}", "load_sglang.py", jobs, "converter.sglang_plugin"
        )

    def capture_with_sglang(self, release: str, jobs: Sequence[dict[str, Any]]) -> Results:
        """Capture states in SGLang's target classes: see harness/capture_sglang.py."""
        return runner.run_jobs(self.environment, f"sglang=={release}", "capture_sglang.py", jobs)

    def load_with_vllm(self, release: str, jobs: Sequence[dict[str, Any]]) -> Results:
        """Load drafters with vLLM's draft classes: see harness/load_vllm.py."""
        return runner.run_jobs(self.environment, f"vllm=={release}", "load_vllm.py", jobs)

    def capture_with_vllm(self, release: str, jobs: Sequence[dict[str, Any]]) -> Results:
        """Capture states in vLLM's target classes: see harness/capture_vllm.py."""
        return runner.run_jobs(self.environment, f"vllm=={release}", "capture_vllm.py", jobs)

    def load_with_trainer(self, trainer: str, jobs: Sequence[dict[str, Any]]) -> Results:
        """Load drafters with a trainer's own class, such as `speculators==0.9.0`: see harness/load_trainer.py."""
        return runner.run_jobs(self.environment, trainer, "load_trainer.py", jobs)


@pytest.fixture(scope="session")
def engines() -> Engines:
    """The real engines; the first use on a machine builds their environment."""
    return Engines(environment.ensure())

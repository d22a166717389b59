"""Runs commands of eagle3 in a process of its own, in which huggingface_hub has one environment from its first import.

huggingface_hub reads HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE once, when it is imported; a process for each command
would cost seconds of imports. HF_TOKEN is read with every request, so that it may be another for each command.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def text(self) -> str:
        return self.stdout + self.stderr


class Client:
    """A process with its own home; commands are words of the command line behind `eagle3`."""

    def __init__(self, home: Path, **environment: str) -> None:
        theirs = ("HF_", "HUGGING", "HTTP_", "HTTPS_", "ALL_PROXY", "NO_PROXY")
        clean = {k: v for k, v in os.environ.items() if not k.upper().startswith(theirs)}
        clean |= {"HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hub_client"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=clean, cwd=ROOT,
        )  # fmt: skip

    def __call__(self, *words: str | Path, token: str = "", cwd: Path = ROOT) -> Done:
        assert self._process.stdin and self._process.stdout
        return self._ask({"words": [str(w) for w in words], "token": token, "cwd": str(cwd)})

    def api(self, method: str, *arguments: Any, token: str = "", **options: Any) -> Any:
        """What a method of huggingface_hub's HfApi returns, as JSON."""
        done = self._ask({"api": [method, arguments, options], "token": token, "cwd": str(ROOT)})
        assert done.code == 0, done.stderr
        return done.json

    def _ask(self, line: dict[str, Any]) -> Done:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        return Done(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)


def _run(wanted: dict[str, Any]) -> int:
    try:
        if "api" in wanted:
            _api(*wanted["api"])
        else:
            from converter.cli import eagle3

            eagle3(wanted["words"])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return -1
    return 0


def _api(method: str, arguments: list[Any], options: dict[str, Any]) -> None:
    from huggingface_hub import HfApi

    found = getattr(HfApi(), method)(*arguments, **options)
    print(json.dumps(found if isinstance(found, dict) else list(found), default=vars))


def _serve() -> None:
    answers = sys.stdout
    for line in sys.stdin:
        wanted = json.loads(line)
        os.environ.pop("HF_TOKEN", None)
        if wanted["token"]:
            os.environ["HF_TOKEN"] = wanted["token"]
        os.chdir(wanted["cwd"])
        out, err, started = io.StringIO(), io.StringIO(), time.monotonic()
        with redirect_stdout(out), redirect_stderr(err):
            code = _run(wanted)
        seconds = time.monotonic() - started
        answer = {"code": code, "stdout": out.getvalue(), "stderr": err.getvalue(), "seconds": seconds}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()

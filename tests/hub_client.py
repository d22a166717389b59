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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests.hub_handler import Hub

ROOT = Path(__file__).parent.parent
_KEPT = ("token", "stored_tokens")  # of huggingface_hub, in its home


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


def environment_of(home: Path, **more: str) -> dict[str, str]:
    """That of a client with this home: nothing of the Hub and its settings but what is given."""
    theirs = ("HF_", "HUGGING", "HTTP_", "HTTPS_", "ALL_PROXY", "NO_PROXY")
    clean = {k: v for k, v in os.environ.items() if not k.upper().startswith(theirs)}
    return clean | {"HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **more}


class Client:
    """A process with its own home; commands are words of the command line behind `eagle3`. `said` has what all of them
    wrote.
    """

    said: ClassVar[list[str]] = []

    def __init__(self, home: Path, **environment: str) -> None:
        clean = environment_of(home, **environment)
        home.mkdir(parents=True, exist_ok=True)
        self.log = (
            home / "stderr.log"
        )  # of huggingface_hub's own logger, which holds on to the stream that it began with
        self._log = self.log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hub_client"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=clean, cwd=ROOT, stderr=self._log,
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
        done = Done(**json.loads(self._process.stdout.readline()))
        self.said.append(done.text)
        return done

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)
        self._log.close()


@dataclass
class World:
    """The Hub, a client of it, and the home that holds the client's cache."""

    hub: Hub
    client: Client
    home: Path

    def __call__(self, *words: str | Path, **more: Any) -> Done:
        """Runs a command; `hub.asked` then has only what it asked."""
        self.hub.asked.clear()
        return self.client(*words, **more)


def leaks(tokens: Iterable[str], folders: Iterable[Path], said: Iterable[str]) -> list[str]:
    """Where a token stands that should not: in what was said, and in all files but the client's own for it."""
    found = [f"said: {text[:300]}" for text in said if any(token in text for token in tokens)]
    files = [p for folder in folders for p in folder.rglob("*") if p.is_file() and p.name not in _KEPT]
    secrets = [token.encode() for token in tokens]
    return found + [str(p) for p in files if any(secret in p.read_bytes() for secret in secrets)]


@contextmanager
def secret(tokens: Iterable[str], base: Path) -> Iterator[None]:
    """While this lasts, nothing that any client says, and no file below `base`, may have a token in it."""
    before, first = set(base.iterdir()), len(Client.said)
    yield
    after = [folder for folder in base.iterdir() if folder not in before]
    assert after or len(Client.said) == first
    assert leaks(list(tokens), after, Client.said[first:]) == []


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
    from huggingface_hub.utils import logging

    logging.get_logger()  # it holds on to the stream that it began with
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

"""A target named by its id on the Hub: the real client over HTTP against a server on this machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support import DRAFTERS, TARGET

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"/org/target/resolve/main/config.json": (TARGET / "config.json").read_bytes()}
ERRORS = {
    "/org/gated/": ("GatedRepo", 403),
    "/org/private/": ("RepoNotFound", 401),
    "/org/target/": ("EntryNotFound", 404),
}


class Hub(BaseHTTPRequestHandler):
    """Just what the client asks of a repository to get one small file."""

    asked: list[str]

    def answer(self, body: bool) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        data = FILES.get(self.path)
        if data is None:
            kind, status = next((v for k, v in ERRORS.items() if self.path.startswith(k)), ("RepoNotFound", 404))
            if "@" in self.path or "/resolve/nope/" in self.path:
                kind, status = "RevisionNotFound", 404
            self.send_response(status)
            self.send_header("X-Error-Code", kind)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def convert(hub: ThreadingHTTPServer | None, tmp_path: Path, target: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
    environment |= {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    if hub is None:
        environment["HF_HUB_OFFLINE"] = "1"
    else:
        environment["HF_ENDPOINT"] = f"http://127.0.0.1:{hub.server_port}"
    command = [sys.executable, "-m", "converter", "convert", str(DRAFTERS / "a_plain"), str(tmp_path / "out")]
    return subprocess.run(
        [*command, "--target", target], capture_output=True, text=True, env=environment, check=False, timeout=60
    )


def test_a_target_by_its_id(hub: ThreadingHTTPServer, tmp_path: Path) -> None:
    done = convert(hub, tmp_path, "org/target")
    assert done.returncode == 0, done.stderr
    assert "target LlamaForCausalLM, 6 layers" in done.stdout
    assert "--model-path org/target" in done.stdout
    assert set(hub.asked) == set(FILES)  # type: ignore[attr-defined]
    # In the cache now: it works without a network.
    (tmp_path / "out").rename(tmp_path / "first")
    assert convert(None, tmp_path, "org/target").returncode == 0


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("org/missing", "no such repository, or it is private"),
        ("org/private", "no such repository, or it is private"),
        ("org/gated", "must be asked for"),
        ("org/target@nope", "no revision nope"),
    ],
)
def test_what_cannot_be_had(hub: ThreadingHTTPServer, tmp_path: Path, target: str, words: str) -> None:
    done = convert(hub, tmp_path, target)
    assert done.returncode == 3, done.stdout + done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_offline(tmp_path: Path) -> None:
    done = convert(None, tmp_path, "org/target")
    assert done.returncode == 3
    assert "HF_HUB_OFFLINE" in done.stderr

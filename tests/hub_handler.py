"""What a Hub on this machine is, what it was asked, and how a request is answered or refused.

A request is answered by the first row of the server's routes that fits it. `Hub.asked` has all that were made.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub_repository import Repository

# Parts of the patterns of routes.
REPO = r"(?P<repo>[^/]+/[^/]+)"
REVISION = r"(?P<revision>refs/pr/\d+|[^/]+)"


@dataclass
class Asked:
    """A request and its answer: `sent` bytes of body of a file, `received` of the client's; `signed` with a token."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    range: str
    signed: bool
    status: int = 0
    sent: int = 0
    received: int = 0


@dataclass
class Fault:
    """What happens instead, `times` times, to requests whose path has `where` in it and whose Range begins so.

    status 0: the body, sent or (PUT) received, is cut after `after` bytes. With `ranges` false a Range header is passed
    over. do: what happens before the request is carried out; lost: it is carried out, and the answer does not arrive.
    """

    where: str
    status: int = 0
    range: str = ""
    after: int = 0
    retry_after: str = ""
    ranges: bool = True
    times: int = 1
    method: str = "GET"
    words: str = "busy"
    code: str = ""
    do: Callable[[], object] | None = None
    lost: bool = False


@dataclass
class Hub:
    """tokens: token -> user; writing: tokens that may write; members: organisation -> users who may write to it.

    url is the endpoint, `storage` the origin that large files are redirected to and sent to, in `parts` of so many
    bytes where they are longer (0: whole); full: there is no room for more of them.
    """

    folder: Path
    tokens: dict[str, str] = field(default_factory=dict)
    writing: set[str] = field(default_factory=set)
    members: dict[str, set[str]] = field(default_factory=dict)
    parts: int = 0
    full: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    url: str = ""
    storage: str = ""
    page: int = 1000  # entries of a tree that one answer holds

    def create(self, name: str, files: Mapping[str, Path | bytes | None], **access: bool) -> Repository:
        repository = self.repositories[name] = Repository(self.folder / name.replace("/", "--"), name, **access)
        repository.commit(files, "add files")
        return repository

    def fault(self, asked: Asked) -> Fault | None:
        for fault in self.faults:
            fits = fault.where in asked.path and fault.method == asked.method
            if fault.times and fits and asked.range.startswith(fault.range):
                fault.times -= 1
                return fault
        return None

    def downloads(self) -> list[Asked]:
        """Requests that were given bytes of files."""
        return [a for a in self.asked if a.sent and not a.path.startswith("/api/")]


Route = tuple[str, str, Callable[..., None]]


class Server(ThreadingHTTPServer):
    hub: Hub
    routes: tuple[Route, ...]
    daemon_threads = True


class Refused(Exception):
    """An answer of the Hub that is no success, with the code that the client goes by."""

    def __init__(self, status: int, code: str = "", message: str = "", **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        path, hub = unquote(parts.path), self.server.hub
        signed = self.headers.get("Authorization", "")
        asked = self.asked = Asked(
            self.command, path, parse_qs(parts.query), self.headers.get("Range", ""), bool(signed)
        )
        hub.asked.append(asked)
        self.fault = hub.fault(asked)
        self.body = self.received() if self.command == "POST" else b""
        if self.command == "POST" and len(self.body) < int(self.headers.get("Content-Length") or 0):
            self.close_connection = True  # the client is gone
            return
        try:
            if self.fault is not None and self.fault.status:
                self.received()
                wait = {"Retry-After": self.fault.retry_after} if self.fault.retry_after else {}
                raise Refused(self.fault.status, self.fault.code, self.fault.words, **wait)
            if self.fault is not None and self.fault.do is not None:
                self.fault.do()
            for method, pattern, answer in self.server.routes:
                match = re.fullmatch(pattern, parts.path)
                if match is not None and self.command in method.split():
                    answer(self, **{k: unquote(v or "") for k, v in match.groupdict().items()})
                    return
            raise Refused(404, "", "not found")
        except Refused as refused:
            headers = {"X-Error-Code": refused.code, "X-Error-Message": refused.message, **refused.headers}
            self.send_json({"error": refused.message}, refused.status, {k: v for k, v in headers.items() if v})

    do_GET = do_HEAD = do_POST = do_PUT = _handle

    def log_message(self, *_: object) -> None:
        pass

    # What answers are made of

    def received(self, most: int | None = None) -> bytes:
        """What the client sends, or the first bytes of it; nothing more once it was read."""
        length = int(self.headers.get("Content-Length") or 0)
        if self.command not in ("PUT", "POST") or self.asked.received:
            return b""
        data = self.rfile.read(length if most is None else min(most, length))
        self.asked.received = len(data)
        return data

    def cut(self) -> None:
        """End the connection in the midst of what it is at."""
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    @property
    def token(self) -> str:
        return str(self.headers.get("Authorization", "")).removeprefix("Bearer ")

    def user(self) -> str:
        """Who asks; "" for nobody. Raises 401 for a token that is none, whatever is asked for."""
        if not self.token:
            return ""
        user = self.server.hub.tokens.get(self.token)
        if user is None:
            raise Refused(401, "", "Invalid credentials in Authorization header")
        return user

    def repository(self, name: str, contents: bool = False) -> Repository:
        """The repository, if the user may see it, or (`contents`) have its files."""
        user = self.user()
        found = self.server.hub.repositories.get(name)
        if found is None or (found.private and user not in found.readers):
            if user:
                raise Refused(404, "RepoNotFound", "Repository not found")
            raise Refused(401, "RepoNotFound", "Invalid username or password.")
        if contents and found.gated and user not in found.readers:
            words = f"Access to model {name} is restricted."
            raise Refused(403 if user else 401, "GatedRepo", words)
        return found

    def commit_of(self, repository: Repository, revision: str) -> str:
        commit = repository.resolve(revision)
        if commit is None:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def send_json(self, document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(document).encode()
        self.send_start(status, {"Content-Type": "application/json", **(headers or {})}, len(data))
        if self.command != "HEAD" and not self.close_connection:
            self.wfile.write(data)

    def send_start(self, status: int, headers: Mapping[str, str], length: int) -> None:
        self.asked.status = status
        if self.fault is not None and self.fault.lost:
            self.cut()
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def send_file(self, file: Path, headers: Mapping[str, str]) -> None:
        """The file or, where one is asked for, a range of it."""
        size = file.stat().st_size
        first, end, status = 0, size, 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.asked.range)
        if wanted is not None and (self.fault is None or self.fault.ranges):
            first, end = int(wanted[1]), min(int(wanted[2]) + 1 if wanted[2] else size, size)
            if first >= size:
                raise Refused(416, "", "", **{"Content-Range": f"bytes */{size}"})
            status, headers = 206, {**headers, "Content-Range": f"bytes {first}-{end - 1}/{size}"}
        self.send_start(status, {"Accept-Ranges": "bytes", **headers}, end - first)
        if self.command == "HEAD":
            return
        cut = self.fault is not None and not self.fault.status and self.fault.ranges
        with file.open("rb") as data:
            data.seek(first)
            left = min(end - first, self.fault.after) if cut and self.fault is not None else end - first
            try:
                while left and (block := data.read(min(left, 1 << 16))):
                    self.wfile.write(block)
                    self.asked.sent += len(block)
                    left -= len(block)
            except (BrokenPipeError, ConnectionResetError):  # a client that has enough
                self.close_connection = True
        if cut:
            self.wfile.flush()
            self.cut()

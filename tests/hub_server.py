"""A Hugging Face Hub on this machine: what huggingface_hub's own client asks of one, from repositories on disk.

It speaks the API as client releases 0.26 to 2.4 use it. Here is the reading half: information about a repository, its
tree (paged), the files (HEAD and GET, ranges, redirects of large ones to another origin, as the Hub's storage is one),
whoami-v2, and the ways in which the Hub refuses; the writing half is in `tests/hub_writing.py`. Not spoken: Xet, which
clients are told to leave alone (HF_HUB_DISABLE_XET), so that files kept there are untested.

A request is answered by the first row of `ROUTES` that fits it. `Hub.asked` has all that were made.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".pt", ".gguf", ".model")  # what .gitattributes of the Hub gives to LFS
_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n"


# --- repositories on disk -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A file of a commit: where its bytes are, by their SHA-256, and what git calls them."""

    path: str
    sha256: str
    size: int
    large: bool
    oid: str  # the blob's id in git: of an LFS file that of its pointer

    @classmethod
    def of(cls, path: str, data: bytes) -> Entry:
        digest = hashlib.sha256(data).hexdigest()
        return cls.pointer(path, digest, len(data)) if path.endswith(LARGE) else cls(path, digest, len(data), False,
                                                                                     _git_id(data))  # fmt: skip

    @classmethod
    def pointer(cls, path: str, sha256: str, size: int) -> Entry:
        return cls(path, sha256, size, True, _git_id(_POINTER.format(sha256, size).encode()))

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.oid


class Repository:
    """Commits in a folder: `blobs/SHA256`, `commits/ID.json` (path -> blob), `refs.json` (branch or tag -> commit).

    private  seen only by those who may read it; gated: seen by all, its files given to those who may read it
    readers  names of users who may; objects: digests of the large files that were uploaded, committed or not
    """

    def __init__(self, folder: Path, name: str, private: bool = False, gated: bool = False) -> None:
        self.folder, self.name, self.private, self.gated = folder, name, private, gated
        self.readers: set[str] = set()
        self.objects: set[str] = set()
        for part in ("blobs", "commits"):
            (folder / part).mkdir(parents=True)
        self.refs: dict[str, str] = {}
        self.commit({".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")

    def commit(self, files: Mapping[str, Path | bytes | None], message: str = "", branch: str = "main") -> str:
        """Add, replace or (None) remove files; returns the commit's id."""
        entries = {} if branch not in self.refs else self.entries(self.refs[branch])
        for path, given in files.items():
            if given is None:
                entries.pop(path)
                continue
            data = given if isinstance(given, bytes) else given.read_bytes()
            entries[path] = self.keep(path, data)
        return self.record(entries, message, branch, self.refs.get(branch, ""))

    def keep(self, path: str, data: bytes) -> Entry:
        """What a file of a commit will be; its bytes are kept."""
        entry = Entry.of(path, data)
        self.blob(entry.sha256).write_bytes(data)
        if entry.large:
            self.objects.add(entry.sha256)
        return entry

    def record(self, entries: Mapping[str, Entry], message: str, ref: str, parent: str) -> str:
        """A commit of exactly these files, to which `ref` then points."""
        document = {
            "message": message,
            "parent": parent,
            "files": [vars(entry) for entry in sorted(entries.values(), key=lambda e: e.path)],
        }
        text = json.dumps(document).encode()
        commit = _git_id(text)
        (self.folder / "commits" / f"{commit}.json").write_bytes(text)
        self.point(ref, commit)
        return commit

    def point(self, ref: str, commit: str) -> None:
        """Set a branch or tag."""
        self.refs[ref] = commit
        (self.folder / "refs.json").write_text(json.dumps(self.refs))

    def resolve(self, revision: str) -> str | None:
        commit = self.refs.get(revision.removeprefix("refs/heads/"), revision)
        return commit if (self.folder / "commits" / f"{commit}.json").is_file() else None

    def entries(self, commit: str) -> dict[str, Entry]:
        document = json.loads((self.folder / "commits" / f"{commit}.json").read_bytes())
        return {entry["path"]: Entry(**entry) for entry in document["files"]}

    def blob(self, sha256: str) -> Path:
        return self.folder / "blobs" / sha256


def _git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def files_of(folder: Path, under: str = "") -> dict[str, Path | bytes | None]:
    """All files of a folder, as `Repository.commit` takes them, in a folder of the repository."""
    return {under + p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}


# --- the server ---------------------------------------------------------------------------------------------


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


@contextmanager
def hub_server(folder: Path) -> Iterator[Hub]:
    """A Hub on two ports of this machine while it lasts; its repositories are kept under `folder`."""
    from tests import hub_writing

    hub = Hub(folder)
    servers = [_Server(("127.0.0.1", 0), Handler) for _ in range(2)]
    for server in servers:
        server.hub, server.routes = hub, (*ROUTES, *hub_writing.ROUTES)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    hub.url, hub.storage = (f"http://127.0.0.1:{s.server_port}" for s in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


Route = tuple[str, str, Callable[..., None]]


class _Server(ThreadingHTTPServer):
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
    server: _Server

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


# --- answers ------------------------------------------------------------------------------------------------


def _whoami(it: Handler) -> None:
    user = it.user()
    if not user:
        raise Refused(401, "", "Invalid username or password.")
    role = "write" if it.token in it.server.hub.writing else "read"
    orgs = [{"name": name} for name, members in it.server.hub.members.items() if user in members]
    it.send_json({"type": "user", "name": user, "orgs": orgs, "auth": {"accessToken": {"role": role}}})


def _model_info(it: Handler, repo: str, revision: str = "main") -> None:
    repository = it.repository(repo)
    commit = it.commit_of(repository, revision or "main")
    siblings: list[dict[str, Any]] = []
    for entry in repository.entries(commit).values():
        sibling: dict[str, Any] = {"rfilename": entry.path}
        if "blobs" in it.asked.query:
            sibling |= {"size": entry.size, "blobId": entry.oid}
            if entry.large:
                sibling["lfs"] = {"sha256": entry.sha256, "size": entry.size, "pointerSize": 134}
        siblings.append(sibling)
    document = {"_id": "0", "id": repo, "modelId": repo, "sha": commit, "private": repository.private}
    it.send_json({**document, "gated": "manual" if repository.gated else False, "tags": [], "siblings": siblings})


def _tree(it: Handler, repo: str, revision: str, path: str = "") -> None:
    """Files and folders in a folder, or (recursive) all below it, in pages."""
    repository = it.repository(repo)
    entries = repository.entries(it.commit_of(repository, revision))
    start = f"{path.strip('/')}/" if path.strip("/") else ""
    rows: dict[str, dict[str, Any]] = {}
    for entry in entries.values():
        if not entry.path.startswith(start):
            continue
        inner = entry.path[len(start) :].split("/")
        for depth in range(1, len(inner)):
            folder = start + "/".join(inner[:depth])
            rows[folder] = {"type": "directory", "path": folder, "oid": _git_id(folder.encode()), "size": 0}
        rows[entry.path] = {"type": "file", "path": entry.path, "oid": entry.oid, "size": entry.size}
        if entry.large:
            rows[entry.path]["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": 134}
    if start and not rows:
        raise Refused(404, "EntryNotFound", f"{path} does not exist on {revision!r}")
    recursive = it.asked.query.get("recursive", ["False"])[0].lower() in ("true", "1")
    shown = [row for name, row in sorted(rows.items()) if recursive or "/" not in name[len(start) :]]
    first = int(it.asked.query.get("cursor", ["0"])[0])
    headers = {}
    if first + it.server.hub.page < len(shown):
        where = f"{it.server.hub.url}{quote(it.asked.path)}?recursive={recursive}&cursor={first + it.server.hub.page}"
        headers = {"Link": f'<{where}>; rel="next"'}
    it.send_json(shown[first : first + it.server.hub.page], headers=headers)


def _resolve(it: Handler, repo: str, revision: str, file: str) -> None:
    repository = it.repository(repo, contents=True)
    commit = it.commit_of(repository, revision)
    entry = repository.entries(commit).get(file)
    if entry is None:
        raise Refused(404, "EntryNotFound", "Entry not found", **{"X-Repo-Commit": commit})
    headers = {"X-Repo-Commit": commit, "ETag": f'"{entry.oid}"'}
    if not entry.large:
        it.send_file(repository.blob(entry.sha256), headers)
        return
    linked = {"X-Linked-Size": str(entry.size), "X-Linked-Etag": f'"{entry.sha256}"'}
    where = f"{it.server.hub.storage}/lfs/{repo}/{entry.sha256}?Signature=of-this-url"
    it.send_start(302, {**headers, **linked, "Location": where}, 0)


def _stored(it: Handler, repo: str, sha256: str) -> None:
    """Large files, of which the URL is the right to have them: a token has no business here."""
    if it.headers.get("Authorization") or it.asked.query.get("Signature") != ["of-this-url"]:
        raise Refused(400, "", "Only one auth mechanism allowed")
    it.send_file(it.server.hub.repositories[repo].blob(sha256), {"ETag": f'"{sha256}"'})


REPO = r"(?P<repo>[^/]+/[^/]+)"
REVISION = r"(?P<revision>refs/pr/\d+|[^/]+)"
ROUTES: tuple[Route, ...] = (
    ("GET", r"/api/whoami-v2", _whoami),
    ("GET", rf"/api/models/{REPO}", _model_info),
    ("GET", rf"/api/models/{REPO}/revision/{REVISION}", _model_info),
    ("GET", rf"/api/models/{REPO}/tree/{REVISION}(/(?P<path>.*))?", _tree),
    ("GET HEAD", rf"/{REPO}/resolve/{REVISION}/(?P<file>.+)", _resolve),
    ("GET HEAD", rf"/lfs/{REPO}/(?P<sha256>[0-9a-f]{{64}})", _stored),
)


def unused_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def deaf_server() -> Iterator[str]:
    """A server that accepts connections and never says anything; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


__all__ = ["Asked", "Fault", "Hub", "Repository", "deaf_server", "files_of", "hub_server", "unused_port"]

"""The reading half of the Hub of `tests/hub_server.py`: what is told of a repository, its tree (paged), its files."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.hub_handler import REPO, REVISION, Handler, Refused, Route
from tests.hub_repository import git_id


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
            rows[folder] = {"type": "directory", "path": folder, "oid": git_id(folder.encode()), "size": 0}
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


ROUTES: tuple[Route, ...] = (
    ("GET", r"/api/whoami-v2", _whoami),
    ("GET", rf"/api/models/{REPO}", _model_info),
    ("GET", rf"/api/models/{REPO}/revision/{REVISION}", _model_info),
    ("GET", rf"/api/models/{REPO}/tree/{REVISION}(/(?P<path>.*))?", _tree),
    ("GET HEAD", rf"/{REPO}/resolve/{REVISION}/(?P<file>.+)", _resolve),
    ("GET HEAD", rf"/lfs/{REPO}/(?P<sha256>[0-9a-f]{{64}})", _stored),
)

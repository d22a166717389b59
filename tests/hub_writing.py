"""The writing half of the Hub of `tests/hub_server.py`: repositories, branches, large files and commits.

It refuses what the Hub refuses: who has no right to write, a revision that is not there, a card whose metadata is none,
a large file whose object was never uploaded or is another, a commit on what is no longer the head.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote

import yaml

from tests.hub_handler import REPO, REVISION, Handler, Refused, Route
from tests.hub_repository import LARGE, Entry, Repository

_SIGNED = "Signature=of-this-upload"


# --- who may ------------------------------------------------------------------------------------------------


def _writer(it: Handler, namespace: str) -> str:
    """The user, who may write there."""
    user = it.user()
    if not user:
        raise Refused(401, "", "Invalid username or password.")
    hub = it.server.hub
    if it.token not in hub.writing:
        raise Refused(403, "", "Forbidden: this token has not the role write.")
    if namespace != user and user not in hub.members.get(namespace, ()):
        raise Refused(403, "", f'You don\'t have the rights to write under the namespace "{namespace}".')
    return user


def _open(it: Handler, name: str) -> Repository:
    """The repository, for whoever may write to it, or (create_pr) open a pull request."""
    repository = it.repository(name)
    if "create_pr" in it.asked.query:
        _writer(it, it.user())
    else:
        _writer(it, name.partition("/")[0])
    return repository


def _stored_only(it: Handler) -> None:
    """The URL is the right to write there: a token has no business in the storage."""
    if it.headers.get("Authorization") or _SIGNED.partition("=")[2] not in it.asked.query.get("Signature", ()):
        raise Refused(400, "", "Only one auth mechanism allowed")


# --- repositories, branches, cards --------------------------------------------------------------------------


def _create(it: Handler) -> None:
    wanted = json.loads(it.body)
    hub, user = it.server.hub, it.user()
    namespace = wanted.get("organization") or user
    name = f"{namespace}/{wanted['name']}"
    _writer(it, namespace)
    with hub.lock:
        if name in hub.repositories:
            words = {"error": "You already created this model repo", "url": f"{hub.url}/{name}"}
            it.send_json(words, 409)
            return
        private = wanted.get("private") or wanted.get("visibility") == "private"
        repository = Repository(hub.folder / name.replace("/", "--"), name, private=bool(private))
        repository.readers |= {user} | hub.members.get(namespace, set())
        hub.repositories[name] = repository
    it.send_json({"url": f"{hub.url}/{name}", "name": name, "id": name})


def _branch(it: Handler, repo: str, revision: str) -> None:
    repository = _open(it, repo)
    if revision.startswith("refs/"):
        raise Refused(400, "", f"Invalid reference for a branch: {revision}")
    if revision in repository.refs:
        raise Refused(409, "", f"Reference already exists: refs/heads/{revision}")
    repository.point(revision, it.commit_of(repository, json.loads(it.body or b"{}").get("startingPoint") or "main"))
    it.send_json({})


def _faults_of_card(content: str) -> list[str]:
    """What is wrong with the metadata of a card; [] where it has none."""
    match = re.match(r"\s*---\r?\n(.*?)\r?\n---(\r?\n|$)", content, re.DOTALL)
    if match is None:
        return []
    try:
        metadata = yaml.safe_load(match[1])
    except yaml.YAMLError as problem:
        return [f"YAML: {str(problem).splitlines()[0]}"]
    if not isinstance(metadata, dict):
        return ["metadata must be an object"]
    wrong = [f'"{key}" must be a string' for key in ("pipeline_tag", "library_name", "base_model_relation")
             if not isinstance(metadata.get(key, ""), str)]  # fmt: skip
    wrong += [f'"{key}" must be a string or a list of strings' for key in ("license", "base_model", "language")
              if not isinstance(metadata.get(key, ""), str | list)]  # fmt: skip
    rows = metadata.get("model-index", ())
    bad = [r for r in rows if not isinstance(r, dict) or not r.get("name") or not isinstance(r.get("results"), list)]
    if bad:
        wrong.append('"model-index" must have names and results')
    return wrong


def _validate_yaml(it: Handler) -> None:
    content = json.loads(it.body)["content"]
    wrong = _faults_of_card(content)
    plain = not content.lstrip().startswith("---")
    warnings = [{"message": "empty or missing yaml metadata in repo card"}] if plain else []
    it.send_json({"errors": [{"message": text} for text in wrong], "warnings": warnings}, 400 if wrong else 200)


# --- large files --------------------------------------------------------------------------------------------


def _preupload(it: Handler, repo: str, revision: str) -> None:
    """How each file is to be sent, and what is there under its name."""
    repository = _open(it, repo)
    entries = repository.entries(it.commit_of(repository, revision))
    files, asked = [], json.loads(it.body)
    stored = entries.get(".gitignore")
    ignored = repository.blob(stored.sha256).read_text() if stored is not None else ""
    ignored = asked.get("gitIgnore", ignored)
    for wanted in asked["files"]:
        base64.b64decode(wanted["sample"], validate=True)
        there = entries.get(wanted["path"])
        row = {"path": wanted["path"], "uploadMode": "lfs" if wanted["path"].endswith(LARGE) else "regular"}
        if there is not None:
            row["oid"] = there.sha256 if there.large else there.oid
        files.append({**row, "shouldIgnore": any(fnmatchcase(wanted["path"], line) for line in ignored.split())})
    it.send_json({"files": files})


def _batch(it: Handler, repo: str) -> None:
    """Where each object is to be sent; nowhere if it is there."""
    repository, hub, wanted = it.repository(repo), it.server.hub, json.loads(it.body)
    _writer(it, repo.partition("/")[0] if "ref" in wanted else it.user())
    if wanted["operation"] != "upload" or wanted.get("hash_algo", "sha256") != "sha256":
        raise Refused(422, "", "only uploads by sha256")
    ref = wanted.get("ref", {}).get("name")
    if ref is not None:
        it.commit_of(repository, ref)
    objects = []
    for row in wanted["objects"]:
        oid, size, told = row["oid"], row["size"], {"oid": row["oid"], "size": row["size"]}
        objects.append(told)
        if oid in repository.objects:
            continue
        if hub.full:
            told["error"] = {"code": 507, "message": "Storage limit reached"}
            continue
        upload: dict[str, Any] = {"href": f"{hub.storage}/upload/{repo}/{oid}?size={size}&{_SIGNED}"}
        if hub.parts and size > hub.parts:
            count = -(-size // hub.parts)
            urls = {str(i): f"{hub.storage}/upload/{repo}/{oid}/{i}?{_SIGNED}" for i in range(1, count + 1)}
            upload = {
                "href": f"{hub.url}/api/complete_multipart/{repo}?size={size}&{_SIGNED}",
                "header": {"chunk_size": str(hub.parts), **urls},
            }
        told["actions"] = {"upload": upload, "verify": {"href": f"{hub.url}/{repo}.git/info/lfs/verify"}}
    it.send_json({"transfer": "multipart" if hub.parts else "basic", "objects": objects})


def _put(it: Handler, repo: str, oid: str, part: str = "") -> None:
    """Take an object, or a part of one, whole or not at all."""
    _stored_only(it)
    if not it.headers.get("Content-Length"):
        raise Refused(411, "", "MissingContentLength")
    if it.fault is not None and not it.fault.lost and it.fault.do is None:
        it.received(it.fault.after)
        it.cut()
        return
    data = it.received()
    if len(data) != int(it.headers["Content-Length"]):  # the client is gone
        it.close_connection = True
        return
    repository = it.server.hub.repositories[repo]
    etag = hashlib.md5(data).hexdigest()
    if part:
        repository.blob(f"{oid}.{part}.{etag}").write_bytes(data)
    else:
        _take(repository, oid, int(it.asked.query["size"][0]), data)
    it.send_start(200, {"ETag": f'"{etag}"'}, 0)


def _complete(it: Handler, repo: str) -> None:
    _stored_only(it)
    wanted, repository = json.loads(it.body), it.server.hub.repositories[repo]
    names = [f"{wanted['oid']}.{row['partNumber']}.{row['etag'].strip(chr(34))}" for row in wanted["parts"]]
    if not all(repository.blob(name).is_file() for name in names):
        raise Refused(400, "", "InvalidPart")
    data = b"".join(repository.blob(name).read_bytes() for name in names)
    _take(repository, wanted["oid"], int(it.asked.query["size"][0]), data)
    for name in names:
        repository.blob(name).unlink()
    it.send_json({"success": True})


def _take(repository: Repository, oid: str, size: int, data: bytes) -> None:
    if hashlib.sha256(data).hexdigest() != oid or len(data) != size:
        raise Refused(400, "", "The object's contents are not those of its oid")
    repository.blob(oid).write_bytes(data)
    repository.objects.add(oid)


def _verify(it: Handler, repo: str) -> None:
    wanted, repository = json.loads(it.body), it.repository(repo)
    _writer(it, it.user())
    _there(repository, wanted["oid"], wanted["size"])
    it.send_json({})


def _there(repository: Repository, oid: str, size: int) -> None:
    if oid not in repository.objects or repository.blob(oid).stat().st_size != size:
        raise Refused(400, "", "Your push was rejected because an LFS pointer pointed to a file that does not exist.")


# --- commits ------------------------------------------------------------------------------------------------


def _commit(it: Handler, repo: str, revision: str) -> None:
    """All of the lines, or nothing."""
    repository, hub = _open(it, repo), it.server.hub
    rows = [json.loads(line) for line in it.body.splitlines()]
    header = next(row["value"] for row in rows if row["key"] == "header")
    with hub.lock:
        head = it.commit_of(repository, revision)
        parent = header.get("parentCommit") or head
        pull = "create_pr" in it.asked.query
        if parent != head and not pull:
            raise Refused(412, "", "A commit has happened since. Please refresh and try again.")
        if not pull and revision not in repository.refs:
            raise Refused(400, "", f"{revision} is no branch")
        entries = repository.entries(parent)
        for row in rows:
            _apply(repository, entries, row["key"], row["value"])
        number = 1 + sum(ref.startswith("refs/pr/") for ref in repository.refs)
        ref = f"refs/pr/{number}" if pull else revision
        commit = repository.record(entries, header["summary"], ref, parent)
    answer = {"success": True, "commitOid": commit, "commitUrl": f"{hub.url}/{repo}/commit/{commit}", "hookOutput": ""}
    if pull:
        answer["pullRequestUrl"] = f"{hub.url}/{repo}/discussions/{number}"
    it.send_json(answer)


def _apply(repository: Repository, entries: dict[str, Entry], key: str, value: dict[str, Any]) -> None:
    path = value.get("path", "")
    if key == "file":
        data = base64.b64decode(value["content"], validate=True)
        if path.endswith(LARGE) and data:
            raise Refused(400, "", f"{path} must be stored with LFS")
        if path == "README.md" and (wrong := _faults_of_card(data.decode())):
            raise Refused(400, "", f"Invalid metadata in README.md: {wrong[0]}")
        entries[path] = repository.keep(path, data)
    elif key == "lfsFile":
        _there(repository, value["oid"], value["size"])
        entries[path] = Entry.pointer(path, value["oid"], value["size"])
    elif key == "deletedFile":
        if entries.pop(path, None) is None:
            raise Refused(404, "EntryNotFound", "A file with this name doesn't exist")
    elif key != "header":
        raise Refused(400, "", f"{unquote(key)} is not spoken here")


ROUTES: tuple[Route, ...] = (
    ("POST", r"/api/repos/create", _create),
    ("POST", r"/api/validate-yaml", _validate_yaml),
    ("POST", rf"/api/models/{REPO}/branch/{REVISION}", _branch),
    ("POST", rf"/api/models/{REPO}/preupload/{REVISION}", _preupload),
    ("POST", rf"/api/models/{REPO}/commit/{REVISION}", _commit),
    ("POST", r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch", _batch),
    ("POST", r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/verify", _verify),
    ("POST", rf"/api/complete_multipart/{REPO}", _complete),
    ("PUT", rf"/upload/{REPO}/(?P<oid>[0-9a-f]{{64}})(/(?P<part>\d+))?", _put),
)

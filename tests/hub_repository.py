"""A repository of the Hub on disk: its commits, their files, and what git keeps of large ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LARGE = (".safetensors", ".bin", ".pt", ".gguf", ".model")  # what .gitattributes of the Hub gives to LFS


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
                                                                                     git_id(data))  # fmt: skip

    @classmethod
    def pointer(cls, path: str, sha256: str, size: int) -> Entry:
        return cls(path, sha256, size, True, git_id(pointer(sha256, size).encode()))


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
        commit = git_id(text)
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


def git_id(data: bytes) -> str:
    """What git calls a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def files_of(folder: Path, under: str = "") -> dict[str, Path | bytes | None]:
    """All files of a folder, as `Repository.commit` takes them, in a folder of the repository."""
    return {under + p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}


def pointer(sha256: str, size: int) -> str:
    """What git-lfs puts in the place of a file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"

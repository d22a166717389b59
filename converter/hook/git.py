"""git, asked through its plumbing. Nothing is written, checked out or smudged."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from converter.errors import InputError
from converter.findings import error

_BLOCK = 1 << 20


def broken(what: str, said: str = "") -> InputError:
    """H429."""
    return InputError(
        error(
            "H429",
            f"git cannot read what is pushed: {what}",
            where="the repository",
            found=said,
            why="what cannot be read cannot be held against a seal",
            fix=("git fsck    says what is missing or damaged",),
        )
    )


class Git:
    """The repository at `folder`, or the one that git itself means in this process (in a hook: the one pushed from)."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path()
        self.words = ["git", *(["-C", str(folder)] if folder is not None else [])]
        # A push sends objects and histories as they are, not what replace refs and grafts show here in their place.
        as_sent = {"GIT_NO_REPLACE_OBJECTS": "1", "GIT_GRAFT_FILE": f"{os.devnull}/none"}
        self.environment = dict(os.environ) | {"LC_ALL": "C", **as_sent}
        if folder is not None:  # a hook's own repository must not stand in for the one named
            for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX"):
                self.environment.pop(name, None)

    def run(self, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Raises InputError H429 where there is no git."""
        try:
            return subprocess.run(
                [*self.words, *words], input=given, capture_output=True, env=self.environment, check=False
            )
        except OSError as problem:
            raise broken("git cannot be started", problem.strerror or str(problem)) from problem

    def output(self, *words: str, given: bytes = b"") -> bytes:
        """Raises InputError H429 where git fails."""
        done = self.run(*words, given=given)
        if done.returncode:
            raise broken(f"git {words[0]} failed", os.fsdecode(done.stderr.strip()))
        return done.stdout

    def answer(self, *words: str) -> str | None:
        """One line; None where git has none to give."""
        done = self.run(*words)
        return None if done.returncode else os.fsdecode(done.stdout.removesuffix(b"\n"))

    def folder(self, *words: str) -> Path:
        """A folder that `git rev-parse` knows, e.g. --git-common-dir; raises InputError H429."""
        return self._folder / os.fsdecode(self.output("rev-parse", *words).removesuffix(b"\n"))

    def top(self) -> Path | None:
        """The working tree's top folder; None in a bare repository."""
        folder = self.answer("rev-parse", "--show-toplevel")
        return Path(folder) if folder else None


@dataclass(frozen=True)
class Object:
    """oid in hex; kind: commit, tree, blob or tag; size of its contents in bytes."""

    oid: str
    kind: str
    size: int


@dataclass(frozen=True)
class Entry:
    """One line of a tree; mode as git writes it, e.g. 100644."""

    mode: str
    name: str
    oid: str

    @property
    def is_file(self) -> bool:
        return self.mode in ("100644", "100755", "100664")

    @property
    def is_folder(self) -> bool:
        return self.mode == "40000"


class Objects:
    """Objects of a repository by their names, from two processes that live as long as this (`git cat-file`).

    bytes_read   how much of contents came through, in bytes
    """

    def __init__(self, git: Git) -> None:
        self._git = git
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._digests: dict[str, str] = {}
        self._trees: dict[str, tuple[Entry, ...]] = {}
        self.bytes_read = 0

    def __enter__(self) -> Objects:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.kill()  # it only reads
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
            process.wait()

    def look(self, name: str) -> Object | None:
        """What `name` (hex, with ^{commit} and its like) is; None where it is not there, or not that."""
        return self._header(name, "--batch-check")[1]

    def read(self, oid: str, most: int | None = None) -> bytes:
        """Its contents, or the first bytes of them; raises InputError H429."""
        kept, size = [], 0
        for block in self._blocks(oid):
            if most is None or size < most:
                kept.append(block)
                size += len(block)
        return b"".join(kept)[:most]

    def sha256(self, oid: str) -> str:
        """Of a blob's contents, which are read once, a megabyte at a time; raises as `read` does."""
        if oid not in self._digests:
            digest = hashlib.sha256()
            for block in self._blocks(oid):
                digest.update(block)
            self._digests[oid] = digest.hexdigest()
        return self._digests[oid]

    def write(self, oid: str, path: Path) -> None:
        """A blob's contents as the new file `path`; raises as `read` does."""
        with path.open("xb") as file:
            for block in self._blocks(oid):
                file.write(block)

    def tree(self, oid: str) -> tuple[Entry, ...]:
        """The entries of a tree (names decoded as those of files here); raises as `read` does."""
        if oid not in self._trees:
            try:
                self._trees[oid] = tuple(_entries(self.read(oid), len(oid) // 2))
            except ValueError as problem:
                raise broken(f"the tree {oid} is damaged") from problem
        return self._trees[oid]

    def _blocks(self, oid: str) -> Iterator[bytes]:
        out, found = self._header(oid, "--batch")
        if found is None:
            raise broken(f"the object {oid} is not in the repository")
        left = found.size
        while left:
            block = out.read(min(left, _BLOCK))
            if not block:
                raise broken(f"the object {oid} ends early")
            left -= len(block)
            self.bytes_read += len(block)
            yield block
        out.read(1)  # a line feed ends it

    def _header(self, name: str, mode: str) -> tuple[IO[bytes], Object | None]:
        process = self._processes.get(mode)
        if process is None:
            words = [*self._git.words, "cat-file", mode]
            try:
                process = subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._git.environment
                )
            except OSError as problem:
                raise broken("git cannot be started", problem.strerror or str(problem)) from problem
            self._processes[mode] = process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(name.encode() + b"\n")
            process.stdin.flush()
        except OSError as problem:
            raise broken("git cat-file ended") from problem
        words = process.stdout.readline().decode(errors="replace").split()
        if not words:
            raise broken(f"git cat-file ended at {name}")
        return process.stdout, Object(words[0], words[1], int(words[2])) if len(words) == 3 else None


def _entries(raw: bytes, width: int) -> Iterator[Entry]:
    """A tree object as it is stored: mode, blank, name, NUL, the `width` bytes of the object's name."""
    at = 0
    while at < len(raw):
        blank = raw.index(b" ", at)
        end = raw.index(b"\0", blank)
        oid = raw[end + 1 : end + 1 + width]
        if len(oid) != width:
            raise ValueError("it ends within an entry")
        name = os.fsdecode(raw[blank + 1 : end])
        if name in ("", os.curdir, os.pardir) or os.sep in name or (os.altsep or os.sep) in name:
            raise ValueError("it names what is outside it")
        yield Entry(raw[at:blank].decode("ascii"), name, oid.hex())
        at = end + 1 + width

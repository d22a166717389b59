"""Git repositories of drafters for tests, with settings of their own: nothing of the user's git is read or written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from converter import seal
from converter.findings import Level
from tests.hub_repository import pointer
from tests.support import DRAFTERS, run

PATTERNS = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n*.bin filter=lfs diff=lfs merge=lfs -text\n"


def environment(home: Path) -> dict[str, str]:
    """What isolates git: for monkeypatch or a process. Variables that a hook would set are not in it."""
    home.mkdir(parents=True, exist_ok=True)
    person = {f"GIT_{who}_{what}": "me@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    settings = home / "gitconfig"
    if not settings.exists():
        settings.write_text('[init]\n\tdefaultBranch = main\n[protocol "file"]\n\tallow = always\n[gc]\n\tauto = 0\n')
    return {
        "HOME": str(home), "XDG_CONFIG_HOME": str(home), "GIT_CONFIG_GLOBAL": str(settings), "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0", "HF_HUB_OFFLINE": "1", **person,
    }  # fmt: skip


def sealed_output(folder: Path, level: Level = "anchored", drafter: str = "a_plain") -> Path:
    """A converted drafter; its seal states `level`, which saves the time that a proof takes."""
    run(DRAFTERS / drafter, folder)
    document = json.loads((folder / seal.NAME).read_text())
    document["proof"]["level"] = level
    (folder / seal.NAME).write_text(json.dumps(document))
    return folder


def git(folder: Path, *words: str, check: bool = True, given: str | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False, input=given)
    assert not check or done.returncode == 0, done.stderr
    return done


def said(folder: Path, *words: str) -> str:
    return git(folder, *words).stdout.strip()


class Clone:
    """A clone of the bare repository `remote`."""

    def __init__(self, folder: Path, remote: Path, *options: str) -> None:
        self.folder, self.remote = folder, remote
        if not remote.exists():
            subprocess.run(["git", "init", "-q", "--bare", *options, str(remote)], check=True, capture_output=True)
        subprocess.run(["git", "init", "-q", *options, str(folder)], check=True, capture_output=True)
        git(folder, "remote", "add", "origin", str(remote))

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def add(self, source: Path, name: str, pointers: bool = False) -> Path:
        """A copy of a drafter in the working tree; with `pointers` as git-lfs would store it, without git-lfs."""
        place = self.folder / name
        shutil.copytree(source, place, dirs_exist_ok=True)
        if pointers:
            for file in place.glob("*.safetensors"):
                self.point(file)
        return place

    def point(self, file: Path) -> None:
        """Put a pointer in the place of a file, and the contents into the store."""
        contents = file.read_bytes()
        oid = hashlib.sha256(contents).hexdigest()
        kept = self.store / oid[:2] / oid[2:4] / oid
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(contents)
        file.write_text(pointer(oid, len(contents)))

    @property
    def store(self) -> Path:
        return self.folder / ".git" / "lfs" / "objects"

    def commit(self, message: str = "more", *options: str) -> str:
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-q", "--allow-empty", "-m", message, *options)
        return said(self.folder, "rev-parse", "HEAD")

    def push(self, *words: str) -> subprocess.CompletedProcess[str]:
        return git(self.folder, "push", *(words or ("origin", "HEAD")), check=False)

    def at_remote(self) -> dict[str, str]:
        """Every ref of the remote and every LFS object that it holds, by name."""
        lines = said(self.remote, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        refs = dict(line.split() for line in lines)
        return refs | {p.name: "an LFS object" for p in (self.remote / "lfs" / "objects").rglob("*") if p.is_file()}


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in a folder: mode bits, and contents or where a link leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        text = os.fsencode(path.readlink()) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
        found[str(path.relative_to(folder))] = (mode, text)
    return found

"""The hook in a clone: put beside what is there, called with it, and taken away so that nothing is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clones import Clone, environment, git, listing
from tests.support import eagle3

SHELL = b'#!/bin/sh\ncat >"$OUT/lines"; echo "$@" >"$OUT/words"; echo "$0" >"$OUT/name"; exit ${CODE:-0}\n'
PYTHON = f"#!{sys.executable}\nimport os, sys\nsys.stdin.read()\nsys.exit(int(os.environ.get('CODE', 0)))\n".encode()
NOTHING = "0" * 40
PYTHON_HERE = sys.executable.encode()


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("OUT", str(tmp_path / "out"))


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    made = Clone(tmp_path / "clone", tmp_path / "remote.git")
    for sample in (made / ".git/hooks").glob("*.sample"):
        sample.unlink()
    return made


def hook(*words: str, folder: Path, code: int = 0) -> str:
    done = eagle3("hook", *words, "--repo", folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def executable(file: Path, text: bytes, mode: int = 0o755) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text)
    file.chmod(mode)
    return file


def run_hook(
    file: Path, lines: str = "", cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """As git runs it."""
    return subprocess.run([file, "origin", "some where"], input=lines, capture_output=True, text=True, check=False,
                          env={**os.environ, **variables}, cwd=cwd or file.parent)  # fmt: skip


# --- the folder -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", ["nothing", "no folder", "shell", "python", "not executable", "link", "broken link"])
def test_the_folder_is_as_it_was_byte_for_byte(clone: Clone, there: str) -> None:
    folder = clone / ".git" / "hooks"
    file = folder / "pre-push"
    if there == "no folder":
        folder.rmdir()
    elif there in ("shell", "not executable"):
        executable(file, SHELL, 0o640 if there == "not executable" else 0o711)
    elif there == "python":
        executable(file, PYTHON)
    elif "link" in there:
        target = executable(clone / "tools" / "hook", SHELL) if there == "link" else clone / "tools" / "gone"
        file.symlink_to(os.path.relpath(target, folder))
    before = listing(clone / ".git")
    said_ = hook("install", folder=clone.folder)
    once = listing(folder)
    assert "installed" in said_ and ("pre-push.before-eagle3" in said_) == (there not in ("nothing", "no folder"))
    assert ("not executable" in said_) == (there in ("not executable", "broken link"))
    assert "is there already" in hook("install", folder=clone.folder)
    assert listing(folder) == once
    assert "removed" in hook("uninstall", folder=clone.folder)
    assert listing(clone / ".git") == before
    assert "there is no hook of eagle3" in hook("uninstall", folder=clone.folder)
    assert listing(clone / ".git") == before


def test_a_hook_that_git_would_pass_over_is_renewed(clone: Clone) -> None:
    hook("install", folder=clone.folder)
    file = clone / ".git/hooks/pre-push"
    file.chmod(0o644)
    assert "renewed" in hook("install", folder=clone.folder)
    assert file.stat().st_mode & 0o777 == 0o755 and [p.name for p in file.parent.iterdir()] == ["pre-push"]


def test_settings_and_worktrees_say_where(clone: Clone, tmp_path: Path) -> None:
    clone.commit()
    git(clone.folder, "worktree", "add", "-q", str(tmp_path / "side"))
    hook("install", folder=tmp_path / "side")
    assert (clone / ".git/hooks/pre-push").is_file()
    hook("uninstall", folder=clone.folder)
    git(clone.folder, "config", "core.hooksPath", "my hooks")
    (clone / "deep").mkdir()
    assert "all your repositories" not in hook("install", folder=clone / "deep")
    assert [p.name for p in (clone / "my hooks").iterdir()] == ["pre-push"]
    hook("uninstall", folder=clone.folder)
    assert not (clone / "my hooks").exists()
    git(clone.folder, "config", "--unset", "core.hooksPath")
    git(clone.folder, "config", "--global", "core.hooksPath", str(tmp_path / "all"))
    assert "all your repositories" in hook("install", folder=clone.folder)
    assert (tmp_path / "all" / "pre-push").is_file()


def test_the_repository_that_is_named_is_taken(clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Clone(tmp_path / "other", tmp_path / "remote.git")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    hook("install", folder=clone.folder)
    assert (clone / ".git/hooks/pre-push").exists() and not (other / ".git/hooks/pre-push").exists()


def test_what_is_no_clone(clone: Clone, tmp_path: Path) -> None:
    for folder, why in (
        (clone.remote, "bare"),
        (tmp_path, "not a git repository"),
        (tmp_path / "no", "no such folder"),
    ):
        for command in ("install", "uninstall"):
            text = hook(command, folder=folder, code=3)
            assert "H430" in text and why in " ".join(text.split())


def test_nothing_of_the_user_is_lost(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    """H431."""
    file = executable(clone / ".git/hooks/pre-push", SHELL)
    hook("install", folder=clone.folder)
    written = file.read_bytes()
    file.write_bytes(written.replace(b"exit 1", b"exit 0"))
    edited = listing(file.parent)
    for command in ("install", "uninstall"):
        assert "edited since" in hook(command, folder=clone.folder, code=3)
        assert listing(file.parent) == edited
    file.write_bytes(b"#!/bin/sh\n# of another tool\n")
    for command in ("install", "uninstall"):
        text = hook(command, folder=clone.folder, code=3)
        assert "H431" in text and "pre-push.before-eagle3" in text
    assert file.read_bytes() == b"#!/bin/sh\n# of another tool\n"
    file.unlink()  # then only the hook of before is left: what is missing is eagle3's own
    hook("install", folder=clone.folder)
    assert file.read_bytes() == written
    monkeypatch.setattr(sys, "executable", "/another/python")
    assert "renewed" in hook("install", folder=clone.folder)
    assert b"/another/python" in file.read_bytes()
    hook("uninstall", folder=clone.folder)
    assert file.read_bytes() == SHELL
    file.unlink()
    file.mkdir()
    assert "is a folder" in hook("install", folder=clone.folder, code=3)


def test_a_hook_that_was_wrapped_is_left_to_its_wrapper(clone: Clone) -> None:
    """As `pre-commit install` does it."""
    file = clone / ".git/hooks/pre-push"
    hook("install", folder=clone.folder)
    file.rename(file.with_name("pre-push.legacy"))
    executable(file, SHELL)
    before = listing(file.parent)
    assert "pre-push.legacy" in hook("uninstall", folder=clone.folder, code=3)
    assert listing(file.parent) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(clone: Clone) -> None:
    folder = clone / ".git/hooks"
    folder.chmod(0o555)
    assert "cannot change" in hook("install", folder=clone.folder, code=4)


def test_what_cannot_be_written_is_an_error_of_the_output(clone: Clone) -> None:
    (clone / "file").write_text("")
    git(clone.folder, "config", "core.hooksPath", "file/hooks")
    assert "cannot change" in hook("install", folder=clone.folder, code=4)


# --- the script -----------------------------------------------------------------------------------------------


def test_the_hook_of_before_gets_what_git_gave(clone: Clone, tmp_path: Path) -> None:
    head = clone.commit()
    executable(clone / ".git/hooks/pre-push", SHELL + b"# git-lfs is called elsewhere\n")
    hook("install", folder=clone.folder)
    file, lines = clone / ".git/hooks/pre-push", f"HEAD {head} refs/heads/x {NOTHING}\n"
    done = run_hook(file, lines, GIT_DIR=str(clone / ".git"), CODE="7")
    assert (done.returncode, done.stderr) == (7, "")
    out = {p.name: p.read_text() for p in (tmp_path / "out").iterdir()}
    assert out["lines"] == lines and out["words"] == "origin some where\n" and "before-eagle3" in out["name"]


def test_a_module_of_the_repository_is_not_imported(clone: Clone, tmp_path: Path) -> None:
    trap = f"open({str(tmp_path / 'trapped')!r}, 'w')\n"
    for name in ("converter/__init__.py", "click.py", "json.py", "converter/cli/__init__.py"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text(trap)
    hook("install", folder=clone.folder)
    file = clone / ".git/hooks/pre-push"
    done = subprocess.run(
        [file, "origin", "x"], input="", text=True, cwd=clone.folder, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "trapped").exists()


def test_where_the_python_is_gone(clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the command on the PATH is used, and where there is none nothing passes."""
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("sh", "cat", "dirname", "grep", "git"):
        (bare / tool).symlink_to(shutil.which(tool) or tool)
    monkeypatch.setattr(sys, "executable", f'/gone/it\'s "here" $HOME/{os.fsdecode(b"ff")}/python')
    hook("install", folder=clone.folder)
    file = clone / ".git/hooks/pre-push"
    done = run_hook(file, PATH=str(bare))
    assert done.returncode == 1 and done.stdout == ""
    assert "--no-verify" in done.stderr and "hook install" in done.stderr and f"rm '{file}'" in done.stderr
    executable(bare / "eagle3", b'#!/bin/sh\necho "$@" >"$OUT/called"; cat >>"$OUT/called"; exit 5\n')
    assert run_hook(file, "a line\n", PATH=str(bare)).returncode == 5
    assert (tmp_path / "out" / "called").read_text() == "hook run origin some where\na line\n"
    without = executable(tmp_path / "python", b'#!/bin/sh\nexec %s -S "$@"\n' % PYTHON_HERE)
    monkeypatch.setattr(sys, "executable", str(without))
    assert "renewed" in hook("install", folder=clone.folder)
    assert run_hook(file, PATH=str(bare)).returncode == 5


def test_the_script_is_plain_shell(clone: Clone) -> None:
    hook("install", folder=clone.folder)
    shells = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
    assert shells
    for shell in shells:
        words = [shell, "sh"] if shell == "busybox" else [shell]
        done = subprocess.run(
            [*words, "-n", clone / ".git/hooks/pre-push"], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert b"\r" not in (clone / ".git/hooks/pre-push").read_bytes()

"""Real pushes by git and git-lfs to a bare repository with LFS objects on this disk (make test-hooks).

git-lfs copies objects to a file:// remote by itself (its standalone transfer). Nothing is skipped where it is missing.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from converter import seal
from converter.hook.lfs import parse_pointer
from tests.clones import Clone, environment, git, listing, said, sealed_output
from tests.hub_repository import pointer
from tests.support import DRAFTERS, ROOT, copy_of, eagle3

pytestmark = pytest.mark.lfs
PATTERNS = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sealed_output(tmp_path_factory.mktemp("sealed") / "out")


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    subprocess.run(["git", "lfs", "install", "--skip-repo"], check=True, capture_output=True)


class LfsClone(Clone):
    """With git-lfs in charge, and eagle3's hook."""

    def __init__(self, folder: Path, remote: Path, hook: bool = True) -> None:
        super().__init__(folder, remote)
        git(folder, "remote", "set-url", "origin", f"file://{remote}")
        git(folder, "lfs", "install", "--local")
        (folder / ".gitattributes").write_text(PATTERNS)
        if hook:
            self.hook()

    def hook(self, command: str = "install") -> None:
        done = eagle3("hook", command, "--repo", self.folder)
        assert done.returncode == 0, done.stderr

    def passes(self, *words: str) -> str:
        done = self.push(*words)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def stopped(self, *words: str) -> str:
        """What is said; the remote is as it was, refs and LFS objects."""
        before = self.at_remote()
        done = self.push(*words)
        assert done.returncode != 0 and "the push is stopped" in done.stderr, done.stderr
        assert self.at_remote() == before
        assert "--no-verify" in done.stderr and done.stdout == ""
        return done.stderr

    def objects_at_remote(self) -> set[str]:
        return {name for name, what in self.at_remote().items() if what == "an LFS object"}


@pytest.fixture
def clone(tmp_path: Path) -> LfsClone:
    return LfsClone(tmp_path / "clone", tmp_path / "remote.git")


def test_a_sealed_drafter_goes_and_what_is_wrong_does_not(clone: LfsClone, sealed: Path) -> None:
    folder = clone.add(sealed, "drafts/one")
    clone.commit()
    assert "eagle3: 1 drafter, sealed, proved: anchored\n" in clone.passes()
    assert clone.objects_at_remote() == {seal.sha256_of(sealed / "model.safetensors")}

    weights = bytearray((folder / "model.safetensors").read_bytes())  # tampered: one byte of one weight
    weights[-5] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    clone.commit("tampered")
    text = clone.stopped()
    assert "error C233" in text and "model.safetensors has other contents" in text
    assert "drafts/one, in refs/heads/main, commit " in text and "eagle3-convert" in text
    git(clone.folder, "reset", "-q", "--hard", "HEAD~")

    clone.add(DRAFTERS / "a_plain", "raw")  # unsealed
    clone.commit("unsealed")
    assert "error H413" in clone.stopped()
    git(clone.folder, "reset", "-q", "--hard", "HEAD~")

    (clone / ".eagle3.toml").write_text('unsealed = "validate"\n')  # broken
    copy_of("a_plain", clone / "raw", config=lambda c: c["transformer_layer_config"].update(num_attention_heads=8))
    clone.commit("broken")
    assert "error T104" in clone.stopped()
    shutil.copy(DRAFTERS / "a_plain" / "config.json", clone / "raw")
    clone.commit("mended", "--amend")
    assert "1 drafter, unsealed, static checks only (.eagle3.toml)" in clone.passes()

    (clone / ".eagle3.toml").write_text('unsealed = "validate"\nrequire = "measured"\n')  # proved to less
    clone.commit()
    assert "error H414" in clone.stopped()
    (clone / ".eagle3.toml").write_text("unsealed = yes\n")
    clone.commit("--amend")
    assert "error H427" in clone.stopped()
    git(clone.folder, "push", "-q", "--no-verify", "origin", "HEAD")  # git's own way out
    assert clone.at_remote()["refs/heads/main"] == said(clone.folder, "rev-parse", "HEAD")


def test_branches_tags_deletions_and_force(clone: LfsClone, sealed: Path) -> None:
    folder = clone.add(sealed, "out")
    good = clone.commit()
    clone.passes("origin", "HEAD:refs/heads/new")
    clone.passes("origin", ":refs/heads/new")
    assert "refs/heads/new" not in clone.at_remote()
    (folder / "config.json").write_text("{}")
    bad = clone.commit()
    clone.stopped("origin", f"{good}:refs/heads/good", f"{bad}:refs/heads/bad")  # one of two stops both
    clone.add(sealed, "out")
    clone.commit()
    text = clone.stopped("origin", "HEAD:main")
    assert f"commit {bad[:7]}, which the push brings along" in text and 'commits = "tips"' in text
    git(clone.folder, "tag", "-a", "-m", "bad", "v1", bad)
    assert "refs/tags/v1" in clone.stopped("origin", "v1")
    git(clone.folder, "reset", "-q", "--soft", good)
    clone.commit("in one")
    assert "earlier commits" not in clone.passes("origin", "HEAD:main")
    git(clone.folder, "reset", "-q", "--hard", good)
    (folder / "config.json").write_text("[]")
    clone.commit()
    clone.stopped("--force", "origin", "HEAD:main")
    clone.add(sealed, "out")
    clone.commit("mended", "--amend")
    clone.passes("--force", "origin", "HEAD:main")


def test_two_remotes_a_worktree_and_a_folder_that_moves(clone: LfsClone, sealed: Path, tmp_path: Path) -> None:
    folder = clone.add(sealed, "old")
    (folder / "config.json").write_text("{}")
    clone.commit()
    git(clone.folder, "push", "-q", "--no-verify", "origin", "HEAD:main")
    git(clone.folder, "mv", "old", "new")
    clone.add(sealed, "new")
    clone.commit()
    assert "1 drafter, sealed" in clone.passes("origin", "HEAD:main")  # the broken one is there already
    second = tmp_path / "second.git"
    subprocess.run(["git", "init", "-q", "--bare", second], check=True)
    git(clone.folder, "remote", "add", "second", f"file://{second}")
    assert "old, in refs/heads/main" in clone.stopped("second", "HEAD:main")
    assert said(second, "for-each-ref") == "" and not list(second.glob("lfs/objects/*"))
    git(clone.folder, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    (tmp_path / "side" / "new" / "model.safetensors").write_bytes(b"cut short")
    git(tmp_path / "side", "commit", "-qam", "broken")
    done = git(tmp_path / "side", "push", "origin", "side", check=False)
    assert done.returncode != 0 and "C233" in done.stderr and "F101" in done.stderr
    git(tmp_path / "side", "reset", "-q", "--hard", "HEAD~")
    assert git(tmp_path / "side", "push", "origin", "side").returncode == 0


def test_a_clone_without_the_contents(
    clone: LfsClone, sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not fetched is not fetched for the hook either."""
    clone.add(sealed, "out")
    clone.commit()
    clone.passes()
    monkeypatch.setenv("GIT_LFS_SKIP_SMUDGE", "1")
    subprocess.run(["git", "clone", "-q", f"file://{clone.remote}", tmp_path / "thin"], check=True, capture_output=True)
    assert eagle3("hook", "install", "--repo", tmp_path / "thin").returncode == 0
    (tmp_path / "thin" / "README.md").write_text("# one")
    git(tmp_path / "thin", "add", "-A")
    git(tmp_path / "thin", "commit", "-qm", "card")
    done = git(tmp_path / "thin", "push")
    assert "eagle3: 1 drafter, sealed, proved: anchored" in done.stderr
    assert not [p for p in (tmp_path / "thin/.git/lfs").rglob("*") if p.is_file() and len(p.name) == 64]


@pytest.mark.parametrize("order", ["lfs first", "lfs after", "lfs removed", "own hook", "own hook of git-lfs"])
def test_git_lfs_before_and_after(tmp_path: Path, sealed: Path, order: str) -> None:
    """Contents go up in every order, once they may."""
    clone = LfsClone(tmp_path / "clone", tmp_path / "remote.git", hook=order == "lfs first")
    file = clone / ".git/hooks/pre-push"
    if order != "lfs first":
        lfs = file.read_bytes()
        for hook in (clone / ".git/hooks").glob("*"):
            if not hook.suffix:
                hook.unlink()
        if order == "own hook":
            file.write_bytes(b"#!/bin/sh\ncat > .git/given\n")
        elif order == "own hook of git-lfs":
            file.write_bytes(lfs + b"# and more of the user's\n")
        if file.exists():
            file.chmod(0o755)
        before = listing(clone / ".git/hooks")
        clone.hook()
        if order == "lfs after":
            done = git(clone.folder, "lfs", "install", "--local", check=False)
            assert "Hook already exists: pre-push" in done.stdout + done.stderr and b"eagle3-hook" in file.read_bytes()
    else:
        before = {}
    clone.add(DRAFTERS / "a_plain", "raw")
    clone.commit()
    clone.stopped()
    shutil.rmtree(clone / "raw")
    clone.add(sealed, "out")
    clone.commit("sealed", "--amend")
    clone.passes()
    assert clone.objects_at_remote() == {seal.sha256_of(sealed / "model.safetensors")}
    if order == "own hook":
        assert (clone / ".git/given").read_text().startswith("HEAD ")
    clone.hook("uninstall")
    if before:
        assert listing(clone / ".git/hooks") == before
    else:
        assert b"git lfs pre-push" in file.read_bytes()


def test_what_the_hook_of_before_refuses_is_refused(clone: LfsClone, sealed: Path) -> None:
    clone.hook("uninstall")
    file = clone / ".git/hooks/pre-push"
    file.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('not on a Friday')\n")
    clone.hook()
    clone.add(sealed, "out")
    clone.commit()
    before = clone.at_remote()
    done = clone.push()
    assert done.returncode != 0 and "not on a Friday" in done.stderr and clone.at_remote() == before
    (clone / ".git/hooks/pre-push.before-eagle3").chmod(0o644)  # git would not run it
    clone.passes()
    assert clone.objects_at_remote()


def test_pointers_are_read_as_git_lfs_reads_them(clone: LfsClone, tmp_path: Path) -> None:
    for text in (b"", b"x", b"some bytes" * 999):
        (tmp_path / "file").write_bytes(text)
        done = subprocess.run(["git", "lfs", "pointer", f"--file={tmp_path / 'file'}"], capture_output=True, check=True)
        if text:  # of nothing the pointer is nothing
            found = parse_pointer(done.stdout)
            assert found is not None and (found.sha256, found.size) == (seal.sha256_of(tmp_path / "file"), len(text))
    good = pointer("a" * 64, 5)
    for text in (good, good.rstrip(), good.replace("v1", "v2"), good.replace("aaa", "AAA"), good.replace("5", "-5")):
        done = subprocess.run(["git", "lfs", "pointer", "--check", "--stdin"], input=text.encode(), check=False,
                              capture_output=True)  # fmt: skip
        assert (done.returncode == 0) == (parse_pointer(text.encode()) is not None), text


# --- the pre-commit framework ---------------------------------------------------------------------------------


def test_the_hook_of_the_pre_commit_framework(tmp_path: Path, sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    [published] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    pre_commit = [sys.executable, "-m", "pre_commit"]
    subprocess.run([*pre_commit, "validate-manifest", ROOT / ".pre-commit-hooks.yaml"], check=True)
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "pre-commit"))
    clone = LfsClone(tmp_path / "clone", tmp_path / "remote.git", hook=False)
    # As it is published, but for where it comes from: a test installs nothing.
    python = shlex.quote(sys.executable)
    hook = {
        **published,
        "language": "system",
        "entry": f"{python} -m converter {published['entry'].removeprefix('eagle3 ')}",
    }
    (clone / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [{"repo": "local", "hooks": [hook]}]}))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    subprocess.run([*pre_commit, "install", "-t", "pre-push"], cwd=clone.folder, check=True, capture_output=True)
    clone.add(sealed, "out")
    clone.commit()  # pushed from its root on: no PRE_COMMIT_TO_REF
    done = clone.push("origin", "main")
    assert done.returncode == 0 and clone.objects_at_remote(), done.stdout + done.stderr
    clone.add(DRAFTERS / "a_plain", "raw")
    clone.commit()
    before = clone.at_remote()
    done = clone.push("origin", "main")
    assert done.returncode != 0 and "H413" in done.stdout + done.stderr
    # git-lfs' own hook, which pre-commit runs first, has copied the contents by then; no ref shows them.
    assert {k: v for k, v in clone.at_remote().items() if k in before} == before
    git(clone.folder, "reset", "-q", "--hard", "HEAD~")
    (clone / "out" / "README.md").write_text("card")
    clone.commit()
    done = clone.push("origin", "main", "main:refs/heads/copy")
    assert done.returncode == 0, done.stdout + done.stderr


# --- docs -----------------------------------------------------------------------------------------------------


def test_the_recipes_for_ci(clone: LfsClone, sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/ci.md: the workflows are YAML of the form that GitHub and GitLab read, and their commands run."""
    import yaml

    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.S)
    github, gitlab, framework = map(yaml.safe_load, blocks)
    steps = [step for job in github["jobs"].values() for step in job["steps"]]
    assert True in github and all(job["runs-on"] for job in github["jobs"].values())  # `on` is YAML's true
    assert all(("uses" in step) != ("run" in step) for step in steps)
    assert set(framework["repos"][0]) == {"repo", "rev", "hooks"}
    lines = [line for step in steps for line in step.get("run", "").splitlines()]
    lines += [line for job in gitlab.values() for line in job.get("script", ())]
    commands = [line for line in lines if line.startswith("eagle3")]
    assert len(commands) >= 6
    clone.add(sealed, "drafts/one")
    clone.commit()
    monkeypatch.chdir(clone.folder)
    (clone / ".eagle3-baseline.json").write_text(json.dumps({"schema": "eagle3-convert/baseline/1", "accepted": []}))
    for command in commands:
        words = command.replace("$CI_COMMIT_SHA", "HEAD").replace("drafts/*", "drafts/one").split()
        program, rest = words[0], words[1:]
        done = eagle3(*(["validate"] if program == "eagle3-validate" else []), *rest)
        assert done.returncode == 0, (command, done.stderr, done.stdout)
    assert (clone / "eagle3.sarif").exists()

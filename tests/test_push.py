"""Drafters pushed to a Hub on this machine by huggingface_hub's own client: what goes, what is refused, what is there
after a fault.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from converter import gate, seal
from converter.errors import SendError
from converter.findings import LEVELS, error
from converter.hub.ids import HubId
from converter.hub.upload import There, outgoing, send
from converter.publish.push import Asked, Push
from converter.publish.text import _where
from converter.source import SIGNATURE
from tests.hub_client import ROOT, Client, Done, World, environment_of, leaks, secret
from tests.hub_handler import Fault, Hub
from tests.hub_repository import Repository, files_of
from tests.hub_server import hub_server
from tests.support import DRAFTERS, SAMPLE, TARGET, eagle3, run
from tests.test_schemas import assert_published

A = DRAFTERS / "a_plain"
OWNER, READER, OTHER = "hf_owner_5d02c7e1", "hf_reader_a9034b6f", "hf_other_17e80d2c"
CHECKS = ("--target", TARGET, "--sample", SAMPLE, "--positions", "128")


@pytest.fixture(scope="module", autouse=True)
def _tokens_stay_secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of everything that the tests here wrote and said."""
    with secret((OWNER, READER, OTHER), tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("hub")
    with hub_server(folder / "server") as hub:
        hub.tokens = {OWNER: "owner", READER: "owner", OTHER: "other"}
        hub.writing, hub.members = {OWNER, OTHER}, {"org": {"owner"}}
        hub.parts = 100_000
        client = Client(folder / "home", HF_ENDPOINT=hub.url)
        yield World(hub, client, folder / "home")
        client.close()


@pytest.fixture(autouse=True)
def _no_faults_left(world: World) -> Iterator[None]:
    yield
    left, world.hub.faults = [f for f in world.hub.faults if f.times], []
    assert left == [], "a fault that nothing met tests nothing"


@pytest.fixture(scope="module")
def first(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A drafter that was converted, proved and pushed with one command, and what that said."""
    out = tmp_path_factory.mktemp("first") / "out"
    done = world("convert", A, out, *CHECKS, "--push-to-hub", "org/first", "--json", token=OWNER)
    assert done.code == 0, done.text
    return out, done


@pytest.fixture
def folder(first: tuple[Path, Done], tmp_path: Path) -> Path:
    """A copy of that drafter."""
    return Path(shutil.copytree(first[0], tmp_path / "drafter"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed drafter with two large files, one of which is sent from disk, in parts."""
    given, out = tmp_path_factory.mktemp("large") / "in", tmp_path_factory.mktemp("large") / "out"
    shutil.copytree(A, given)
    (given / "tokenizer.model").write_bytes(bytes(11 << 20))
    assert run(given, out).outcome == "converted"
    return out


def push(world: World, folder: Path, repo: str, *words: str | Path, token: str = OWNER) -> Done:
    return world("push", folder, repo, "--yes", *words, token=token)


def head(world: World, repo: str, branch: str = "main") -> dict[str, bytes]:
    """The files of a branch."""
    return files_at(world, repo, world.hub.repositories[repo].refs[branch])


def files_at(world: World, repo: str, commit: str) -> dict[str, bytes]:
    repository = world.hub.repositories[repo]
    return {n: repository.blob(e.sha256).read_bytes() for n, e in repository.entries(commit).items()}


def commits(repository: Repository) -> int:
    return len(list((repository.folder / "commits").iterdir()))


def asked(world: World, method: str, where: str = "") -> list[int]:
    """The answers to such requests."""
    return [a.status for a in world.hub.asked if a.method == method and where in a.path]


def refused(done: Done, exit_code: int, code: str, *words: str) -> None:
    """The exit code, the code of a finding, and no traceback."""
    assert done.code == exit_code, done.text
    assert f"error {code}" in done.text and "Traceback" not in done.text, done.text
    for word in words:  # a long path is broken in its midst
        assert "".join(word.split()) in "".join(done.text.split()), done.text


# --- there and back -----------------------------------------------------------------------------------------


def test_what_was_pushed_is_what_was_proved(world: World, first: tuple[Path, Done], tmp_path: Path) -> None:
    out, done = first
    here = {n: p.read_bytes() for n, p in files_of(out).items() if isinstance(p, Path)}
    (commit,) = re.findall(f"{world.hub.url}/org/first/commit/([0-9a-f]{{40}})", done.stderr)
    there = files_at(world, "org/first", commit)
    assert {n: data for n, data in there.items() if n in here} == here
    assert there.keys() - here.keys() == {"README.md", ".gitattributes"} and not (out / "README.md").exists()
    assert b"speculative-decoding" in there["README.md"] and b"org/first" in there["README.md"]
    assert done.json["outcome"] == "converted"  # alone on stdout

    elsewhere = Client(tmp_path / "another", HF_ENDPOINT=world.hub.url)
    again = elsewhere("validate", f"org/first@{commit}", *CHECKS, "--json", token=OTHER)
    verified = elsewhere("seal", "verify", f"org/first@{commit}", token=OTHER)
    elsewhere.close()
    assert (again.code, verified.code) == (0, 0), again.text + verified.text
    sealed = json.loads((out / seal.NAME).read_text())
    for key in ("scores", "level", "anchors"):
        assert again.json["proof"][key] == sealed["proof"][key], key


def test_there_is_nothing_to_do_twice(world: World, folder: Path) -> None:
    before = commits(world.hub.repositories["org/first"])
    for _ in range(2):
        done = push(world, folder, "org/first", "--json")
        assert done.code == 0 and done.json["outcome"] == "unchanged" and "nothing to do" in done.stderr
        assert {a.method for a in world.hub.asked} <= {"GET", "HEAD"}
    assert_published(done.json, "push")
    assert done.json["commit"] == world.hub.repositories["org/first"].refs["main"]
    assert commits(world.hub.repositories["org/first"]) == before


@pytest.mark.parametrize("name", ["README.md", "LICENSE", "config.json", "eagle3-seal.sig"])
@pytest.mark.parametrize("sealed", ["with digests", "by size", "not"])
def test_a_link_out_of_the_folder_is_not_published(
    sealed: str, name: str, world: World, folder: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"auths": "PRIVATE"}))
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(mine)
    document = json.loads((folder / seal.NAME).read_text())
    if sealed == "by size":
        rows = [row for row in document["files"] if row["name"] != name]
        document["files"] = [*rows, {"name": name, "size": mine.stat().st_size, "sha256": ""}]
        (folder / seal.NAME).write_text(json.dumps(document))
    elif sealed == "not":
        (folder / seal.NAME).unlink()
    done = push(world, folder, "org/linked", "--require", "none", "-v")
    if sealed == "with digests" and name == "config.json":  # what it must hold is known
        refused(done, 1, "C233")
    elif done.code == 0:  # it does not go at all
        assert (sealed, name) in (("with digests", "LICENSE"), ("not", "eagle3-seal.sig"))
        assert name not in head(world, "org/linked")
    else:
        refused(done, 1, "H444", f"{name} is a link")
    assert "PRIVATE" not in done.text
    if "org/linked" in world.hub.repositories:
        assert all(b"PRIVATE" not in data for data in head(world, "org/linked").values())


def test_a_sealed_file_may_lie_elsewhere(world: World, folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(tmp_path / "weights")
    (folder / "model.safetensors").symlink_to(tmp_path / "weights")
    done = push(world, folder, "org/elsewhere")
    assert done.code == 0 and head(world, "org/elsewhere")["model.safetensors"] == (tmp_path / "weights").read_bytes()


def test_a_token_in_an_address_is_not_told(world: World, folder: Path) -> None:
    """As git keeps it in the address of a remote."""
    for address in (f"https://me:{OWNER}@huggingface.co/org/x", f"hf://me:{OTHER}@org/x"):
        for words in (("push", folder, address, "--yes"), ("validate", address, "--json"), ("inspect", address),
                      ("validate", folder, "--target", address, "--json"), ("seal", "verify", address)):  # fmt: skip
            done = world(*words)
            assert done.code in (2, 3) and "hf_" not in done.text and "***" in done.text, done.text


def test_only_the_drafter_goes(world: World, folder: Path) -> None:
    for name in (".env", "notes.txt", "optimizer.pt", "stray.safetensors"):
        (folder / name).write_text(f"secret {name}")
    for name in (".cache", "runs"):
        (folder / name).mkdir()
        (folder / name / "x").write_text("x")
    done = push(world, folder, "org/only", "--private", "-v")
    assert done.code == 0, done.text
    assert "stays here: .cache/, .env, notes.txt, optimizer.pt, runs/, stray.safetensors" in done.stdout
    listed = {f["name"] for f in json.loads((folder / seal.NAME).read_text())["files"]}
    assert head(world, "org/only").keys() == {*listed, seal.NAME, "README.md", ".gitattributes"}
    # And nobody sees it who may not.
    assert world.hub.repositories["org/only"].private
    assert world("inspect", "org/only", token=OWNER).code == 0
    assert world("inspect", "org/only", token=OTHER).code == world("inspect", "org/only").code == 3

    world.hub.create("org/seen", {})
    refused(push(world, folder, "org/seen", "--private"), 1, "H443", "org/seen is public")
    assert not asked(world, "POST")


def test_a_pull_request(world: World, folder: Path) -> None:
    theirs = world.hub.create("elsewhere/theirs", {"README.md": b"# Theirs\n\nTheir own words.\n"})
    before = theirs.refs["main"]
    refused(push(world, folder, "elsewhere/theirs"), 4, "H423", "namespace", "--create-pr")
    done = push(world, folder, "elsewhere/theirs", "--create-pr", "--json")
    assert done.code == 0, done.text
    assert (theirs.refs["main"], done.json["pull_request"]) == (before, "refs/pr/1")
    assert done.json["url"].endswith("/elsewhere/theirs/discussions/1") and done.json["url"] in done.stderr
    assert "eagle3-validate elsewhere/theirs@refs/pr/1 --target TARGET --sample" in done.stderr
    assert "Their own words." in head(world, "elsewhere/theirs", "refs/pr/1")["README.md"].decode()
    assert world("inspect", "elsewhere/theirs@refs/pr/1").code == 0
    refused(push(world, folder, "elsewhere/theirs", "--revision", "refs/pr/9"), 4, "H403", "no revision refs/pr/9")


def test_branches(world: World, folder: Path) -> None:
    repository = world.hub.create("org/branches", {"notes.md": b"theirs"})
    done = push(world, folder, "org/branches", "--revision", "dev/one", "--message", "one\nmore")
    assert done.code == 0 and "branch dev/one (new, from main at" in done.stdout, done.text
    assert set(head(world, "org/branches")) == {".gitattributes", "notes.md"}
    assert {"notes.md", "model.safetensors"} < head(world, "org/branches", "dev/one").keys()
    assert push(world, folder, "org/branches@dev/one").stdout.startswith("nothing to do: org/branches@dev/one")
    # A branch that has all of it from the start.
    assert push(world, folder, "org/branches").code == 0
    before = commits(repository)
    assert push(world, folder, "org/branches", "--revision", "same").code == 0
    assert repository.refs["same"] == repository.refs["main"] and commits(repository) == before
    # A new repository has main, too.
    assert push(world, folder, "org/fresh", "--revision", "dev").code == 0
    assert set(head(world, "org/fresh")) == {".gitattributes"} and seal.NAME in head(world, "org/fresh", "dev")
    refused_usage = push(world, folder, f"org/branches@{repository.refs['main']}")
    assert refused_usage.code == 2 and "is a commit" in refused_usage.stderr


def test_what_was_of_an_older_drafter_is_deleted(world: World, folder: Path) -> None:
    names = (
        "config.json",
        "model.safetensors.index.json",
        "model-00001-of-00001.safetensors",
        "../up",
        ".gitattributes",
    )
    old = {"schema": seal.SCHEMA, "files": [{"name": name} for name in names]}
    theirs: dict[str, Path | bytes | None] = {
        "model-00001-of-00001.safetensors": b"old", "model.safetensors.index.json": b"{}", "figure.png": b"png",
        seal.NAME: json.dumps(old).encode(),
    }  # fmt: skip
    repository = world.hub.create("org/old", {**theirs, "other.safetensors": b"of nobody"})
    refused(push(world, folder, "org/old"), 1, "H441", "other.safetensors", "hf repos delete-files org/old")
    repository.commit({"other.safetensors": None})
    done = push(world, folder, "org/old", "--json")
    assert done.code == 0, done.text
    assert done.json["deleted"] == ["model-00001-of-00001.safetensors", "model.safetensors.index.json"]
    assert "deleted  model-00001-of-00001.safetensors" in done.stderr
    there = head(world, "org/old")
    assert not set(done.json["deleted"]) & there.keys() and {"figure.png", ".gitattributes"} < there.keys()
    repository.commit({"other.safetensors": b"of nobody"})
    done = push(world, folder, "org/old", "--allow", "h441", "--json")
    assert done.code == 0 and done.json["findings"][0]["allowed"], done.text


# --- what may not go ----------------------------------------------------------------------------------------


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        document = json.loads((folder / seal.NAME).read_text())
        change(document)
        seal.write_json(folder / seal.NAME, document)

    return apply


ALLOWED = error("K103", "what was trained is lost").as_json() | {"allowed": True}


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda f: (f / seal.NAME).unlink(), "H413", "org/never --target TARGET --sample SAMPLE"),
        (lambda f: (f / "config.json").write_bytes(b"{}"), "C233", "config.json has 2 bytes"),
        (edit(lambda d: d.update(files=[f for f in d["files"] if f["name"] != "config.json"])), "C233",
         "config.json was not there"),
        (lambda f: (f / "model.safetensors").write_bytes(bytes((f / "model.safetensors").stat().st_size)), "C233",
         "model.safetensors has other contents"),
        (lambda f: (f / "model.safetensors").unlink(), "C233", "model.safetensors is gone"),
        (edit(lambda d: d["proof"].update(level="agreement")), "H414", "or run the checks now: eagle3 push"),
        (edit(lambda d: [row.update(sha256="") for row in d["files"]]), "H420", "without --no-digest"),
        (edit(lambda d: d["findings"].append(ALLOWED)), "H421", "--allow K103"),
    ],
)  # fmt: skip
def test_what_may_not_go_is_refused_before_anything_is_asked(
    world: World, folder: Path, change: Any, code: str, words: str
) -> None:
    change(folder)
    done = push(world, folder, "org/never", "--json")
    refused(done, 1, code, words, "Nothing was sent.")
    assert done.json["outcome"] == "refused" and code in [f["code"] for f in done.json["findings"]]
    assert_published(done.json, "push")
    assert world.hub.asked == [] and "org/never" not in world.hub.repositories


def test_a_seal_that_cannot_be_relied_on_lets_nothing_go(world: World, folder: Path) -> None:
    newer = {"schema": "eagle3-convert/seal/9"}
    certain = json.loads((folder / seal.NAME).read_text())
    certain["proof"]["level"] = "certain"
    for text in ("{", *map(json.dumps, ({"schema": seal.SCHEMA, "files": []}, newer, certain))):
        (folder / seal.NAME).write_text(text)
        for more in ((), ("--require", "none"), ("--prove", "--target", TARGET, "--require", "agreement")):
            refused(push(world, folder, "org/never", *more), 3, "H415")
    assert world.hub.asked == [] and "org/never" not in world.hub.repositories


def test_what_is_let_go_by_name(world: World, folder: Path) -> None:
    edit(lambda d: (d["findings"].append(ALLOWED), d["allowed"].append("K103")))(folder)
    done = push(world, folder, "org/allowed", "--allow", "K103")
    assert done.code == 0 and b"K103" in head(world, "org/allowed")["README.md"], done.text

    edit(lambda d: d["proof"].update(level="agreement"))(folder)
    assert push(world, folder, "org/lower", "--allow", "K103", "--require", "agreement").code == 0
    (folder / seal.NAME).unlink()
    done = push(world, folder, "org/bare", "--require", "none")
    assert done.code == 0 and "NOT PROVED" in done.stdout and "warning H413" in done.stdout, done.text
    assert head(world, "org/bare").keys() == {"config.json", "model.safetensors", ".gitattributes"}
    (folder / "config.json").unlink()
    assert push(world, folder, "org/bare", "--require", "none").code == 3


def test_a_gitignore_in_the_repository(world: World, folder: Path) -> None:
    """By which the client would leave out files of the commit, without a word."""
    world.hub.create("org/ignoring", {".gitignore": b"*.safetensors\nconfig.json\n"})
    for words in ((), ("--revision", "dev"), ("--create-pr",)):
        refused(push(world, folder, "org/ignoring", *words), 4, "H445", "leaves out model.safetensors, config.json")
    repository = world.hub.repositories["org/ignoring"]
    assert repository.refs.keys() == {"main"} and head(world, "org/ignoring").keys() == {".gitattributes", ".gitignore"}
    repository.commit({".gitignore": b"*.log\n"})
    assert push(world, folder, "org/ignoring").code == 0
    assert head(world, "org/ignoring").keys() >= {p.name for p in folder.iterdir()}


def test_a_seal_in_the_repository_that_is_none(world: World, folder: Path) -> None:
    for number, text in enumerate((b"[" * 100_000, b"{", b"[]", b"\xff")):
        world.hub.create(f"org/seal{number}", {seal.NAME: text})
        assert push(world, folder, f"org/seal{number}").code == 0
        assert head(world, f"org/seal{number}")[seal.NAME] == (folder / seal.NAME).read_bytes()


def test_shards_of_pickles_go_with_their_index(world: World, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    tensors, folder = load_file(A / "model.safetensors"), tmp_path / "in"
    folder.mkdir()
    shutil.copy(A / "config.json", folder)
    names = {n: f"pytorch_model-0000{i % 2 + 1}-of-00002.bin" for i, n in enumerate(tensors)}
    for file in set(names.values()):
        torch.save({n: t for n, t in tensors.items() if names[n] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))
    assert push(world, folder, "org/pickles", "--require", "none").code == 0
    assert head(world, "org/pickles").keys() - {".gitattributes"} == {p.name for p in folder.iterdir()}
    assert world("inspect", "org/pickles", token=OWNER).code == 0


def test_checks_that_are_run_now(world: World, folder: Path) -> None:
    """Count for what they reach; the seal that goes has what is new, the folder is as it was."""
    for key in ("level", "scores", "sample"):
        edit(lambda d, key=key: d["proof"].update({key: "none" if key == "level" else None}))(folder)  # type: ignore[misc]
    edit(lambda d: [row.update(sha256="") for row in d["files"]])(folder)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    done = push(world, folder, "org/checked", *CHECKS, "--json")
    assert done.code == 0 and done.json["proof"] == {"level": "anchored", "required": "sample", "checked_now": True}
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    there = head(world, "org/checked")
    sealed = json.loads(there[seal.NAME])
    assert_published(sealed, "seal")
    assert sealed["proof"]["level"] == "anchored" and all(row["sha256"] for row in sealed["files"])
    assert push(world, folder, "org/checked", *CHECKS, "--json").json["outcome"] == "unchanged"
    # A seal that somebody signed goes as it is.
    (folder / SIGNATURE).write_text("signed")
    assert push(world, folder, "org/signed", *CHECKS).code == 0
    there = head(world, "org/signed")
    assert there[seal.NAME] == before[seal.NAME] and there[SIGNATURE] == b"signed"
    (folder / SIGNATURE).unlink()
    # Random states prove less, whatever the seal says.
    edit(lambda d: d["proof"].update(level="measured"))(folder)
    refused(push(world, folder, "org/more", "--prove", "--target", TARGET), 1, "H414", "level 'agreement'")
    # A trainer's own form: good for one engine as it lies, and not for another.
    done = push(world, A, "org/as-trained", *CHECKS, "--engine", "vllm==0.33.0", "--json")
    assert done.code == 0 and seal.NAME not in head(world, "org/as-trained"), done.text
    refused(
        push(world, A, "org/not-served", *CHECKS, "--engine", "sglang==0.5.23"), 1, "H422", "works after conversion"
    )
    assert world.hub.asked == []


# --- who may ------------------------------------------------------------------------------------------------


def test_tokens(world: World, folder: Path) -> None:
    before = dict(world.hub.repositories["org/first"].refs)
    (folder / "README.md").write_text("# Mine\n")
    for token, words in (
        ("", "without a token"),
        ("hf_wrong_0b1c", "does not accept the token"),
        (READER, "this token has not the role write"),
        (OTHER, 'namespace "org"'),
    ):
        for repo in ("org/first", "org/unborn"):
            done = push(world, folder, repo, token=token)
            refused(done, 4, "H423", words, "hf auth login")
            assert done.stderr.lstrip().startswith("Not pushed.\n")
            # Of a repository that is not there nobody takes a pull request.
            assert ("--create-pr" in done.text) == (token in (READER, OTHER) and repo == "org/first")
            assert not token or token not in done.text
        assert asked(world, "POST", "/commit/") == [] and "org/unborn" not in world.hub.repositories
    assert world.hub.repositories["org/first"].refs == before

    # The token that the client keeps itself.
    (world.home / "token").write_text(OWNER)
    assert push(world, folder, "org/first", token="").code == 0
    (world.home / "token").unlink()
    assert head(world, "org/first")["README.md"].startswith(b"# Mine") is False  # the metadata comes first
    assert b"# Mine" in head(world, "org/first")["README.md"]


def test_the_search_for_tokens_finds_them(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "report.html").write_text(f"<p>{OWNER}")
    (tmp_path / "token").write_text(OWNER)
    found = leaks([OWNER], [tmp_path], ["all well", f"Bearer {OWNER}"])
    assert len(found) == 2 and found[1].endswith("report.html")
    (tmp_path / "a" / "report.html").unlink()  # all that is written here is searched


def test_offline(first: tuple[Path, Done], world: World, tmp_path: Path) -> None:
    offline = Client(tmp_path, HF_HUB_OFFLINE="1", HF_ENDPOINT=world.hub.url)
    done = offline("push", first[0], "org/first", "--yes", token=OWNER)
    refused(done, 4, "H440", "HF_HUB_OFFLINE is set")
    done = offline("convert", A, tmp_path / "out", *CHECKS, "--push-to-hub", "org/first", token=OWNER)
    refused(done, 4, "H440")
    assert not (tmp_path / "out").exists()
    offline.close()


# --- faults -------------------------------------------------------------------------------------------------


def test_a_busy_hub(world: World, folder: Path) -> None:
    """Each request in turn; the client itself waits a second longer than it is told to."""
    api = "/api/models/org/busy"
    world.hub.faults = [
        Fault(api, 503, retry_after="0"),
        Fault("/api/validate-yaml", 429, retry_after="0", method="POST"),
        Fault("/api/repos/create", 503, retry_after="0", method="POST"),
        Fault(f"{api}/preupload", 503, retry_after="0", method="POST"),
        Fault("/org/busy.git/info/lfs/objects/batch", 429, retry_after="0", method="POST"),
        Fault("/upload/org/busy", 503, retry_after="0", method="PUT"),
        Fault(f"{api}/commit", 429, retry_after="0", method="POST"),
        Fault(f"{api}/commit", 503, retry_after="0", method="POST"),
    ]
    done = push(world, folder, "org/busy")
    assert done.code == 0 and commits(world.hub.repositories["org/busy"]) == 2, done.text
    log = world.client.log.read_text()
    assert "thrown while requesting PUT" in log and "of-this-upload" not in log  # which is a right to write
    assert asked(world, "POST", "/commit/") == [429, 503, 200]

    world.hub.faults = [Fault("/api/models/org/down/commit", 429, retry_after="0", method="POST", times=3)]
    done = push(world, folder, "org/down")
    refused(done, 4, "H425", "answers 429: busy", "org/down was created, and is empty", "not sent twice")
    assert list(head(world, "org/down")) == [".gitattributes"]
    assert push(world, folder, "org/down").code == 0 and asked(world, "PUT") == []


def test_a_connection_that_breaks(world: World, folder: Path) -> None:
    """In the second part of three."""
    repository = world.hub.create("org/cut", {})
    world.hub.faults = [Fault("/2", after=30_000, method="PUT")]
    done = push(world, folder, "org/cut")
    assert done.code == 0 and head(world, "org/cut")["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    parts = "".join(a.path[-1] for a in world.hub.asked if a.method == "PUT")
    assert parts in ("1223", "12123")  # the second of huggingface_hub 1.0.1, which begins the file again
    assert [a.received for a in world.hub.asked if a.method == "PUT"][1] == 30_000

    # The answer to the commit is lost: what it did is found, and not done twice.
    (folder / "README.md").write_text("# Once\n")
    before, world.hub.faults = commits(repository), [Fault("/commit/", method="POST", lost=True)]
    done = push(world, folder, "org/cut")
    assert done.code == 0 and commits(repository) == before + 1, done.text
    assert f"/org/cut/commit/{repository.refs['main']}" in done.stdout

    # Nor is the Hub there to be asked: whether it was done is not known, and nothing else is said.
    (folder / "README.md").write_text("# Twice\n")
    before, api = commits(repository), "/api/models/org/cut"
    away = Fault(f"{api}/revision", 503, retry_after="0", times=9)
    world.hub.faults = [
        Fault("/commit/", method="POST", do=lambda: world.hub.faults.append(away), lost=True),
        Fault("/commit/", 500, method="POST", times=2),
    ]
    done = push(world, folder, "org/cut")
    refused(done, 4, "H425", "did not answer the commit", "hether it was made is not known")
    assert "othing was committed" not in done.text and commits(repository) == before + 1
    world.hub.faults = []
    assert push(world, folder, "org/cut").stdout.startswith("nothing to do")
    (folder / "README.md").write_text("# Thrice\n")
    world.hub.faults = [Fault("/commit/", method="POST", lost=True)]
    done = push(world, folder, "org/cut", "--create-pr")
    refused(done, 4, "H425", "hether the pull request was opened is not known", "org/cut/discussions")

    # A URL of the storage that is too old.
    world.hub.faults = [Fault("/upload/org/late", 403, words="Request has expired", method="PUT")]
    refused(push(world, folder, "org/late"), 4, "H425", "storage", "Request has expired", "Nothing was committed")
    world.hub.full = True
    refused(push(world, folder, "org/late"), 4, "H425", "Storage limit reached")
    world.hub.full = False


def test_a_push_that_is_killed(world: World, large: Path, tmp_path: Path) -> None:
    """Nothing can be seen of it, and the next sends only what is missing."""
    repository, parts = world.hub.create("org/killed", {}), world.hub.parts
    before, reached, over = repository.refs["main"], threading.Event(), threading.Event()
    digest = {f["name"]: f["sha256"] for f in json.loads((large / seal.NAME).read_text())["files"]}

    def hold() -> None:
        reached.set()
        over.wait(20)

    world.hub.asked.clear()
    world.hub.faults, world.hub.parts = [Fault(digest["tokenizer.model"], do=hold, method="PUT")], 0
    words = [sys.executable, "-m", "converter", "push", str(large), "org/killed", "--yes", "--require", "none"]
    environment = environment_of(tmp_path / "home", HF_ENDPOINT=world.hub.url, HF_TOKEN=OWNER)
    process = subprocess.Popen(
        words, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert reached.wait(20)
    for _ in range(200):
        if digest["model.safetensors"] in repository.objects:
            break
        threading.Event().wait(0.05)
    process.send_signal(signal.SIGKILL)
    Client.said.append(process.communicate()[0])
    over.set()
    assert repository.refs == {"main": before}

    assert push(world, large, "org/killed", "--require", "none").code == 0
    assert [digest["tokenizer.model"] in a.path for a in world.hub.asked if a.method == "PUT"] == [True]
    assert head(world, "org/killed")["tokenizer.model"] == bytes(11 << 20)
    world.hub.parts = parts


def test_a_file_that_changes_while_it_is_sent(world: World, large: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(large, tmp_path / "changing"))
    repository, parts = world.hub.create("org/changing", {}), world.hub.parts
    before, world.hub.parts = dict(repository.refs), 0

    def change() -> None:
        with (folder / "tokenizer.model").open("r+b") as file:
            file.write(b"other")

    world.hub.faults = [Fault("/upload/", do=change, method="PUT", times=2)]
    done = push(world, folder, "org/changing", "--require", "none")
    world.hub.parts = parts
    refused(done, 4, "H426", "tokenizer.model was written to")
    assert repository.refs == before and asked(world, "POST", "/commit/") == []


def test_somebody_else_commits(world: World, folder: Path) -> None:
    repository = world.hub.create("org/both", {})
    theirs = {"theirs.txt": b"theirs"}
    world.hub.faults = [Fault("/commit/", do=lambda: repository.commit(dict(theirs)), method="POST")]
    done = push(world, folder, "org/both")
    refused(done, 4, "H424", "A commit has happened since", "push was planned")
    assert set(head(world, "org/both")) == {".gitattributes", "theirs.txt"}
    assert push(world, folder, "org/both").code == 0 and asked(world, "PUT") == []
    assert head(world, "org/both")["theirs.txt"] == b"theirs"


def test_a_card_that_the_hub_does_not_take(world: World, folder: Path) -> None:
    (folder / "README.md").write_text("---\nlanguage: {en: 1}\n---\n# Mine\n")
    done = push(world, folder, "org/card")
    refused(done, 4, "H442", '"language" must be a string')
    assert "org/card" not in world.hub.repositories and (folder / "README.md").read_text().endswith("# Mine\n")


# --- the command line ---------------------------------------------------------------------------------------


def test_an_answer_of_another_shape_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list where the Hub gives an object."""
    refusal = SimpleNamespace(status_code=400, json=lambda: ["errors"])
    monkeypatch.setattr("huggingface_hub.utils.get_session", lambda: SimpleNamespace(post=lambda *_, **__: refusal))
    to = HubId("org/name")
    with pytest.raises(SendError) as caught:
        send(There(to, "a" * 40, branch=True), [outgoing("README.md", b"# A")], [], "", False, False)
    assert caught.value.finding.code == "H425"


def test_what_is_said_of_where_it_goes() -> None:
    to = HubId("org/name")
    for private, words in ((True, "a private repository"), (False, "a public repository"), (None, "a repository")):
        said = _where(Push(Asked(Path("out"), to), there=There(to, "a" * 40, branch=True, private=private)))
        assert said == f"branch main of {words}"


@pytest.mark.parametrize("answer", [b"n\n", b"\x04"], ids=["no", "the end"])
def test_it_asks_on_a_terminal(world: World, folder: Path, tmp_path: Path, answer: bytes) -> None:
    done = world("push", folder, "org/asked", token=OWNER)
    assert done.code == 2 and "add --yes" in done.stderr and world.hub.asked == []
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    environment = environment_of(tmp_path / "home", HF_ENDPOINT=world.hub.url, HF_TOKEN=OWNER)
    words = [sys.executable, "-m", "converter", "push", str(folder), "org/asked"]
    done = subprocess.run(words, env=environment, cwd=ROOT, stdin=theirs, capture_output=True, text=True, check=False)
    Client.said.append(done.stdout + done.stderr)
    assert done.returncode == 130 and "nothing was sent" in done.stderr, done
    assert "a new repository" in done.stdout and "model.safetensors" in done.stdout and "Push it?" in done.stderr
    assert not asked(world, "POST") and "org/asked" not in world.hub.repositories


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--push-to-hub", "org/x"), "'sample' is required"),
        (("--push-to-hub", "org/x", "--prove"), "will be 'agreement'"),
        (("--push-to-hub", "name", "--require", "none"), "expected org/name"),
        (("--push-to-hub", "hf://org/x/folder", "--require", "none"), "top of a repository"),
        (("--push-to-hub", "org/x", "--dry-run", "--sample", str(SAMPLE)), "--dry-run"),
        (("--push-to-hub", "org/x@dev", "--create-pr", "--sample", str(SAMPLE)), "the branch dev"),
        (("--private",), "--push-to-hub REPO"),
        (("--require", "none"), "--push-to-hub REPO"),
    ],
)
def test_a_conversion_that_could_not_be_pushed_does_not_begin(tmp_path: Path, words: Any, says: str) -> None:
    done = eagle3("convert", A, tmp_path / "out", *words)
    assert done.returncode == 2 and says in " ".join(done.stderr.split()), done
    assert not (tmp_path / "out").exists()


def test_a_conversion_whose_push_fails_is_whole(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = ("convert", A, out, "--target", TARGET, "--push-to-hub", "org/failing", "--require", "none", "--private")
    done = world(*given, token=READER)
    refused(done, 4, "H423")
    assert f"eagle3 push {out} org/failing --private --require none" in done.stderr
    assert done.stdout.startswith("Converted, not proved.")
    assert gate.may_leave(seal.read_seal(out), seal.listing(out), "it", "none") == []
    assert world(*given, "--force", token=OWNER).code == 0 and world.hub.repositories["org/failing"].private
    # And what was refused is not pushed.
    done = world("convert", A, tmp_path / "no", "--target-arch", "Unheard", "--push-to-hub", "org/no", "--require",
                 "none", token=OWNER)  # fmt: skip
    assert done.code == 1 and world.hub.asked == [] and not (tmp_path / "no").exists()


def test_the_server_refuses_what_the_hub_refuses(world: World) -> None:
    """A commit that names an object which was never sent, or has another size; one without a token."""
    import urllib.error
    import urllib.request

    hub: Hub = world.hub
    repository = hub.create("org/strict", {})
    row = {"path": "model.safetensors", "algo": "sha256", "oid": "0" * 64, "size": 5}

    def commit(*rows: dict[str, Any], token: str = OWNER) -> int:
        lines = [{"key": "header", "value": {"summary": "x"}}, *rows]
        data = "\n".join(map(json.dumps, lines)).encode()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"{hub.url}/api/models/org/strict/commit/main", data, headers, method="POST")
        try:
            with urllib.request.urlopen(request) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as problem:
            return problem.code

    before = dict(repository.refs)
    assert commit({"key": "lfsFile", "value": row}) == 400
    there = repository.keep("model.safetensors", b"four")
    assert commit({"key": "lfsFile", "value": row | {"oid": there.sha256}}) == 400
    assert commit({"key": "deletedFile", "value": {"path": "nothing"}}) == 404
    assert [commit(token=t) for t in ("", READER, OTHER)] == [401, 403, 403]
    assert repository.refs == before
    assert commit({"key": "lfsFile", "value": row | {"oid": there.sha256, "size": 4}}) == 200
    assert world.client.api("whoami", token=READER)["auth"]["accessToken"]["role"] == "read"


def test_levels_are_those_of_the_option() -> None:
    done = eagle3("push", "--help")
    assert "|".join(LEVELS) in done.stdout.replace("\n", "").replace(" ", "")

"""What keeps a push back, without git-lfs: repositories as git-lfs leaves them, looked at as the hook does."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from converter import seal
from converter.errors import InputError, UsageError
from converter.hook.check import Looked, look_at
from converter.hook.git import Git, Objects
from converter.hook.lfs import Pointer, parse_pointer
from converter.hook.policy import Policy, parse_policy
from converter.hook.pushed import Ref, refs_of_git, refs_of_pre_commit
from converter.rules.recognition import may_be_drafter
from tests.clones import Clone, environment, git, said, sealed_output
from tests.hub_repository import pointer
from tests.support import DRAFTERS, PRODUCERS, TARGET, eagle3, eagle3_process

A, B = "a" * 40, "b" * 40
NOTHING = "0" * 40


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(tmp_path / "home").items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sealed_output(tmp_path_factory.mktemp("sealed") / "out")


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "clone", tmp_path / "remote.git")


def look(clone: Clone, *refs: str, remote: str | None = "origin", before: str = "") -> list[Looked]:
    oids = {ref: said(clone.folder, "rev-parse", ref) for ref in refs or ("HEAD",)}
    return look_at(Git(clone.folder), [Ref(ref, oid, before) for ref, oid in oids.items()], remote)


def codes(found: list[Looked]) -> dict[str, list[str]]:
    """Path, and commit where it is no tip's: codes of what keeps it back; of the seal alone where it is one of them."""
    return {f.folder.path + ("" if f.folder.tip else f"@{f.folder.commit[:7]}"): held_by(f) for f in found}


def held_by(found: Looked) -> list[str]:
    held = [f.code for f in found.findings]
    return [code for code in held if code == "C233" or code[0] == "H"] or held


def there(clone: Clone, commit: str = "HEAD", remote: str = "origin") -> None:
    """As if `commit` had been pushed."""
    git(clone.folder, "update-ref", f"refs/remotes/{remote}/main", commit)


# --- the seal against the pointers ----------------------------------------------------------------------------


def test_a_sealed_drafter_is_held_against_its_pointers_alone(clone: Clone, sealed: Path) -> None:
    clone.add(sealed, "drafts/one", pointers=True)
    clone.commit()
    shutil.rmtree(clone.store)
    (clone / "drafts/one/model.safetensors").unlink()
    [found] = look(clone)
    assert (found.state, found.level, found.findings) == ("sealed", "anchored", ())
    done = eagle3("hook", "check", "--repo", clone.folder)
    assert (done.returncode, done.stdout) == (0, "eagle3: 1 drafter, sealed, proved: anchored\n")


def test_plain_files_are_digested_once_and_small_ones_alone_are_read(clone: Clone, sealed: Path) -> None:
    for name in ("one", "two", "three"):
        clone.add(sealed, name)
    clone.commit()
    assert codes(look(clone)) == {"one": [], "two": [], "three": []}
    with Objects(Git(clone.folder)) as objects:
        oid = said(clone.folder, "rev-parse", "HEAD:one/model.safetensors")
        assert objects.sha256(oid) == seal.sha256_of(sealed / "model.safetensors") == objects.sha256(oid)
        assert objects.bytes_read == (sealed / "model.safetensors").stat().st_size


def change(name: str, edit: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(edit((folder / name).read_bytes())) and None  # type: ignore[func-returns-value]


def without_config(text: bytes) -> bytes:
    document = json.loads(text)
    document["files"] = [row for row in document["files"] if row["name"] != "config.json"]
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (
            change("model.safetensors", lambda t: t.replace(b"sha256:", b"sha256:0")),
            ["C233"],
        ),  # no pointer any more
        (change("model.safetensors", lambda t: pointer("0" * 64, 7).encode()), ["C233"]),
        (change("config.json", lambda t: t + b" "), ["C233"]),
        (lambda folder: (folder / "config.json").unlink(), ["C233"]),
        (lambda folder: (folder / "more.safetensors").write_text(pointer("1" * 64, 5)), ["C233"]),
        (change("eagle3-seal.json", lambda t: t.replace(b'"anchored"', b'"agreement"')), ["H414"]),
        (change("eagle3-seal.json", lambda t: t[:-9]), ["H415"]),
        (change("eagle3-seal.json", without_config), ["C233"]),
        (lambda folder: (folder / "eagle3-seal.json").unlink(), ["H413"]),
        (lambda folder: (folder / "eagle3-seal.json").write_text(pointer("2" * 64, 5)), ["H428"]),
        (lambda folder: (folder / "README.md").write_text("mine"), []),
    ],
)
def test_what_was_changed_since_it_was_sealed_stays(
    clone: Clone, sealed: Path, edit: Callable[[Path], Any], expected: list[str]
) -> None:
    edit(clone.add(sealed, "out", pointers=True))
    clone.commit()
    [found] = look(clone)
    assert held_by(found) == expected


def test_a_changed_drafter_is_also_told_to_be_broken_where_its_contents_are_here(clone: Clone, sealed: Path) -> None:
    folder = clone.add(sealed, "out", pointers=True)
    change("config.json", lambda t: t.replace(b'"num_attention_heads": 4', b'"num_attention_heads": 8'))(folder)
    clone.commit()
    [found] = look(clone)
    first, *others = found.findings
    assert first.code == "C233" and others and all(f.code == "T104" for f in others)
    assert not any("eagle3-" in f.where or "/tmp" in f.message for f in others)
    shutil.rmtree(clone.store)
    assert codes(look(clone)) == {"out": ["C233"]}
    (folder / "model.safetensors").write_text("no weights")
    clone.commit()
    [found] = look(clone, remote=None)
    assert [(f.code, f.where) for f in found.findings[1:]] == [("F101", "out/model.safetensors")]


def test_a_link_in_the_place_of_weights_is_a_change(clone: Clone, sealed: Path) -> None:
    folder = clone.add(sealed, "out")
    (folder / "model.safetensors").rename(clone / "elsewhere")
    (folder / "model.safetensors").symlink_to("../elsewhere")
    clone.commit()
    assert codes(look(clone)) == {"out": ["C233"]}


# --- without a seal -------------------------------------------------------------------------------------------


def test_what_is_a_drafter_and_what_is_not(clone: Clone) -> None:
    clone.add(DRAFTERS / "a_plain", "speculators", pointers=True)
    clone.add(PRODUCERS / "specforge_hf", "specforge", pointers=True)
    clone.add(TARGET, "target", pointers=True)
    (clone / "other").mkdir()
    (clone / "other" / "config.json").write_text("{}")
    (clone / "other" / "weights.safetensors").write_text("nothing")
    clone.commit()
    assert codes(look(clone)) == {"speculators": ["H413"], "specforge": ["H413"]}
    shutil.rmtree(clone.store)  # then the configs alone tell
    shutil.rmtree(clone / "speculators")
    shutil.rmtree(clone / "specforge")
    assert codes(look(clone)) == {"speculators": ["H413"], "specforge": ["H413"]}


def test_pickles_are_weights_where_there_are_no_safetensors(clone: Clone, sealed: Path) -> None:
    folder = clone.add(sealed, "out", pointers=True)
    (folder / "optimizer.pt").write_text("nothing that an engine loads")
    raw = clone.add(DRAFTERS / "a_plain", "raw")
    (raw / "model.safetensors").rename(raw / "pytorch_model.bin")
    (clone / ".eagle3.toml").write_text('unsealed = "allow"\n')
    clone.commit()
    assert [(f.folder.path, f.state, f.findings) for f in look(clone)] == [
        ("out", "sealed", ()),
        ("raw", "allowed", ()),
    ]


@pytest.mark.parametrize("folder", [*sorted(DRAFTERS.iterdir()), *sorted(p for p in PRODUCERS.iterdir() if p.is_dir())],
                         ids=lambda p: p.name)  # fmt: skip
def test_a_drafter_is_known_by_its_config_too(folder: Path) -> None:
    assert may_be_drafter(json.loads((folder / "config.json").read_text()), [])


@pytest.mark.parametrize(
    "config",
    [
        json.loads((TARGET / "config.json").read_text()),
        {"architectures": ["LlamaForCausalLM"], "hidden_size": 64},
        {"architectures": ["LlamaForCausalLMEagle"]},
        {"speculators_model_type": "eagle"},
        {"model_type": "medusa"},
        {},
    ],
)
def test_other_models_are_none(config: dict[str, Any]) -> None:
    assert not may_be_drafter(config, [])


def test_the_policy_may_leave_it_to_the_static_checks(clone: Clone) -> None:
    (clone / ".eagle3.toml").write_text('unsealed = "validate"\n')
    folder = clone.add(DRAFTERS / "a_plain", "raw", pointers=True)
    clone.commit()
    [found] = look(clone)
    assert (found.state, found.findings) == ("validated", ())
    (folder / "config.json").write_text((DRAFTERS / "c_nbfc" / "config.json").read_text())
    clone.commit()
    found = look(clone)[0]
    assert found.stopped and "H413" not in codes([found])["raw"]
    shutil.rmtree(clone.store)
    clone.add(DRAFTERS / "a_plain", "raw")
    (folder / "model.safetensors").write_text(said(clone.folder, "show", "HEAD:raw/model.safetensors") + "\n")
    clone.commit("--amend")
    assert codes(look(clone))["raw"] == ["H428"]
    (folder / "model.safetensors").write_bytes((DRAFTERS / "a_plain" / "model.safetensors").read_bytes())
    assert codes(look(clone))["raw"] == []  # the working tree has the contents
    (folder / "model.safetensors").write_bytes((DRAFTERS / "a_plain" / "model.safetensors").read_bytes()[:-1] + b"?")
    assert codes(look(clone))["raw"] == ["H428"]  # and now others
    pointed = parse_pointer(said(clone.folder, "show", "HEAD:raw/model.safetensors").encode())
    assert pointed is not None
    kept = clone.store / pointed.sha256[:2] / pointed.sha256[2:4] / pointed.sha256
    kept.parent.mkdir(parents=True)
    kept.write_text("cut short")
    assert codes(look(clone))["raw"] == ["H428"]


def test_the_policy_of_the_pushed_commit_counts(clone: Clone) -> None:
    clone.add(DRAFTERS / "a_plain", "raw")
    clone.commit()
    (clone / ".eagle3.toml").write_text('unsealed = "allow"\n')
    assert codes(look(clone)) == {"raw": ["H413"]}
    clone.commit()
    assert [f.state for f in look(clone)] == ["allowed"]
    (clone / ".eagle3.toml").write_text('ignore = ["r*"]\n')
    clone.commit()
    assert [f.state for f in look(clone)] == ["ignored"]
    (clone / ".eagle3.toml").write_text("require = 1\n")
    clone.commit()
    with pytest.raises(InputError, match=r"commit [0-9a-f]{7} cannot be followed: line 1: require") as problem:
        look(clone)
    assert problem.value.finding.code == "H427"
    done = eagle3("hook", "check", "--repo", clone.folder)
    assert done.returncode == 3 and "H427" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"require = sample", "line 1, column 11"),
        (b'\nunsealed = "ignore"', "line 2: unsealed: found"),
        (b'require = "none"\nrequired = "none"', "line 2: required: unknown key"),
        (b"ignore = [1]", "line 1: ignore"),
        (b"[ignore]\nx = 1", "line 1: ignore"),
        (b"\xff", "no UTF-8 text at byte 0"),
        (b"commits = true", "expected one of all, tips"),
        (b"ignore = " + b"[" * 30_000, "nested too deeply"),
        (b"#" * 70_000, "larger than 65,536 bytes"),
    ],
)
def test_a_policy_that_is_not_understood_stops_all(text: bytes, message: str) -> None:
    with pytest.raises(InputError) as problem:
        parse_policy(text, ".eagle3.toml")
    assert problem.value.finding.code == "H427" and message in problem.value.finding.message


def test_a_policy_as_it_is_written() -> None:
    text = b'require = "measured"\nunsealed = "allow"\ncommits = "tips"\nignore = ["old", "x/*/y", "."]\n'
    policy = parse_policy(text, "")
    assert policy == Policy("measured", "allow", "tips", ("old", "x/*/y", "."))
    assert parse_policy(b"", "") == Policy()
    assert [p for p in (".", "old", "old/deep", "older", "x/a/b/y", "x/y", "new") if policy.ignores(p)] == [
        ".", "old", "old/deep", "x/a/b/y",
    ]  # fmt: skip


def test_what_is_sent_counts_and_not_what_stands_for_it_here(clone: Clone, sealed: Path) -> None:
    """git push sends objects as they are; replace refs and grafts stay here."""
    folder = clone.add(sealed, "out")
    whole = clone.commit()
    contents = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(contents[:-1] + bytes([contents[-1] ^ 1]))
    changed = clone.commit()
    blobs = [said(clone.folder, "rev-parse", f"{commit}:out/model.safetensors") for commit in (changed, whole)]
    git(clone.folder, "replace", *blobs)
    assert codes(look(clone, before=whole)) == {"out": ["C233"]}
    git(clone.folder, "replace", "-d", blobs[0])
    (folder / "model.safetensors").write_bytes(contents)
    last = clone.commit()
    (clone / ".git/info/grafts").write_text(f"{last} {whole}\n")
    git(clone.folder, "config", "advice.graftFileDeprecated", "false")
    assert codes(look(clone, before=whole)) == {"out": [], f"out@{changed[:7]}": ["C233"]}


# --- what a push brings ---------------------------------------------------------------------------------------


def test_every_pushed_commit_counts_but_not_what_the_remote_has(clone: Clone, sealed: Path) -> None:
    folder = clone.add(sealed, "out", pointers=True)
    first = clone.commit()
    (folder / "config.json").write_text("{}")
    broken = clone.commit()
    clone.add(sealed, "out", pointers=True)
    clone.commit()
    assert codes(look(clone)) == {"out": [], f"out@{broken[:7]}": ["C233"]}
    assert codes(look(clone, before=first)) == {"out": [], f"out@{broken[:7]}": ["C233"]}
    assert codes(look(clone, before=broken)) == {"out": []}
    assert codes(look(clone, before=A)) == codes(look(clone))  # the remote has moved on, and its commit is not here
    there(clone, broken)
    assert codes(look(clone)) == {"out": []}
    git(clone.folder, "remote", "add", "second", "nowhere")
    assert codes(look(clone, remote="second")) == {"out": [], f"out@{broken[:7]}": ["C233"]}
    assert codes(look(clone, remote="https://example.org/x")) == {"out": [], f"out@{broken[:7]}": ["C233"]}
    assert codes(look(clone, "HEAD~")) == {"out": ["C233"]}  # what a ref shows counts, whoever has it
    assert codes(look(clone, remote=None)) == {"out": []}
    (clone / ".eagle3.toml").write_text('commits = "tips"\n')
    clone.commit()
    assert codes(look(clone, remote="second")) == {"out": []}


def test_a_commit_is_told_once_and_by_its_first_ref(clone: Clone, sealed: Path) -> None:
    folder = clone.add(sealed, "out", pointers=True)
    (folder / "config.json").write_text("{}")
    broken = clone.commit()
    shutil.rmtree(folder)
    clone.commit()
    git(clone.folder, "tag", "v1")
    git(clone.folder, "branch", "other")
    found = look(clone, "refs/heads/main", "refs/heads/other", "refs/tags/v1")
    assert codes(found) == {f"out@{broken[:7]}": ["C233"]}
    assert [f.folder.ref for f in found] == ["refs/heads/main"]


def test_a_folder_renamed_in_the_same_push(clone: Clone, sealed: Path) -> None:
    clone.add(sealed, "old", pointers=True)
    there(clone, clone.commit())
    git(clone.folder, "mv", "old", "new")
    clone.commit()
    assert codes(look(clone)) == {"new": []}
    (clone / "new" / "config.json").write_text("{}")
    clone.commit("--amend")
    assert codes(look(clone)) == {"new": ["C233"]}


def test_a_merge_that_puts_two_drafters_together(clone: Clone, sealed: Path) -> None:
    """Each file is one parent's, and the folder nobody's."""
    folder = clone.add(sealed, "out", pointers=True)
    (folder / "chat_template.jinja").write_text("one")
    clone.commit()
    git(clone.folder, "checkout", "-q", "-b", "side")
    (folder / "model.safetensors").write_text(pointer("3" * 64, 11))
    document = json.loads((folder / seal.NAME).read_text())
    for row in document["files"]:
        if row["name"] == "model.safetensors":
            row.update(size=11, sha256="3" * 64)
    (folder / seal.NAME).write_text(json.dumps(document))
    side = clone.commit()
    git(clone.folder, "checkout", "-q", "main")
    clone.commit()
    git(clone.folder, "merge", "-q", "--no-commit", "side")
    git(clone.folder, "checkout", "main", "--", f"out/{seal.NAME}")
    merge = clone.commit()
    assert codes(look(clone, remote=None)) == {"out": ["C233"]}
    git(clone.folder, "checkout", "side", "--", f"out/{seal.NAME}")
    clone.commit()
    assert codes(look(clone, before=side)) == {"out": [], f"out@{merge[:7]}": ["C233"]}


def test_tags_of_commits_trees_and_files(clone: Clone) -> None:
    clone.add(DRAFTERS / "a_plain", "raw")
    clone.commit()
    git(clone.folder, "tag", "-a", "-m", "one", "annotated")
    git(clone.folder, "tag", "-a", "-m", "two", "twice", "annotated")
    git(clone.folder, "tag", "tree", "HEAD^{tree}")
    git(clone.folder, "tag", "-a", "-m", "file", "file", "HEAD:raw/config.json")
    there(clone)
    for tag in ("annotated", "twice", "tree"):
        assert codes(look(clone, f"refs/tags/{tag}")) == {"raw": ["H413"]}
    assert look(clone, "refs/tags/file") == []
    with pytest.raises(InputError) as problem:
        look_at(Git(clone.folder), [Ref("refs/heads/x", A)], "origin")
    assert problem.value.finding.code == "H429"


def test_names_of_any_bytes(clone: Clone) -> None:
    names = [b'with "quotes"', b"new\nline", b"\xff\xfe", b"-n", b"$(touch x)"]
    for name in names:
        clone.add(DRAFTERS / "a_plain", os.fsdecode(name))
    clone.commit()
    assert set(codes(look(clone))) == set(map(os.fsdecode, names))
    done = eagle3("hook", "check", "--repo", clone.folder)
    assert done.returncode == 1 and "5 of 5 drafters" in done.stderr
    assert "\\udcff" in done.stderr and "\nnew\\nline, in" in done.stderr


def test_what_is_to_be_typed_is_what_a_shell_takes(clone: Clone) -> None:
    folder = clone.add(DRAFTERS / "a_plain", "my drafts/it's new")
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    clone.commit()
    [found] = look(clone)
    [finding] = [f for f in found.findings if f.code == "F108"]
    [fix] = finding.fix
    assert shlex.split(fix.rpartition("e.g. ")[2]) == ["my drafts/it's new/one.safetensors"]
    assert finding.where == "my drafts/it's new"


def test_the_top_folder_is_called_so(clone: Clone) -> None:
    clone.add(DRAFTERS / "a_plain", ".")
    clone.commit()
    done = eagle3("hook", "check", "--repo", clone.folder)
    assert done.returncode == 1 and "the top folder is not sealed" in done.stderr
    assert "--no-verify" not in done.stderr  # nothing is being pushed


def test_submodules_and_worktrees_and_shallow_clones(clone: Clone, sealed: Path, tmp_path: Path) -> None:
    clone.add(sealed, "out", pointers=True)
    git(clone.folder, "add", "out")
    git(clone.folder, "update-index", "--add", "--cacheinfo", f"160000,{A},out/module")
    git(clone.folder, "update-index", "--add", "--cacheinfo", f"160000,{A},module")
    git(clone.folder, "commit", "-q", "-m", "modules")
    assert "out/module" in said(clone.folder, "ls-tree", "-r", "--name-only", "HEAD")
    assert codes(look(clone)) == {"out": []}
    git(clone.folder, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    (tmp_path / "side" / "out" / "config.json").write_text("{}")
    git(tmp_path / "side", "commit", "-qam", "broken")
    oid = said(tmp_path / "side", "rev-parse", "HEAD")
    [found] = look_at(Git(tmp_path / "side"), [Ref("refs/heads/side", oid)], None)
    assert held_by(found) == ["C233"] and len(found.findings) > 1  # its store is the clone's
    for _ in range(2):
        clone.commit()
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{clone.folder}", tmp_path / "shallow"], check=True)
    head = said(tmp_path / "shallow", "rev-parse", "HEAD")
    assert codes(look_at(Git(tmp_path / "shallow"), [Ref("x", head)], "elsewhere")) == {"out": []}


def test_a_repository_with_longer_object_names(tmp_path: Path, sealed: Path) -> None:
    clone = Clone(tmp_path / "clone", tmp_path / "remote.git", "--object-format=sha256")
    folder = clone.add(sealed, "out", pointers=True)
    clone.commit()
    assert codes(look(clone)) == {"out": []} and len(said(clone.folder, "rev-parse", "HEAD")) == 64
    (folder / "config.json").write_text("{}")
    clone.commit()
    assert codes(look(clone))["out"] == ["C233"]


@pytest.mark.parametrize("name", [b"../x.safetensors", b"..", b"", b"/etc"])
def test_a_tree_that_leads_out_of_its_folder_is_not_followed(clone: Clone, name: bytes) -> None:
    """No git writes it, but a stranger's repository may hold it."""
    blob = said(clone.folder, "hash-object", "-w", "--stdin")
    raw = b"".join(b"100644 %s\0%s" % (part, bytes.fromhex(blob)) for part in (name, b"config.json"))
    made = subprocess.run(["git", "-C", clone.folder, "hash-object", "-w", "-t", "tree", "--literally", "--stdin"],
                          input=raw, capture_output=True, check=True)  # fmt: skip
    with pytest.raises(InputError, match="is damaged") as problem:
        look_at(Git(clone.folder), [Ref("x", made.stdout.decode().strip())], None)
    assert problem.value.finding.code == "H429"


def test_lines_of_git() -> None:
    text = f"refs/heads/a {A} refs/heads/b {B}\n:/fix it {A} refs/heads/c {NOTHING}\n(delete) {NOTHING} refs/x {A}\n"
    assert refs_of_git(text) == [Ref("refs/heads/b", A, B), Ref("refs/heads/c", A)]
    assert refs_of_git("") == []
    long = "c" * 64
    assert refs_of_git(f"x {long} y {'0' * 64}\n") == [Ref("y", long)]
    for line in ("what", f"a {A} b", f"a {A[:-1]} b {B}", f"a {A} b {B[:-1]}x"):
        with pytest.raises(UsageError, match="pre-push hook"):
            refs_of_git(line)


def test_variables_of_pre_commit(clone: Clone) -> None:
    head = clone.commit()
    where = Git(clone.folder)
    given = {"PRE_COMMIT_REMOTE_NAME": "origin", "PRE_COMMIT_REMOTE_BRANCH": "refs/heads/x"}
    assert refs_of_pre_commit({**given, "PRE_COMMIT_FROM_REF": B, "PRE_COMMIT_TO_REF": head}, where) == [
        Ref("refs/heads/x", head, B)
    ]
    assert refs_of_pre_commit({**given, "PRE_COMMIT_LOCAL_BRANCH": "refs/heads/main"}, where) == [
        Ref("refs/heads/x", head)
    ]
    for wrong in ({}, given, {"PRE_COMMIT_TO_REF": head}, {**given, "PRE_COMMIT_TO_REF": "--all"}):
        with pytest.raises(UsageError):
            refs_of_pre_commit(wrong, where)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (pointer(A[:32] * 2, 12), Pointer(A[:32] * 2, 12)),
        (pointer("a" * 64, 0).rstrip("\n"), Pointer("a" * 64, 0)),
        ("version https://git-lfs.github.com/spec/v1\next-0-foo sha256:" + "b" * 64 + "\noid sha256:" + "a" * 64
         + "\nsize 1\n", Pointer("a" * 64, 1)),
        (pointer("a" * 63, 1), None),
        (pointer("A" * 64, 1), None),
        (pointer("a" * 64, -1), None),
        (pointer("a" * 64, 1).replace("v1", "v9"), None),
        (pointer("a" * 64, 1) + "size 2\n", None),
        (pointer("a" * 64, 1) + "x" * 1024, None),
        ("version \n", None),
        ("", None),
        ("\0" * 100, None),
    ],
)  # fmt: skip
def test_pointers(text: str, expected: Pointer | None) -> None:
    assert parse_pointer(text.encode()) == expected


def test_the_hook_needs_neither_torch_nor_what_validates(clone: Clone, sealed: Path) -> None:
    """The way of a sealed drafter, by what is imported for it."""
    clone.add(sealed, "out", pointers=True)
    clone.commit()
    code = (
        "import sys\nfrom converter.cli import eagle3\n"
        f"eagle3(['hook', 'check', '--repo', {str(clone.folder)!r}], standalone_mode=False)"
    )
    probe = f"import sys\ntry:\n exec({code!r})\nexcept SystemExit as end:\n print(end.code, sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    said_first, _, modules = done.stdout.splitlines()[-1].partition(" ")
    assert said_first == "0"
    for name in ("torch", "rich", "jsonschema", "huggingface_hub", "converter.pipeline"):
        assert f"'{name}'" not in modules, name


def test_what_is_no_repository_or_no_revision(tmp_path: Path, clone: Clone) -> None:
    clone.commit()
    assert eagle3("hook", "check", "nowhere", "--repo", clone.folder).returncode == 3
    done = eagle3("hook", "check", "--repo", tmp_path)
    assert done.returncode == 3 and f"{tmp_path}: fatal: not a git repository" in done.stderr
    assert eagle3("hook", "check", "--repo", clone.folder).stdout == "eagle3: no drafter\n"
    assert eagle3_process("hook", "run").returncode == 2

"""A folder appears whole or not at all, whatever is there before, and whenever the process dies."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from converter.checkpoint import staging
from converter.checkpoint.staging import Staging, recover
from converter.errors import OutputError

REPOSITORY = Path(staging.__file__).parents[2]
EXCHANGE, FALLBACK = "exchange", "two renames"


def fill(folder: Path, text: str) -> None:
    (folder / "one").write_text(text)
    (folder / "two").write_text(text)


def old(out: Path) -> None:
    out.mkdir()
    fill(out, "old")


def state(out: Path) -> str:
    """absent, old or new; anything else is a mixture and fails."""
    if not os.path.lexists(out):
        return "absent"
    assert sorted(p.name for p in out.iterdir()) == ["one", "two"]
    [text] = {p.read_text() for p in out.iterdir()}
    return text


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def put(out: Path, replace: bool = False) -> None:
    with Staging(out) as stage:
        fill(stage.folder, "new")
        stage.commit(replace)


def no_exchange(source: Path, target: Path, flags: int) -> None:
    if flags == staging._RENAME_EXCHANGE:
        raise OSError(errno.EINVAL, "no exchange here")
    source.rename(target)


@pytest.fixture(params=[EXCHANGE, FALLBACK])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == FALLBACK:
        monkeypatch.setattr(staging, "_rename", no_exchange)
    return str(request.param)


# --- commit and discard -------------------------------------------------------------------------------------


def test_commit(how: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Staging(out) as stage:
        assert stage.folder.parent == tmp_path and stage.folder.name.startswith(".")
        fill(stage.folder, "new")
        assert state(out) == "absent"
        stage.commit(replace=False)
        assert state(out) == "new"
    assert names(tmp_path) == ["out"]


def test_parents_are_made(tmp_path: Path) -> None:
    put(tmp_path / "a" / "b" / "out")
    assert state(tmp_path / "a" / "b" / "out") == "new"


def test_a_relative_path_holds_where_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with Staging(Path("out")) as stage:
        fill(stage.folder, "new")
        monkeypatch.chdir(tmp_path / "elsewhere")
        stage.commit(replace=False)
    assert names(tmp_path) == ["elsewhere", "out"] and names(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("problem", [None, ValueError(), KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("before", [True, False])
def test_without_commit_nothing_is_left(problem: BaseException | None, before: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if before:
        old(out)
    with contextlib.suppress(BaseException), Staging(out) as stage:
        fill(stage.folder, "new")
        (stage.folder / "sub").mkdir()
        if problem is not None:
            raise problem
    assert state(out) == ("old" if before else "absent")
    assert names(tmp_path) == (["out"] if before else [])


def test_everything_is_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, rename = staging.sync, staging._rename
    monkeypatch.setattr(staging, "sync", lambda p: (done.append(p.name), sync(p)))
    monkeypatch.setattr(staging, "_rename", lambda *a: (done.append("rename"), rename(*a)))
    with Staging(tmp_path / "out") as stage:
        fill(stage.folder, "new")
        stage.commit(replace=False)
    assert sorted(done[:2]) == ["one", "two"]
    assert done[2:] == [stage.folder.name, "rename", tmp_path.name]


# --- an old OUT ---------------------------------------------------------------------------------------------


def test_replace(how: str, tmp_path: Path) -> None:
    old(tmp_path / "out")
    put(tmp_path / "out", replace=True)
    assert state(tmp_path / "out") == "new"
    assert names(tmp_path) == ["out"]


def test_replace_where_nothing_is_there(how: str, tmp_path: Path) -> None:
    put(tmp_path / "out", replace=True)
    assert names(tmp_path) == ["out"]


def test_exchange_leaves_no_moment_without_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plain rename touches OUT where the system can exchange two names."""
    old(tmp_path / "out")
    try:
        put(tmp_path / "probe")
        (tmp_path / "other").mkdir()
        staging._rename(tmp_path / "probe", tmp_path / "other", staging._RENAME_EXCHANGE)
    except OSError:
        pytest.skip("this file system cannot exchange two names")
    monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("a plain rename"))
    put(tmp_path / "out", replace=True)
    assert state(tmp_path / "out") == "new"


@pytest.mark.parametrize("kind", ["folder", "file", "link", "link to nothing"])
def test_out_that_appears_meanwhile_is_kept(kind: str, how: str, tmp_path: Path) -> None:
    out, target = tmp_path / "out", tmp_path / "target"
    old(target)
    with pytest.raises(OutputError, match="appeared"), Staging(out) as stage:
        fill(stage.folder, "new")
        match kind:
            case "folder":
                old(out)
            case "file":
                out.write_text("old")
            case "link":
                out.symlink_to("target")
            case "link to nothing":
                out.symlink_to("gone")
        stage.commit(replace=False)
    assert names(tmp_path) == ["out", "target"]
    if kind == "file":
        assert out.read_text() == "old"
    elif kind == "link to nothing":
        assert out.readlink() == Path("gone")
    else:
        assert state(out) == "old" and out.is_symlink() == (kind == "link")
    assert state(target) == "old"


def test_an_empty_folder_is_taken(how: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    put(tmp_path / "out")
    assert state(tmp_path / "out") == "new"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("kind", ["link", "link to nothing", "file"])
def test_replace_something_else_than_a_folder(kind: str, how: str, tmp_path: Path) -> None:
    """A link is replaced itself; what it points to stays as it is, and nothing is left beside it."""
    out, target = tmp_path / "out", tmp_path / "target"
    old(target)
    if kind == "file":
        out.write_text("old")
    else:
        out.symlink_to("target" if kind == "link" else "gone")
    put(out, replace=True)
    assert state(out) == "new" and not out.is_symlink()
    assert state(target) == "old"
    assert names(tmp_path) == ["out", "target"]


@pytest.mark.parametrize("problem", [OSError(errno.EIO, "bad disk"), KeyboardInterrupt()])
@pytest.mark.parametrize("which", [1, 2])
def test_a_failure_between_the_two_renames_puts_the_old_out_back(
    problem: BaseException, which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old(tmp_path / "out")
    monkeypatch.setattr(staging, "_rename", no_exchange)
    rename, calls = Path.rename, itertools.count(1)

    def failing(source: Path, target: Path) -> Path:
        if next(calls) == which:
            raise problem
        return rename(source, target)

    with pytest.raises(type(problem)), Staging(tmp_path / "out") as stage:
        fill(stage.folder, "new")
        monkeypatch.setattr(Path, "rename", failing)
        stage.commit(replace=True)
    assert state(tmp_path / "out") == "old"
    assert names(tmp_path) == ["out"]


def test_an_interrupt_right_after_the_first_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old(tmp_path / "out")
    monkeypatch.setattr(staging, "_rename", no_exchange)
    rename, calls = Path.rename, itertools.count(1)

    def interrupted(source: Path, target: Path) -> Path:
        rename(source, target)
        if next(calls) == 1:
            raise KeyboardInterrupt
        return target

    with pytest.raises(KeyboardInterrupt), Staging(tmp_path / "out") as stage:
        fill(stage.folder, "new")
        monkeypatch.setattr(Path, "rename", interrupted)
        stage.commit(replace=True)
    assert state(tmp_path / "out") == "old"
    assert names(tmp_path) == ["out"]


# --- other processes, alive and dead ------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from converter.checkpoint.staging import Staging

with Staging(Path(sys.argv[1])) as stage:
    (stage.folder / "one").write_text("other")
    print(stage.folder.name, flush=True)
    if sys.stdin.read(1):
        (stage.folder / "two").write_text("other")
        stage.commit(replace=False)
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    """A second process that imports as little as it can."""
    return subprocess.Popen(
        [sys.executable, "-S", "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors="surrogateescape",
    )  # fmt: skip


@contextlib.contextmanager
def holder(out: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with start(HOLD, str(out)) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


def test_a_live_process_keeps_its_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with holder(out) as (_, folder):
        recover(out)
        put(out)
        put(out, replace=True)
        assert names(tmp_path) == sorted([folder, "out"])
        assert (tmp_path / folder / "one").read_text() == "other"


def test_a_dead_process_loses_its_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with holder(out) as (process, folder):
        process.kill()
        process.wait()
        assert names(tmp_path) == [folder]
        put(out)
    assert names(tmp_path) == ["out"]
    assert state(out) == "new"


def test_the_second_of_two_does_not_replace_the_first(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with holder(out) as (process, _):
        with pytest.raises(OutputError, match="appeared"), Staging(out) as stage:
            fill(stage.folder, "new")
            process.communicate("x", timeout=10)
            assert process.returncode == 0
            stage.commit(replace=False)
        assert state(out) == "other"
    assert names(tmp_path) == ["out"]


def test_leftovers_of_other_outs_are_left_alone(tmp_path: Path) -> None:
    """Only names that are OUT's own are touched: not those of OUTs whose names begin or end alike."""
    kept = [".out2.eagle3-staging-0123456789ab", ".ou.eagle3-old-0123456789ab",
            ".out.eagle3-old-x.eagle3-old-0123456789ab",
            ".out.eagle3-staging-x.eagle3-staging-0123456789ab", ".out.eagle3-notes",
            "out.eagle3-old-0123456789ab"]  # fmt: skip
    for name in kept:
        old(tmp_path / name)
    put(tmp_path / "out")
    assert names(tmp_path) == sorted([*kept, "out"])


def test_where_the_file_system_has_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait without end there, and the folders of others, which may be alive, are left alone."""
    fcntl = pytest.importorskip("fcntl")

    def no_locks(*_: Any) -> None:
        raise OSError(errno.EBADF, "as on NFS")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    other = tmp_path / ".out.eagle3-staging-0123456789ab"
    other.mkdir()
    worker = threading.Thread(target=put, args=(tmp_path / "out",), daemon=True)
    worker.start()
    worker.join(10)
    assert not worker.is_alive()
    assert names(tmp_path) == [other.name, "out"]


# --- a crash at every step ----------------------------------------------------------------------------------

CRASH = """
import errno, os, signal, sys
from pathlib import Path
from converter.checkpoint import staging

out, how, step = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if how == "two renames":
    def _rename(source, target, flags):
        if flags == staging._RENAME_EXCHANGE:
            raise OSError(errno.EINVAL, "no exchange here")
        source.rename(target)
    staging._rename = _rename

count = 0
def hook(event, arguments):
    global count
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir", "shutil.rmtree"):
        count += 1
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
with staging.Staging(out) as stage:
    (stage.folder / "one").write_text("new")
    (stage.folder / "two").write_text("new")
    stage.commit(replace=True)
"""


@pytest.mark.parametrize("how", [EXCHANGE, FALLBACK])
@pytest.mark.parametrize("before", ["old", "absent"])
def test_killed_at_every_step(how: str, before: str, tmp_path: Path) -> None:
    seen: list[str] = []
    for step in itertools.count(1):
        folder = tmp_path / str(step)
        folder.mkdir()
        out = folder / "out"
        if before == "old":
            old(out)
        with start(CRASH, str(out), how, str(step)) as process:
            process.communicate(timeout=20)
        if process.returncode == 0:
            break
        assert process.returncode == -9
        at_once = state(out)
        allowed = {before, "new"} if how == EXCHANGE else {before, "new", "absent"}
        assert at_once in allowed, f"step {step}"
        recover(out)
        assert state(out) == (before if at_once == "absent" else at_once), f"step {step}"
        put(out, replace=True)
        assert names(folder) == ["out"], f"step {step}"
        assert state(out) == "new"
        seen.append(at_once)
    assert step > 8
    assert {before, "new"} <= set(seen)
    if how == FALLBACK and before == "old":
        assert "absent" in seen  # between the two renames


def test_killed_after_a_link_was_exchanged(tmp_path: Path) -> None:
    """The link itself stands under the hidden name then; it goes, and what it points to stays."""
    target = tmp_path / "target"
    old(target)
    put(tmp_path / "out")
    (tmp_path / ".out.eagle3-staging-0123456789ab").symlink_to("target")
    (tmp_path / ".out.eagle3-old-0123456789ab").symlink_to("target")
    recover(tmp_path / "out")
    assert names(tmp_path) == ["out", "target"]
    assert state(target) == "old"


def test_an_old_link_that_lost_its_place_gets_it_back(tmp_path: Path) -> None:
    old(tmp_path / "target")
    (tmp_path / ".out.eagle3-old-0123456789ab").symlink_to("target")
    recover(tmp_path / "out")
    assert (tmp_path / "out").readlink() == Path("target")
    assert names(tmp_path) == ["out", "target"]


# --- odd names ----------------------------------------------------------------------------------------------

ODD = {
    "255 bytes": "x" * 255,
    "255 bytes of longer characters": "層" * 85,
    "a cut inside a character": "a" + "層" * 84,
    "spaces": "  a b ",
    "unicode": "дракон-層-é",
    "dash": "-rf",
    "dot": ".hidden",
    "quotes": "a'b\"c$(d)`e`*?[f]",
    "newline": "a\nb",
    "percent": "%s{0}",
}
if sys.platform == "linux":
    ODD["no text"] = os.fsdecode(b"\xff\xfe")
    ODD["255 bytes that are no text"] = os.fsdecode(b"\xff" * 255)


@pytest.mark.parametrize("case", ODD)
def test_odd_names(case: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = Path(ODD[case])
    with start(HOLD, str(out)) as process:  # killed, so that something is left
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    assert len(names(tmp_path)) == 1
    put(out)
    assert names(tmp_path) == [ODD[case]]
    put(out, replace=True)
    assert names(tmp_path) == [ODD[case]]
    assert state(out) == "new"


@pytest.mark.parametrize("pair", [("x" * 250 + "1", "x" * 250 + "2"), ("層" * 84 + "1", "層" * 84 + "2"),
    (os.fsdecode(b"a\xff"), "a"), (os.fsdecode(b"\xff" * 255), os.fsdecode(b"\xfe" * 255))],
    ids=["long", "long characters", "no text", "long and no text"])  # fmt: skip
def test_names_that_begin_alike_are_told_apart(pair: tuple[str, str], tmp_path: Path) -> None:
    """The old OUT of one run must never come back under the name of another."""
    first, second = (tmp_path / name for name in pair)
    aside = tmp_path / staging.hidden_name(first, staging.OLD)
    try:
        old(aside)
    except OSError:
        pytest.skip("this file system takes only names that are text")
    recover(second)
    assert not second.exists() and aside.exists()
    recover(first)
    assert state(first) == "old"


def test_a_name_that_is_too_long_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        put(tmp_path / ("x" * 256))
    assert names(tmp_path) == []


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file" / "out", tmp_path / "file" / "deep" / "out"):
        with pytest.raises(OSError):
            put(out)
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "mine"

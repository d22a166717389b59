"""The pre-push hook of a clone: put beside what lies there, and taken away again so that nothing is left."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from converter.checkpoint.whole import replacing
from converter.errors import InputError, OutputError
from converter.findings import error
from converter.hook.git import Git

NAME = "pre-push"
# What lay there: in the same folder, where a link and `dirname "$0"` still lead right.
BEFORE = "pre-push.before-eagle3"
_HEAD = re.compile(rb"#!/bin/sh\n# eagle3-hook 1 ([0-9a-f]{64})\n")
_MADE = b"# The folder was made for it.\n"

# Exit code by which the Python that installed the hook says that it has no eagle3-convert any more.
_NOT_THERE = 97
# The first entry of sys.path is the repository, where a stranger's `converter` may lie.
_START = (
    "import sys; sys.path[:] = [p for p in sys.path if p]\n"
    "try: from converter.cli import main\n"
    f"except ImportError: sys.exit({_NOT_THERE})\n"
    'sys.argv[:] = ["eagle3", "hook", "run", *sys.argv[1:]]; main()'
)
_SCRIPT = """\
# Put here by `eagle3 hook install`; `eagle3 hook uninstall` takes it away. It calls git-lfs, so `git lfs install` has
# nothing to add.
before=$(dirname "$0")/{before}
python={python}
start={start}
lines=$(cat && echo .)
lines=${{lines%.}}
given() {{ printf %s "$lines" 2>/dev/null; }}

given | "$python" -c "$start" "$@"
status=$?
case $status in {not_there}|126|127)
  if ! command -v eagle3 >/dev/null 2>&1; then
    {{
      echo "eagle3: the push is stopped: eagle3-convert is neither in $python nor on the PATH."
      echo "Install it and run: eagle3 hook install    Push without this check: git push --no-verify"
      echo "Take the check away: rm '$0'; and where there is a $before: mv '$before' '$0'"
    }} >&2
    exit 1
  fi
  given | eagle3 hook run "$@"
  status=$?
esac
[ $status -eq 0 ] || exit $status

if [ -x "$before" ]; then
  given | "$before" "$@" || exit
  ! grep -q 'git[ -]lfs' "$before" 2>/dev/null || exit 0
fi
if command -v git-lfs >/dev/null 2>&1; then
  given | git lfs pre-push "$@" || exit
fi
"""


@dataclass(frozen=True)
class Place:
    """Where a clone keeps its hooks; shared: which settings send other repositories there too, "" for none."""

    folder: Path
    shared: str = ""

    @property
    def hook(self) -> Path:
        return self.folder / NAME

    @property
    def before(self) -> Path:
        return self.folder / BEFORE


@dataclass(frozen=True)
class Done:
    """What was done: installed, renewed (for another Python, or to be run again), already there; removed, not there.

    beside   a hook lay there before: it is called as well, and back after `uninstall`; inert: git would not run it
    """

    what: Literal["installed", "renewed", "already", "removed", "not there"]
    place: Place
    beside: bool = False
    inert: bool = False


def find_place(repository: Path) -> Place:
    """Where git looks for the hooks of the clone at `repository`. Raises InputError H430 for what is no clone."""
    git = Git(repository)
    if not repository.is_dir():
        raise _no_clone(repository, "there is no such folder")
    top = git.top()
    if top is None:
        bare = git.answer("rev-parse", "--is-bare-repository") == "true"
        said = os.fsdecode(git.run("rev-parse", "--show-toplevel").stderr.strip())
        raise _no_clone(repository, "it is a bare repository, which others push to" if bare else said)
    git = Git(top)  # a relative core.hooksPath counts from there
    folder = git.folder("--git-path", "hooks")
    scope = (git.answer("config", "--show-scope", "--get", "core.hooksPath") or "").partition("\t")[0]
    return Place(folder, f"core.hooksPath in git's {scope} settings" if scope in ("global", "system") else "")


def install(repository: Path) -> Done:
    """Put the hook there; what lay there is moved aside and called by it.

    Raises InputError H430 for no clone, H431 for a hook that must not be replaced; OutputError.
    """
    place = find_place(repository)
    ours = _ours(place.hook)
    try:
        if ours is not None:
            script = _script(made=_MADE in ours)
            good = ours == script and os.access(place.hook, os.X_OK)  # git passes over one that is not executable
            if not good:
                _write(place, script)
            return Done("already" if good else "renewed", place, *_beside(place))
        exists = os.path.lexists(place.hook)
        if exists and os.path.lexists(place.before):
            raise _in_the_way(place, f"beside {NAME} lies {BEFORE}, of an eagle3 hook that is gone",
                              f"keep one of them as {place.hook}, remove the other, run this again")  # fmt: skip
        if exists and place.hook.is_dir() and not place.hook.is_symlink():
            raise _in_the_way(place, f"{NAME} is a folder", "move it away")
        made = not place.folder.exists()
        place.folder.mkdir(parents=True, exist_ok=True)
        if exists:
            place.hook.rename(place.before)
        _write(place, _script(made))
    except OSError as problem:
        raise _not_written(place, problem) from problem
    return Done("installed", place, *_beside(place))


def uninstall(repository: Path) -> Done:
    """Take the hook away and put back what lay there. Raises as `install` does."""
    place = find_place(repository)
    ours = _ours(place.hook)
    beside = _beside(place)
    try:
        if ours is None:
            if os.path.lexists(place.before):
                raise _in_the_way(place, "another program put its own hook in place of eagle3's",
                                  f"what lay there before is {place.before}: put it back, or remove it")  # fmt: skip
            elsewhere = next((f for f in _files(place.folder) if _ours(f) is not None), None)
            if elsewhere is not None:
                raise _in_the_way(place, f"another hook is there, which calls eagle3's: {elsewhere.name}",
                                  "take the other away first, e.g. pre-commit uninstall -t pre-push")  # fmt: skip
            return Done("not there", place)
        if beside[0]:
            place.before.replace(place.hook)
        else:
            place.hook.unlink()
            if _MADE in ours and not any(place.folder.iterdir()):
                place.folder.rmdir()
    except OSError as problem:
        raise _not_written(place, problem) from problem
    return replace(Done("removed", place), beside=beside[0], inert=beside[1])


def _beside(place: Place) -> tuple[bool, bool]:
    """Whether a hook lies aside, and whether git would not run it."""
    there = os.path.lexists(place.before)
    return there, there and not os.access(place.before, os.X_OK)


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_file()) if folder.is_dir() else []


def _script(made: bool) -> bytes:
    text = _SCRIPT.format(
        before=BEFORE,
        python=shlex.quote(Path(sys.executable).as_posix()),
        start=shlex.quote(_START),
        not_there=_NOT_THERE,
    )
    body = os.fsencode(text) + (_MADE if made else b"")
    return b"#!/bin/sh\n# eagle3-hook 1 %s\n%s" % (hashlib.sha256(body).hexdigest().encode(), body)


def _ours(file: Path) -> bytes | None:
    """The hook that this tool wrote; None for any other. Raises InputError H431 where it was edited."""
    try:
        text = file.read_bytes() if file.is_file() else b""
    except OSError as problem:
        raise _not_written(Place(file.parent), problem) from problem
    head = _HEAD.match(text)
    if head is None:
        return None
    if hashlib.sha256(text[head.end() :]).hexdigest().encode() != head[1]:
        raise _in_the_way(Place(file.parent), f"{file.name} is eagle3's hook, and was edited since",
                          f"keep what you need of it and remove it; if there is a {BEFORE}, put it back")  # fmt: skip
    return text


def _write(place: Place, script: bytes) -> None:
    with replacing(place.hook, mode=0o755) as staged:
        staged.write_bytes(script)


def _no_clone(repository: Path, why: str) -> InputError:
    return InputError(
        error(
            "H430",
            f"{repository} is no clone to push from: {why}",
            where=str(repository),
            fix=("eagle3 hook install --repo FOLDER    of a clone, or of a worktree",),
        )
    )


def _in_the_way(place: Place, what: str, fix: str) -> InputError:
    return InputError(
        error("H431", f"nothing was changed: {what}", where=str(place.hook), why="it would be lost", fix=(fix,))
    )


def _not_written(place: Place, problem: OSError) -> OutputError:
    return OutputError(f"cannot change {problem.filename or place.folder}: {problem.strerror or problem}")

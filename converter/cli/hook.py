"""`eagle3 hook`; what it does is in converter/hook/."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from converter.cli.common import CONTEXT, fail, failure_of, reader_may_leave
from converter.signals import interruptible

if TYPE_CHECKING:
    from converter.hook.check import Looked
    from converter.hook.install import Done

_REPO = click.option(
    "--repo", type=click.Path(path_type=Path), default=Path(), metavar="DIR", help="The clone. [default: where you are]"
)


@click.group("hook", context_settings=CONTEXT, short_help="Keep drafters that are not in order from being pushed.")
def hook_group() -> None:
    """A pre-push hook that lets no drafter out which is unsealed, changed since it was sealed, or broken."""


@hook_group.command("install", context_settings=CONTEXT)
@_REPO
def install_command(repo: Path) -> None:
    """Put the pre-push hook into a git clone. A hook that is there is kept and called too, and so is git-lfs."""
    from converter.hook.install import install

    _told(lambda: install(repo))


@hook_group.command("uninstall", context_settings=CONTEXT, short_help="Take the hook away.")
@_REPO
def uninstall_command(repo: Path) -> None:
    """Take the hook away: what was there before is put back as it was."""
    from converter.hook.install import uninstall

    _told(lambda: uninstall(repo))


def _told(work: Callable[[], Done]) -> None:
    from converter.report.hooked import done_words

    with _failing(pushing=False):
        done = work()
    with reader_may_leave():
        click.echo(done_words(done))


@hook_group.command("check", context_settings=CONTEXT)
@click.argument("revision", default="HEAD", metavar="[REVISION]")
@_REPO
def check_command(revision: str, repo: Path) -> None:
    """Say whether the drafters in REVISION might be pushed. Needs no contents of LFS files where all are sealed: made
    for CI, on a checkout without them.

    Exit code: 0 they might, 1 not, 3 the repository or its .eagle3.toml cannot be read.
    """
    with _failing(pushing=False):
        from converter.hook.check import look_at
        from converter.hook.git import Git
        from converter.hook.pushed import Ref

        git = Git(repo)
        found = git.run("rev-parse", "--git-dir")
        if found.returncode:  # in git's words: a repository of another user is told in them, and how to trust it
            fail(3, f"no repository can be read at {repo.absolute()}: {' '.join(os.fsdecode(found.stderr).split())}")
        oid = git.answer("rev-parse", "--verify", "--quiet", "--end-of-options", revision)
        if oid is None:
            fail(3, f"there is no {revision} in the repository at {repo.absolute()}")
        looked = look_at(git, [Ref(revision, oid)], None)
    _end(looked, pushing=False)


@hook_group.command("run", context_settings=CONTEXT, hidden=True)
@click.argument("remote", required=False)
@click.argument("url", required=False)
def run_command(remote: str | None, url: str | None) -> None:
    """What git runs before a push, with the lines of its pre-push hook on stdin; or the pre-commit framework, with its
    variables.
    """
    with _failing(pushing=True):
        from converter.hook.check import look_at
        from converter.hook.git import Git
        from converter.hook.pushed import refs_of_git, refs_of_pre_commit

        git = Git()
        if remote is not None:
            refs = refs_of_git(os.fsdecode(sys.stdin.buffer.read()))
        else:
            refs, remote = refs_of_pre_commit(os.environ, git), os.environ["PRE_COMMIT_REMOTE_NAME"]
        looked = look_at(git, refs, remote) if refs else []
    _end(looked, pushing=True)


def _end(looked: list[Looked], pushing: bool) -> NoReturn:
    """git's own output may be read by a program, so all is said on stderr."""
    from converter.report.hooked import passed

    stopped = any(found.stopped for found in looked)
    with reader_may_leave():
        if stopped:
            from converter.report.stopped import StoppedPrinter

            StoppedPrinter(sys.stderr).stopped(looked, pushing)
        elif looked or not pushing:
            click.echo(passed(looked) or "eagle3: no drafter", err=pushing)
    sys.exit(1 if stopped else 0)


@contextmanager
def _failing(pushing: bool) -> Iterator[None]:
    """Ends the command with text and exit code where the work raises."""
    from converter.errors import Eagle3Error

    try:
        with interruptible():
            yield
    except (Eagle3Error, OSError) as problem:
        from converter.report.stopped import StoppedPrinter

        failure = failure_of(problem)
        with reader_may_leave():
            StoppedPrinter(sys.stderr).unreadable(failure, pushing)
        sys.exit(failure.exit_code)
    except KeyboardInterrupt:
        fail(130, "interrupted" + ("; nothing was pushed" if pushing else ""))

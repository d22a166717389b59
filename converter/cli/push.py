"""`eagle3 push`, and what `--push-to-hub` adds to a conversion; what they do is in converter/publish/push.py."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from converter.cli.common import CONTEXT, VERSION
from converter.cli.options import COMMON, allowed, request_of, with_options
from converter.cli.show import Show
from converter.findings import LEVELS, Level
from converter.report.words import clean

if TYPE_CHECKING:
    from converter.hub.ids import HubId
    from converter.publish.push import Asked, Push
    from converter.run import Report

_PRIVATE = click.option("--private", is_flag=True, help="Create a repository that is not there as a private one.")
_CREATE_PR = click.option("--create-pr", is_flag=True, help="Open a pull request instead of committing to main.")


@click.command("push", context_settings=CONTEXT, short_help="Push a sealed drafter to the Hub.")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.argument("repo", metavar="REPO")
@_PRIVATE
@click.option(
    "--revision", default="", metavar="BRANCH", help="The branch; one that is not there is created from main."
)
@_CREATE_PR
@click.option("--message", default="", metavar="TEXT", help="Of the commit.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--require", type=click.Choice(LEVELS), default="sample", show_default=True,
    help="The level of proof below which nothing goes.")  # fmt: skip
@with_options("engine", *COMMON, "json", "verbose", "quiet", subject="FOLDER",
    engines="may be given more than once. [default: those of its seal, else that one serves it will do]",
    allow="Let this finding through: one that its seal says was let through, or one of a check run now.")  # fmt: skip
@VERSION
def push_command(folder: Path, repo: str, revision: str, yes: bool, message: str, **options: Any) -> None:
    """Push the drafter in FOLDER, with its seal and a card made from that, to REPO (org/name) in one commit.

    What goes must be as it was sealed, and proved to the level that --require names. With --sample or --prove the
    checks are run now, on FOLDER as it lies, and what they reach is what counts; the options from --engine to --strict
    are of those checks, as in eagle3-validate.
    """
    show = _ShowPush({**options, "source": folder, "report_file": None})

    def run() -> Push:
        from converter.errors import UsageError

        if not yes and not sys.stdin.isatty():
            raise UsageError("there is no terminal to ask on whether it may go: add --yes")
        asked = _asked(folder, repo, revision, message, options)
        with show.status() as told:
            checked = _checked(folder, options, told)
        return show.push(asked, checked, ask=not yes)

    show.run(run)


def push_options(command: Callable[..., None]) -> Callable[..., None]:
    """Those of a conversion whose output is pushed."""
    for option in (
        click.option("--require", type=click.Choice(LEVELS), help="With --push-to-hub: the level of proof below which "
            "nothing is pushed. [default: sample]"),
        _CREATE_PR,
        _PRIVATE,
        click.option("--push-to-hub", "push_to", metavar="REPO",
            help="Push OUT there once it is in place, as eagle3 push --yes does: org/name[@branch]."),
    ):  # fmt: skip
        command = option(command)
    return command


def push_of(out: Path, dry_run: bool, options: dict[str, Any]) -> Asked | None:
    """What a conversion is to do with OUT, taken out of its options; None where nothing.

    Raises UsageError where that could not succeed, SendError where nothing may be sent.
    """
    from converter.errors import UsageError
    from converter.hub.upload import check_may_send

    to, require = options.pop("push_to"), options.pop("require")
    given = {"private": options.pop("private"), "create_pr": options.pop("create_pr")}
    if to is None:
        if require or any(given.values()):
            raise UsageError("--private, --create-pr and --require go with --push-to-hub REPO")
        return None
    if dry_run:
        raise UsageError("--dry-run writes nothing, so that nothing can be pushed: leave out one of the two")
    require = require or "sample"
    reach: Level = "measured" if options["sample"] is not None else "agreement" if options["prove"] else "none"
    if LEVELS.index(reach) < LEVELS.index(require):
        raise UsageError(
            f"--push-to-hub: without --sample the level of proof will be {reach!r}, and {require!r} is required; give "
            f"a sample, or --require {reach}"
        )
    asked = _asked(out, to, "", "", {**options, **given, "require": require})
    check_may_send(asked.to)
    return asked


def push_output(asked: Asked, options: dict[str, Any]) -> int:
    """Push what was just written, and say so; returns the exit code."""
    # The report of the conversion is all that goes to stdout as JSON.
    show = _ShowPush({**options, "source": asked.folder, "report_file": None}, after=True)
    try:
        show.run(lambda: show.push(asked, None, ask=False))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        if code:
            words = ["eagle3", "push", str(asked.folder), str(asked.to), *_words(asked)]
            later = f"\n{asked.folder} is written, and whole. To push it later:\n  {shlex.join(words)}"
            click.echo(clean(later), err=True)
        return code


def _words(asked: Asked) -> list[str]:
    """The options that say the same."""
    switches = (("--private", asked.private), ("--create-pr", asked.create_pr))
    words = [word for word, on in switches if on]
    words += ["--require", asked.require] if asked.require != "sample" else []
    return words + [word for code in asked.allow for word in ("--allow", code)]


def _asked(folder: Path, repo: str, revision: str, message: str, options: dict[str, Any]) -> Asked:
    from converter.errors import UsageError
    from converter.publish.push import Asked

    to = _repository(repo, revision)
    if options["create_pr"] and to.revision not in ("", "main"):
        raise UsageError(f"--create-pr opens a pull request to main: it does not go with the branch {to.revision}")
    return Asked(
        folder=folder,
        to=to,
        private=options["private"],
        create_pr=options["create_pr"],
        message=message,
        require=options["require"],
        allow=allowed(options["allow"]),
    )


def _repository(given: str, revision: str) -> HubId:
    from dataclasses import replace

    from converter.errors import UsageError
    from converter.hub.ids import also_an_id, hub_id
    from converter.hub.secrets import masked

    named = hub_id(given) if given.startswith("hf:/") else also_an_id(given)
    if named is None:
        raise UsageError(f"{masked(given)} names no repository on the Hub: expected org/name")
    if named.path:
        raise UsageError(f"{given}: a drafter is pushed to the top of a repository, where engines look for it")
    if revision and named.revision not in ("", revision):
        raise UsageError(f"{given} and --revision {revision} name two branches")
    named = replace(named, revision=revision or named.revision, short=False)
    if named.is_commit:
        raise UsageError(f"{named.revision} is a commit; what is pushed goes to a branch")
    return replace(named, revision="") if named.revision == "main" else named


def _checked(folder: Path, options: dict[str, Any], told: Callable[[str], None]) -> Report | None:
    """What `validate` says of the folder as it lies, for the engines of its seal unless others are named; None where no
    checks were asked for.
    """
    if options["sample"] is None and not options["prove"]:
        return None
    from converter import seal
    from converter.pipeline import validate

    document = seal.sound_seal_of(folder) or {}
    engines = options["engines"] or tuple(seal.texts_at(document, "engines", "engine"))
    plugin = options["allow_plugin"] or any(seal.texts_at(document, "engines", "plugin"))
    request = request_of({**options, "source": str(folder.absolute()), "engines": engines, "allow_plugin": plugin})
    return validate(request, told)


def _confirmed() -> bool:
    try:
        return click.confirm("\nPush it?", err=True)
    except click.Abort:  # Ctrl-C, or the end of what is typed
        click.echo(err=True)
        return False


class _ShowPush(Show):
    """Shows what will go, asks, and shows what became of it."""

    def __init__(self, options: dict[str, Any], after: bool = False) -> None:
        super().__init__(options)
        self._aside = self._as_json  # what is printed as text goes to stderr
        self._as_json = self._as_json and not after

    def _interrupted(self) -> str:
        return "interrupted; the branch is as it was, or has all of it"

    def push(self, asked: Asked, checked: Report | None, ask: bool) -> Push:
        from converter.publish import push as pushing

        push = pushing.gather(asked, checked)
        if push.outcome == "refused":
            return push
        pushing.plan(push)
        if push.outcome == "planned":
            if ask or not self._quiet:
                self._printer().planned(push)
            if ask and not _confirmed():
                click.echo("not pushed; nothing was sent", err=True)
                sys.exit(130)
            pushing.carry_out(push)
        return push

    def _printer(self) -> Any:
        from converter.publish.text import PushPrinter

        return PushPrinter(sys.stderr if self._aside else sys.stdout, self._verbose, self._quiet)

    def _failure_printer(self) -> Any:
        from converter.publish.text import PushPrinter

        return PushPrinter(sys.stderr, self._verbose)

    def _print(self, report: Push) -> None:
        getattr(self._printer(), report.outcome)(report)

    def _document(self, report: Push) -> dict[str, Any]:
        return report.as_json()

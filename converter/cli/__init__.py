"""The commands; what they do is in pipeline.py. Heavy imports wait until a command runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from converter.cli.card import card_command
from converter.cli.common import CONTEXT, VERSION, fail, open_streams, reader_may_leave, say_json
from converter.cli.hook import hook_group
from converter.cli.look import diff_command, inspect_command
from converter.cli.options import COMMON, OUTPUT, request_of, with_options
from converter.cli.push import push_command, push_of, push_options, push_output
from converter.cli.report import report_command
from converter.cli.sample import sample_command
from converter.cli.seal import seal_group
from converter.cli.show import Show, ShowSeveral
from converter.cli.upkeep import check_command

if TYPE_CHECKING:
    from converter.baseline import Baseline, Held
    from converter.publish.push import Asked
    from converter.report.several import Several
    from converter.run import Report


class _Group(click.Group):
    """Of a command that is interrupted where it has no words for that the exit code is 130, and not click's 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            fail(130, "interrupted")


@click.group(cls=_Group, context_settings=CONTEXT)
@VERSION
def eagle3() -> None:
    """Convert EAGLE-3 draft models and prove that the engine will compute what was trained."""


@eagle3.command("convert", context_settings=CONTEXT, short_help="Convert a drafter into what an engine loads.")
@click.argument("source", metavar="IN")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@with_options("engine", engines="several: one output must suit all. [default: sglang]")
@click.option("--to", default="", metavar="DIALECT", help="Write a trainer's form instead of an engine's.")
@with_options(*COMMON, subject="IN", allow="Let this finding through (the seal records it).")
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]), help="Cast the weights.")
@click.option("--max-shard-size", metavar="SIZE", help="Cut the weights into files of at most SIZE (5GB, 500MB, 2GiB), "
    "with an index. [default: the files of IN]")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an OUT that an earlier run wrote.")
@click.option("--dry-run", is_flag=True, help="Check and print the plan; write nothing.")
@click.option("--no-digest", is_flag=True, help="Write without digests: faster, and a weaker seal.")
@push_options
@click.option(
    "--sign",
    default="",
    metavar="KEY",
    help="Sign the seal and the files: a private key's file, or sigstore (docs/seal.md).",
)
@with_options(*OUTPUT)
@VERSION
def convert_command(
    out: Path,
    dtype: str | None,
    max_shard_size: str | None,
    force: bool,
    dry_run: bool,
    no_digest: bool,
    **options: Any,
) -> None:
    """Convert the drafter IN into the folder OUT.

    IN is a folder, a safetensors file, or a drafter on the Hub: org/name[@revision] or hf://org/name[@revision]/folder.

    OUT is what the engine will really load: tensors renamed, vocabulary map checked, config flat and explicit.
    It appears whole, after every check has passed, or not at all; IN is never changed.
    """
    show = Show({**options, "out": out})
    asked: list[Asked] = []

    def run() -> Report:
        from converter.pipeline import convert
        from converter.plan import shard_size

        push = push_of(out, dry_run, options)
        asked.extend([push] if push is not None else [])
        request = request_of(
            options,
            out=out,
            dtype=dtype or "",
            max_shard_size=shard_size(max_shard_size) if max_shard_size is not None else 0,
            force=force,
            dry_run=dry_run,
            digest=not no_digest,
        )
        with show.status() as told:
            return convert(request, show.progress, told)

    def then(report: Report) -> int:
        return push_output(asked[0], options) if asked and report.outcome == "converted" else 0

    show.run(run, then)


@eagle3.command("validate", context_settings=CONTEXT, short_help="Say which engines can serve a drafter.")
@click.argument("sources", metavar="DRAFTER...", nargs=-1, required=True)
@with_options("engine", *COMMON)
@click.option(
    "--find-wiring",
    is_flag=True,
    help="Search the sample for the wiring that the drafter was trained with: points, flags, vocabulary map.",
)
@click.option("--no-scan", is_flag=True, help="Do not read every weight to find NaN and infinity: faster.")
@click.option("--baseline", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Findings that were accepted: told, but not counted.")  # fmt: skip
@click.option("--write-baseline", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Accept what is found now: write FILE, or renew its entries of these drafters.")  # fmt: skip
@with_options(*OUTPUT)
@VERSION
def validate_command(
    sources: tuple[str, ...],
    find_wiring: bool,
    no_scan: bool,
    baseline: Path | None,
    write_baseline: Path | None,
    **options: Any,
) -> None:
    """Check the drafter DRAFTER, a folder or org/name[@revision] on the Hub, and say for each engine whether it can be
    served.

    Several drafters of one target: a table of all, then what is wrong with each. The exit code is the highest of
    theirs, and one that cannot be read keeps none of the others from being looked at.
    """
    options = {**options, "sources": sources, "baseline": baseline, "write_baseline": write_baseline}
    if len(sources) > 1:
        _validate_several(options, find_wiring=find_wiring, scan=not no_scan)
    show = Show(options)

    def run() -> Report:
        from converter.accepting import validate_against

        accepted = _baseline(options)
        with show.status() as told:
            request = request_of({**options, "source": sources[0]}, find_wiring, scan=not no_scan)
            report = validate_against(accepted, request, told)
        show.written = _renew(accepted, [report.held] if report.held is not None else [])
        return report

    show.run(run)


def _validate_several(options: dict[str, Any], **more: Any) -> NoReturn:
    show = ShowSeveral(options)

    def run() -> Several:
        from converter.report.several import held_of, validate_several

        accepted = _baseline(options)
        given = request_of({**options, "source": ""}, **more)
        requests = [replace(given, source=source) for source in options["sources"]]
        with show.each(options["sources"]) as (began, ended, told):
            found = validate_several(requests, accepted, began=began, ended=ended, told=told)
        show.written = _renew(accepted, held_of(found))
        return found

    show.run(run)


def _baseline(options: dict[str, Any]) -> Baseline | None:
    """The one that findings are held against."""
    from converter.baseline import growing_baseline, read_baseline
    from converter.errors import UsageError

    given, new = options["baseline"], options["write_baseline"]
    if given is not None and new is not None:
        raise UsageError("--write-baseline FILE keeps what FILE holds of other drafters: give it alone, or --baseline")
    return growing_baseline(new) if new is not None else read_baseline(given) if given is not None else None


def _renew(baseline: Baseline | None, held: Sequence[Held]) -> Baseline | None:
    """The baseline that was written; None where none was to be."""
    from converter.baseline import renewed, write_baseline

    if baseline is None or not baseline.growing or not held:
        return None
    new = renewed(baseline, held)
    write_baseline(new)
    return new


@eagle3.command("explain", context_settings=CONTEXT, short_help="Tell what a finding means.")
@click.argument("code")
def explain_command(code: str) -> None:
    """Tell what a finding means, how it comes about and how to mend it."""
    from converter.report.explain import explain

    try:
        with reader_may_leave():
            click.echo(explain(code))
    except KeyError:
        fail(2, f"there is no finding {code}; codes are a letter and three digits, e.g. K103")


_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@eagle3.command("dialects", context_settings=CONTEXT)
@_JSON
def dialects_command(as_json: bool) -> None:
    """List the dialects that can be read, with their conventions."""
    from converter.report import rules

    _say(as_json, rules.dialects, rules.dialects_text)


@eagle3.group("engines", context_settings=CONTEXT)
def engines_group() -> None:
    """What is known of serving engines."""


@engines_group.command(
    "list", context_settings=CONTEXT, short_help="List the engines, or what is known of one release."
)
@click.argument("engine", required=False, metavar="[NAME[==RELEASE]]")
@_JSON
def engines_list_command(engine: str | None, as_json: bool) -> None:
    """List the engines, or all that is known of one release: what it ignores, and what its target classes capture."""
    from converter.errors import UsageError
    from converter.report import rules
    from converter.rules.releases import resolve

    if engine is None:
        _say(as_json, rules.engines, rules.engines_text)
        return
    try:
        releases = resolve(engine)
    except UsageError as problem:
        fail(2, str(problem))
    _say(as_json, lambda: [rules.engine(r) for r in releases], lambda: "\n\n".join(map(rules.engine_text, releases)))


def _say(as_json: bool, document: Callable[[], Any], text: Callable[[], str]) -> None:
    if as_json:
        say_json(document())
    else:
        with reader_may_leave():
            click.echo(text())


eagle3.add_command(sample_command)
eagle3.add_command(inspect_command)
eagle3.add_command(diff_command)
eagle3.add_command(report_command)
eagle3.add_command(push_command)
eagle3.add_command(card_command)
eagle3.add_command(seal_group)
eagle3.add_command(hook_group)
engines_group.add_command(check_command)


def main() -> None:
    """The console script `eagle3`."""
    open_streams()
    eagle3()


def convert_main() -> None:
    """The console script `eagle3-convert`: the same as `eagle3 convert`."""
    open_streams()
    convert_command()


def validate_main() -> None:
    """The console script `eagle3-validate`: the same as `eagle3 validate`."""
    open_streams()
    validate_command()

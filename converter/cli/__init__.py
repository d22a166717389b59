"""The commands; what they do is in pipeline.py. Heavy imports wait until a command runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from converter.cli.common import CONTEXT, VERSION, fail, open_streams, reader_may_leave
from converter.cli.hook import hook_group
from converter.cli.look import diff_command, inspect_command
from converter.cli.report import report_command
from converter.cli.sample import sample_command
from converter.cli.show import Show, ShowSeveral
from converter.cli.upkeep import check_command
from converter.drafter.spec import NORM_FLAGS

if TYPE_CHECKING:
    from converter.baseline import Baseline, Held
    from converter.report.several import Several
    from converter.run import Report, Request


@click.group(context_settings=CONTEXT)
@VERSION
def eagle3() -> None:
    """Convert EAGLE-3 draft models and prove that the engine will compute what was trained."""


def _options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options that mean the same in every command that has them."""
    table: dict[str, Callable[[Callable[..., None]], Callable[..., None]]] = {
        "engine": click.option("--engine", "engines", multiple=True, metavar="NAME[==RELEASE]",
            help="Engine and release, e.g. sglang==0.5.23 or vllm (the newest known) or 'sglang>=0.5.12' (all known); "
            "several: one output must suit all. [default: sglang to convert, every engine to validate]"),
        "dialect": click.option("--dialect", default="", metavar="NAME",
            help="Read IN as a drafter of this dialect, whatever it looks like (eagle3 dialects lists them), or as an "
            "engine does: sglang==0.5.23."),
        "target": click.option("--target", type=click.Path(path_type=Path), metavar="PATH_OR_ID",
            help="The model it drafts for: its folder, its config.json, or org/name[@revision] on the Hub, of which "
            "only a few tensors are fetched (hf://org/name/config.json: none)."),
        "target-arch": click.option("--target-arch", default="", metavar="CLASS",
            help="The target's class where no --target is at hand, e.g. LlamaForCausalLM."),
        "aux": click.option("--aux", metavar="POINTS",
            help="Target states that feed the drafter, as trained: embed,3,31 (embed = embedding, k = output of the "
            "k-th layer, out:k = output of the 0-based layer k)."),
        "set": click.option("--set", "given", multiple=True, metavar="FIELD=VALUE",
            help="What the config does not say or says wrongly: norm_before_residual, norm_before_fc, fc_norm, "
            "norm_output (true or false), rope_theta, mask_token_id (a number)."),
        "sample": click.option("--sample", type=click.Path(path_type=Path), metavar="FILE_OR_FOLDER",
            help="Tokens with the target's hidden states to run the drafter on: of eagle3 sample, or a trainer's own "
            "data (docs/samples.md)."),
        "sample-points": click.option("--sample-points", metavar="POINTS",
            help="Which states a sample holds that does not say so itself, as --aux names them. [default: the "
            "drafter's, then the target's last]"),
        "positions": click.option("--positions", type=int, metavar="N",
            help="Look at about N positions of the sample, in whole sequences spread over it; 0: at all of them. "
            "[default: 16384]"),
        "prove": click.option("--prove", is_flag=True,
            help="Without a sample: run trainer's and engine's forward pass on random states."),
        "steps": click.option("--steps", type=int, metavar="N",
            help="Draft steps to run. [default: what the trainer recommends, 3 at least]"),
        "device": click.option("--device", default="auto", show_default=True, metavar="auto|cpu|cuda[:n]",
            help="Where to run the sample."),
        "min-accuracy": click.option("--min-accuracy", type=click.FloatRange(0, 1), metavar="X",
            help="Refuse below this step-0 accuracy on the sample (0 to 1)."),
        "mapping": click.option("--mapping", "mappings", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
            help="Rules of your own: a new dialect or engine, or changes to one (schemas/ describe the form)."),
        "allow": click.option("--allow", multiple=True, metavar="CODE",
            help="Let this finding through (a seal records it)."),
        "allow-plugin": click.option("--allow-plugin", is_flag=True,
            help="What SGLang's own draft class cannot compute, write for this project's plugin, which must then be "
            "installed where SGLang runs (docs/engines.md)."),
        "strict": click.option("--strict", is_flag=True, help="Treat warnings as errors."),
        "report": click.option("--report", "report_file", type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE", help="Write the report there as well: .json, .html (one page, for people), .md, .sarif or "
            ".xml (JUnit)."),
        "json": click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout."),
        "verbose": click.option("-v", "--verbose", is_flag=True, help="Show everything that is otherwise counted."),
        "quiet": click.option("-q", "--quiet", is_flag=True, help="Print only errors."),
    }  # fmt: skip

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for name in reversed(names):
            command = table[name](command)
        return command

    return decorate


_COMMON = (
    *(
        "dialect",
        "target",
        "target-arch",
        "aux",
        "set",
        "sample",
        "sample-points",
        "positions",
        "prove",
        "steps",
        "device",
        "min-accuracy",
    ),
    *("mapping", "allow", "allow-plugin", "strict"),
)
_OUTPUT = ("report", "json", "verbose", "quiet")


@eagle3.command("convert", context_settings=CONTEXT, short_help="Convert a drafter into what an engine loads.")
@click.argument("source", metavar="IN")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@_options("engine")
@click.option("--to", default="", metavar="DIALECT", help="Write a trainer's form instead of an engine's.")
@_options(*_COMMON)
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]), help="Cast the weights.")
@click.option("--force", is_flag=True, help="Replace an OUT that an earlier run wrote.")
@click.option("--dry-run", is_flag=True, help="Check and print the plan; write nothing.")
@click.option("--no-digest", is_flag=True, help="Write without digests: faster, and a weaker seal.")
@_options(*_OUTPUT)
@VERSION
def convert_command(out: Path, dtype: str | None, force: bool, dry_run: bool, no_digest: bool, **options: Any) -> None:
    """Convert the drafter IN into the folder OUT.

    IN is a folder, a safetensors file, or a drafter on the Hub: org/name[@revision] or hf://org/name[@revision]/folder.

    OUT is what the engine will really load: tensors renamed, vocabulary map checked, config flat and explicit.
    It appears whole, after every check has passed, or not at all; IN is never changed.
    """
    show = Show({**options, "out": out})

    def run() -> Report:
        from converter.pipeline import convert

        request = _request(options, out=out, dtype=dtype or "", force=force, dry_run=dry_run, digest=not no_digest)
        with show.status() as told:
            return convert(request, show.progress, told)

    show.run(run, "converted")


@eagle3.command("validate", context_settings=CONTEXT, short_help="Say which engines can serve a drafter.")
@click.argument("sources", metavar="DRAFTER...", nargs=-1, required=True)
@_options("engine", *_COMMON)
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
@_options(*_OUTPUT)
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
            request = _request({**options, "source": sources[0]}, find_wiring, scan=not no_scan)
            report = validate_against(accepted, request, told)
        show.written = _renew(accepted, [report.held] if report.held is not None else [])
        return report

    show.run(run, "validated")


def _validate_several(options: dict[str, Any], **more: Any) -> NoReturn:
    show = ShowSeveral(options)

    def run() -> Several:
        from converter.report.several import held_of, validate_several

        accepted = _baseline(options)
        given = _request({**options, "source": ""}, **more)
        requests = [replace(given, source=source) for source in options["sources"]]
        with show.each(options["sources"]) as (began, ended, told):
            found = validate_several(requests, accepted, began=began, ended=ended, told=told)
        show.written = _renew(accepted, held_of(found))
        return found

    show.run(run, "several")


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

    with reader_may_leave():
        click.echo(json.dumps(rules.dialects(), indent=2) if as_json else rules.dialects_text())


@eagle3.group("engines", context_settings=CONTEXT)
def engines_group() -> None:
    """What is known of serving engines."""


@engines_group.command("list", context_settings=CONTEXT)
@click.argument("engine", required=False, metavar="[NAME[==RELEASE]]")
@_JSON
def engines_list_command(engine: str | None, as_json: bool) -> None:
    """List the engines, or all that is known of one release: what it ignores, and what its target classes capture."""
    from converter.errors import UsageError
    from converter.report import rules
    from converter.rules.engine import resolve

    if engine is None:
        with reader_may_leave():
            click.echo(json.dumps(rules.engines(), indent=2) if as_json else rules.engines_text())
        return
    try:
        releases = resolve(engine)
    except UsageError as problem:
        fail(2, str(problem))
    with reader_may_leave():
        if as_json:
            click.echo(json.dumps([rules.engine(r) for r in releases], indent=2))
        else:
            click.echo("\n\n".join(rules.engine_text(r) for r in releases))


def _request(options: dict[str, Any], find_wiring: bool = False, **more: Any) -> Request:
    from converter.drafter.points import parse_points
    from converter.errors import UsageError
    from converter.report.explain import known_codes, never_allowed
    from converter.rules import loading
    from converter.run import Request, Wish

    for path in options["mappings"]:
        loading.add(path)

    options["allow"] = tuple(code.upper() for code in options["allow"])
    for code in options["allow"]:
        if code not in known_codes():
            raise UsageError(f"--allow {code}: there is no such finding")
        if never_allowed(code):
            raise UsageError(f"--allow {code}: this cannot be let through, nothing right could be written")
    if options["min_accuracy"] != options["min_accuracy"]:  # NaN
        raise UsageError("--min-accuracy: expected a number from 0 to 1")
    points = {
        name: parse_points(options[name], f"--{name.replace('_', '-')}") if options[name] is not None else None
        for name in ("aux", "sample_points")
    }
    return Request(
        source=options["source"],
        engines=options["engines"],
        target=options["target"],
        target_arch=options["target_arch"],
        dialect=options["dialect"],
        to=options.get("to", ""),
        aux=points["aux"],
        given=_given(options["given"]),
        wish=Wish(
            sample=options["sample"],
            prove=options["prove"],
            find_wiring=find_wiring,
            sample_points=points["sample_points"],
            positions=options["positions"],
            steps=options["steps"],
            device=options["device"],
            min_accuracy=options["min_accuracy"],
        ),
        allow=options["allow"],
        allow_plugin=options["allow_plugin"],
        strict=options["strict"],
        command=_command(),
        **more,
    )


def _given(words: tuple[str, ...]) -> dict[str, Any]:
    """The fields of --set."""
    from converter.errors import UsageError

    given: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name in NORM_FLAGS and value.lower() in ("true", "false"):
            given[name] = value.lower() == "true"
        elif name == "rope_theta" and _positive(value) is not None:
            given[name] = _positive(value)
        elif name == "mask_token_id" and value.isdecimal():
            given[name] = int(value)
        elif name == "rope_scaling" and value in ("none", "config"):
            given[name] = value
        else:
            flags = ", ".join(NORM_FLAGS)
            raise UsageError(
                f"--set {word}: expected one of {flags}=true|false, rope_theta=NUMBER, mask_token_id=NUMBER or "
                "rope_scaling=none|config"
            )
    return given


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _command() -> tuple[str, ...]:
    """What the user typed, without the folder of the program."""
    program = Path(sys.argv[0]).name
    words = ("python", "-m", "converter") if program == "__main__.py" else (program,)
    return (*words, *sys.argv[1:])


eagle3.add_command(sample_command)
eagle3.add_command(inspect_command)
eagle3.add_command(diff_command)
eagle3.add_command(report_command)
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

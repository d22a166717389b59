"""Options that several commands have, and the request that they make."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from converter.drafter.spec import NORM_FLAGS

if TYPE_CHECKING:
    from converter.run import Request


def with_options(
    *names: str,
    subject: str = "DRAFTER",
    engines: str = "may be given more than once. [default: every engine]",
    allow: str = "Let this finding through.",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options that mean the same in every command that has them. The command's words for its input, and what its help
    says of several engines, of none, and of --allow.
    """
    table: dict[str, Callable[[Callable[..., None]], Callable[..., None]]] = {
        "engine": click.option("--engine", "engines", multiple=True, metavar="NAME[==RELEASE]",
            help="Engine and release, e.g. sglang==0.5.23 or vllm (the newest known) or 'sglang>=0.5.12' (all known); "
            f"{engines}"),
        "dialect": click.option("--dialect", default="", metavar="NAME",
            help=f"Read {subject} as a drafter of this dialect, whatever it looks like (eagle3 dialects lists them), "
            "or as an engine does: sglang==0.5.23."),
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
            "norm_output (true or false), rope_theta, mask_token_id (a number), rope_scaling (none: it was not trained "
            "with what the config says; config: it was)."),
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
            help=allow),
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


COMMON = (
    "dialect", "target", "target-arch", "aux", "set", "sample", "sample-points", "positions", "prove", "steps",
    "device", "min-accuracy", "mapping", "allow", "allow-plugin", "strict",
)  # fmt: skip
OUTPUT = ("report", "json", "verbose", "quiet")


def request_of(options: dict[str, Any], find_wiring: bool = False, **more: Any) -> Request:
    """The request that the options of a command make, those of `with_options` among them; `more` are fields of it. The
    rules of --mapping are in use from here on. Raises UsageError and RulesError.
    """
    from converter.drafter.points import parse_points
    from converter.errors import UsageError
    from converter.rules import loading
    from converter.run import Request, Wish

    for path in options["mappings"]:
        loading.add(path)

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
        sign=options.get("sign", ""),
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
        allow=allowed(options["allow"]),
        allow_plugin=options["allow_plugin"],
        strict=options["strict"],
        command=_command(),
        **more,
    )


def allowed(codes: tuple[str, ...]) -> tuple[str, ...]:
    """The codes of --allow. Raises UsageError for one that is none, or that cannot be let through."""
    from converter.errors import UsageError
    from converter.report.explain import known_codes, never_allowed

    codes = tuple(code.upper() for code in codes)
    for code in codes:
        if code not in known_codes():
            raise UsageError(f"--allow {code}: there is no such finding")
        if never_allowed(code):
            raise UsageError(f"--allow {code}: this cannot be let through, nothing right could be written")
    return codes


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
    """What the user typed, without the folder of the program, and without secrets."""
    from converter.hub.secrets import masked

    program = Path(sys.argv[0]).name
    words = ("python", "-m", "converter") if program == "__main__.py" else (program,)
    return tuple(masked((*words, *sys.argv[1:])))

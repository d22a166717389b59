"""`eagle3 sample`; what it does is in converter/capture/."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from converter.cli.common import CONTEXT, VERSION, fail, failure_of, say_failure
from converter.report.words import clean
from converter.signals import interruptible

if TYPE_CHECKING:
    from converter.capture.make import Made, Plan

_FILE = click.Path(path_type=Path)


@click.command("sample", context_settings=CONTEXT, short_help="Run a target and write its hidden states.")
@click.option(
    "--target",
    type=_FILE,
    required=True,
    metavar="FOLDER",
    help="The model to run: its folder, or org/name[@revision] on the Hub.",
)
@click.option(
    "--prompts",
    type=_FILE,
    metavar="FILE",
    help="What it answers: .jsonl with prompt or messages, else one prompt a line; - is stdin. [default: 16 bundled]",
)
@click.option(
    "--text",
    type=_FILE,
    metavar="FILE",
    help="A text to run through instead; nothing is generated. .jsonl with text, else one document; - is stdin.",
)
@click.option(
    "--points",
    default="default",
    show_default=True,
    metavar="all|default|LIST",
    help="Target states to record: embed,3,31 (as --aux of eagle3-convert), every one, or the usual with neighbours.",
)
@click.option(
    "--drafter",
    type=_FILE,
    metavar="IN",
    help="Record this drafter's points with their neighbours, the embedding and the last.",
)
@click.option(
    "--greedy", is_flag=True, help="Answers of the target's first choices. [default: sampled as it is served]"
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**32), help="Of sampled answers.")
@click.option(
    "--max-new-tokens", default=256, show_default=True, type=click.IntRange(1), metavar="N", help="Longest answer."
)
@click.option(
    "--max-prompt-tokens",
    default=1024,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Longer prompts are left out; longer texts are cut into pieces.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Take the first N prompts or pieces of text.")
@click.option("--no-chat-template", is_flag=True, help="Give prompts to the target as they are.")
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="auto|cpu|cuda[:n]",
    help="Where the target runs; auto spreads it over the GPUs that there are.",
)
@click.option(
    "--dtype",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "bfloat16", "float16", "float32"]),
    help="Run it in this type. auto: its own.",
)
@click.option("--trust-remote-code", is_flag=True, help="Run code that the target's folder brings. Read it first.")
@click.option("-o", "--out", type=_FILE, required=True, metavar="FILE", help="The sample (safetensors).")
@click.option("--force", is_flag=True, help="Replace FILE.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
@VERSION
def sample_command(quiet: bool, no_chat_template: bool, **options: Any) -> None:
    """Run a target on prompts or a text and write its hidden states to FILE, for eagle3-convert --sample.

    A run that was stopped goes on when the same command is given again: finished sequences are in FILE.part.
    """
    from converter.capture.make import Request, make_sample
    from converter.errors import Eagle3Error

    request = Request(chat_template=not no_chat_template, **options)
    show = _Show(request.out, quiet)
    try:
        with interruptible():
            made = make_sample(request, show)
    except KeyboardInterrupt:
        fail(130, f"interrupted; {show.kept()}")
    except (Eagle3Error, OSError) as problem:
        failure = failure_of(problem, f"; {show.kept()}")
        say_failure(failure)
        sys.exit(failure.exit_code)
    show.made(made, request.target, request.drafter)


class _Show:
    """Lines on stdout, bars on a terminal, errors on stderr."""

    def __init__(self, out: Path, quiet: bool) -> None:
        self._out = out
        self._quiet = quiet
        self.bars = not quiet and sys.stderr.isatty()
        self._done = self._total = 0

    def plan(self, plan: Plan) -> None:
        from converter.report.words import size

        self._line(
            f"{_count(plan.sequences, plan.kind)} x up to {plan.longest:,} tokens, "
            f"{_count(len(plan.points), 'point')} of {plan.width:,} in {plan.dtype}: up to {size(plan.nbytes)}"
        )
        self._line(f"points {', '.join(map(str, plan.points))} (0 the embedding, k the output of the k-th layer)")
        if plan.left_out:
            self._line(f"{_count(plan.left_out, 'prompt')} left out: longer than --max-prompt-tokens or the target")

    def begin(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        if done:
            self._line(f"going on: {done} of {total} sequences are in {self._out}.part")

    @contextmanager
    def capturing(self, done: int, total: int) -> Iterator[Callable[[int], None]]:
        with self._bar("capturing", total, done, "sequences") as step:

            def advance(positions: int) -> None:
                self._done += 1
                step(1)

            yield advance

    @contextmanager
    def merging(self, total: int) -> Iterator[Callable[[int], None]]:
        with self._bar("writing", total, 0, "") as step:
            yield step

    def made(self, made: Made, target: Path, drafter: Path | None) -> None:
        from converter.report.words import size

        what = f"{_count(made.sequences, 'sequence')}, {_count(made.positions, 'position')} that count"
        self._line(f"wrote {made.out} ({size(made.size)}): {what}, {made.decoding}, {made.dtype}")
        self._line(f"{made.greedy / made.positions:.1%} of them hold the target's own first choice")
        if made.replaced:
            why = "the full pass chose otherwise than the cached one"
            self._line(f"{_count(made.replaced, 'token')} of the answers replaced: {why}")
        source = "IN" if drafter is None else shlex.quote(str(drafter))
        words = ("--target", str(target), "--sample", str(made.out))
        self._line(f"\nNext:\n  eagle3-convert {source} OUT {shlex.join(words)}")

    def kept(self) -> str:
        """How to go on after a stop."""
        if not self._total:
            return "nothing was written"
        return (
            f"{self._done} of {self._total} sequences are kept in {self._out}.part: the same command goes on from there"
        )

    def _line(self, text: str) -> None:
        if not self._quiet:
            click.echo(clean(text))

    @contextmanager
    def _bar(self, label: str, total: int, done: int, unit: str) -> Iterator[Callable[[int], None]]:
        """Sequences, or bytes where there is no unit; nothing where there is no terminal."""
        if not self.bars:
            yield lambda count: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        counter = MofNCompleteColumn() if unit else DownloadColumn()
        columns = (label, BarColumn(), counter, unit, TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=total, completed=done)
            yield lambda count: bar.advance(task, count)


def _count(count: int, what: str) -> str:
    plural = what if count == 1 else f"{what}s" if " " not in what else what.replace(" ", "s ", 1)
    return f"{count:,} {plural}"

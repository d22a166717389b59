"""What the user should know about a sample that can be used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from converter.drafter.points import as_option, describe_points
from converter.findings import Finding, note
from converter.forward.sample_forms import OWN, Labels, Opened


def left_out(path: Path, files: list[Opened], unknown: list[Path], short: int, again: int) -> Iterator[Finding]:
    """F127 where sequences are too short or there twice, or where files are none of a sample."""
    parts = []
    if short:
        parts.append(f"{short:,} of {sum(len(f.sequences) for f in files):,} sequences, shorter than 2 tokens")
    if again:
        parts.append(f"{again:,} sequences that are there already, token by token")
    if unknown:
        parts.append(f"{len(unknown):,} files that hold no states, e.g. {unknown[0].name}")
    if parts:
        yield note("F127", "some of the sample was left out", where=str(path), found="; ".join(parts))


def reordered(path: Path, form: str, given: tuple[int, ...] | None, declared: tuple[int, ...]) -> Iterator[Finding]:
    """F129 where a trainer's file does not name its states and the drafter's points are not in layer order."""
    if form == OWN or given is not None or list(declared) == sorted(declared):
        return
    order = describe_points(tuple(sorted(set(declared))))
    yield note(
        "F129",
        "the states of the sample are taken in the order of the layers, not in that of the drafter's capture points",
        where=str(path),
        found=f"a drafter that declares {describe_points(declared)}",
        expected=order,
        why="vLLM and SGLang capture in the order of the layers, whatever the order of the ids; a trainer that then "
        "joins the states as they come has trained the drafter on that order, whatever its config says",
        fix=(f"where the file has another order:  --sample-points {as_option(declared)} (and the last layer)",),
    )


def text_only(
    path: Path,
    labels: Labels,
    has_head: bool,
    named: tuple[int, ...],
    last_point: int | None,
) -> Iterator[Finding]:
    """F128 where there is nothing to tell the target's choices by, and the text stands for them."""
    if labels != "text":
        return
    if not has_head:
        found, fix = "the file has no target_next", "give --target with its weights, to compute what it would say"
    else:
        found = f"no state of the target's last layer {last_point} among {describe_points(named)}"
        fix = f"capture {last_point} too, or correct --sample-points if the last state is that layer's"
    yield note(
        "F128",
        "the drafter is held against the text of the sample, not against the target's choices",
        where=str(path),
        found=found,
        why="a text that was not written by the target, or was sampled, is guessed less often than the target's choice",
        fix=(fix,),
    )


def part_only(
    path: Path, positions: int, files: int, of_files: int, sequences: int, of_sequences: int
) -> list[Finding]:
    """F135 where only a part of a large sample was taken; `of_sequences` is of the files that were opened."""
    if files == of_files and sequences == of_sequences:
        return []
    part = f"{files:,} of {of_files:,} files" if of_files > 1 else f"{sequences:,} of {of_sequences:,} sequences"
    return [
        note(
            "F135",
            f"a part of the sample was taken: {part}, {positions:,} positions that count",
            where=str(path),
            why="whole sequences are taken, spread over the sample, until there are enough",
            fix=("to take all: --positions 0",),
        )
    ]

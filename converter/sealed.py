"""Outputs of eagle3-convert as inputs: what their seals say of them, and what is to be said of reading them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from converter import gate, seal, tokenizer
from converter.checks.target import ADAPTER
from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.findings import Finding, error, warning
from converter.rules.dialect import Dialect
from converter.source import Source
from converter.target import read_target


def known_target(given: Path | None, architecture: str, sealed: Mapping[str, Any] | None) -> Target:
    """What is known of the target beside the drafter's own config: what the user says (--target, --target-arch), and of
    an output what its seal says was known before. Raises InputError as `read_target` does.
    """
    target = read_target(given, (*tokenizer.FILES, ADAPTER)) if given is not None else Target()
    before = seal.target_of(sealed) if sealed is not None else Target()
    if architecture:
        target = replace(target, architecture=architecture)
    if target.layers is None and before.architecture and target.architecture in ("", before.architecture):
        target = replace(before, name=target.name)
    return target


def not_as_sealed(source: Source, sealed: Mapping[str, Any]) -> list[Finding]:
    """C233 where an output is not what was sealed."""
    return gate.changed_since(sealed, seal.listing(source.folder), str(source.folder))


def no_reader(source: Source, engines: Sequence[str], target: Target) -> Finding:
    """C234: none of the releases that the seal names is known here, or what it reads depends on the target's class."""
    known = f"; the target's class is {target.architecture}" if target.architecture else ""
    return error(
        "C234",
        "no engine that this output was written for can be asked what is in it",
        where=str(source.folder / seal.NAME),
        found=", ".join(engines) + known if engines else "no engines",
        expected="a release that is known here, and the target's class, without which ids mean nothing",
        fix=(
            *(() if target.architecture else ("--target FOLDER, or --target-arch CLASS",)),
            "with rules of your own: --mapping FILE, as when it was written",
        ),
    )


def launch_unknown(dialect: Dialect, spec: DrafterSpec) -> list[Finding]:
    """C235 for an output of an older eagle3-convert, whose seal does not say what travels in launch options."""
    options = {field: rule["launch"] for field, rule in dialect.rules["fields"].items() if "launch" in rule}
    silent = {field: option for field, option in options.items() if spec.origins[field].where == option}
    if not silent:
        return []
    return [
        warning(
            "C235",
            f"what this output is told at launch is in neither its config nor its seal: {', '.join(silent)}",
            where=seal.NAME,
            found=f"read as if it were served without {', '.join(silent.values())}",
            why="the launch command that was printed when it was written may have had that option",
            fix=("look into that command, or convert again what it was made from",),
        )
    ]


def for_another(source: Source, asked: str, engines: Sequence[str]) -> Finding:
    """C232: it is read as another release than those that the seal names."""
    written_for = ", ".join(engines) or "no engine"
    return warning(
        "C232",
        f"this output was written for {written_for}, and is read as {asked} does",
        where=str(source.folder / seal.NAME),
        why="what another engine does not find in it, ids above all, it takes by its own defaults: another drafter",
        fix=tuple(f"read it as it was meant: --dialect {engine}" for engine in engines),
    )


def allowed_once(source: Source, sealed: Mapping[str, Any]) -> list[Finding]:
    """C231 where an output was written though an error spoke against it."""
    codes = seal.texts_at(sealed, "allowed")
    if not codes:
        return []
    return [
        warning(
            "C231",
            f"this folder was written with {', '.join(codes)} allowed",
            where=str(source.folder / seal.NAME),
            why="it is not the drafter that was trained: what its form could not hold is lost in it",
            fix=(f"go back to what it was made from: {seal.text_at(sealed, 'source.given')}",),
        )
    ]


def own_output(source: Source, sealed: Mapping[str, Any], engines: Sequence[str]) -> Finding:
    """F112: an output bears two conventions at once, and what a trainer's file would leave open was decided for it."""
    made_from = seal.text_at(sealed, "source.given") or "the trainer's own checkpoint"
    return error(
        "F112",
        "this folder is an output of eagle3-convert, for an engine; a trainer's checkpoint is expected",
        where=str(source.folder / seal.NAME),
        why="nothing is said of whether it is in order",
        fix=(
            f"give what it was made from: {made_from}",
            *(f"or have it read as that engine does: --dialect {engine}" for engine in engines),
        ),
    )

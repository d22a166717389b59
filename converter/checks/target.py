"""The drafter against the target it will serve, as far as the target's config tells."""

from __future__ import annotations

from collections.abc import Iterator

from converter.drafter.drafter import Provenance
from converter.drafter.spec import DrafterSpec, Rope
from converter.drafter.target import Target
from converter.findings import Finding, error, note, warning


def check_target(spec: DrafterSpec, provenance: Provenance, target: Target) -> Iterator[Finding]:
    """C210 hidden size, C211 vocabulary, C212 another class, C213 another rope than the target's."""
    if target.hidden_size is not None and target.hidden_size != spec.target_hidden_size:
        yield error(
            "C210",
            "the target's hidden states are not as wide as the drafter's fc takes them",
            where=target.where,
            found=f"target hidden size {target.hidden_size}",
            expected=str(spec.target_hidden_size),
            why="this is not the target that the drafter was trained for",
        )
    if target.vocab_size is not None and target.vocab_size != spec.vocab_size:
        yield error(
            "C211",
            "drafter and target have different vocabularies",
            where=target.where,
            found=f"target {target.vocab_size:,} tokens",
            expected=f"{spec.vocab_size:,}, the vocab_size of the drafter's config",
            why="draft ids would be mapped to other tokens, or past the end",
        )
    trained_for = provenance.target_architecture
    if target.architecture and trained_for and target.architecture != trained_for:
        yield warning(
            "C212",
            f"the drafter was trained for a {trained_for}, the target is a {target.architecture}",
            where=target.where,
        )
    if target.rope is not None and target.rope != spec.rope:
        yield note(
            "C213",
            "drafter and target rotate differently",
            where=spec.origins["rope"].where,
            found=f"drafter {_rope(spec.rope)}",
            expected=f"target {_rope(target.rope)}",
            why="that is fine if it was trained so; scaling that a converter lost makes acceptance fall with length",
        )


def _rope(rope: Rope) -> str:
    words = [] if rope.kind == "default" and not rope.parameters else [rope.kind]
    words += [f"{name} {value}" for name, value in rope.parameters]
    return f"theta {rope.theta:g}" + (f", {words[0]} {', '.join(words[1:])}" if words else "")

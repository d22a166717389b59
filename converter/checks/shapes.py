"""Tensors of another shape than the config implies, and what such a shape usually is."""

from __future__ import annotations

from collections.abc import Iterator

from converter.checkpoint.reader import StoredTensor
from converter.drafter.layout import Expected
from converter.drafter.spec import DrafterSpec
from converter.findings import Finding, error
from converter.rules import loading

_TABLES = {"embed_tokens.weight": "vocab_size", "lm_head.weight": "draft_vocab_size"}


def misshapen(canonical: str, stored: StoredTensor, expected: Expected, spec: DrafterSpec) -> Finding:
    """T104 of a tensor whose shape is not the expected one."""
    hints = list(_hints(canonical, stored.info.shape, expected, spec))
    return error(
        "T104",
        f"{stored.name} does not have the shape that the config implies",
        where=stored.name,
        found=str(list(stored.info.shape)) + (f": {'; '.join(hints)}" if hints else ""),
        expected=str(expected),
        why=_consequence(canonical, stored.info.shape, expected.shape),
        fix=("config.json and weights belong to different drafters, or a number in config.json is wrong",),
    )


def _consequence(canonical: str, found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    common = loading.load("", "common")
    if len(found) == len(expected) and found[1:] == expected[1:]:
        rows = "more" if found[0] > expected[0] else "fewer"
        for case in common["other_rows"]:
            if case["rows"] == rows and canonical.endswith(tuple(case["tensors"])):
                return str(case["then"])
    return str(common["otherwise"])


def _hints(canonical: str, found: tuple[int, ...], expected: Expected, spec: DrafterSpec) -> Iterator[str]:
    """What the shape looks like, in words; nothing where it looks like nothing known."""
    if len(found) != len(expected.shape):
        yield f"{len(found)} axes instead of {len(expected.shape)}"
        return
    rows, wanted = found[0], expected.shape[0]
    if canonical in _TABLES and rows != wanted:
        yield from _table_rows(canonical, rows, wanted, spec)
    elif rows != wanted and rows % wanted == 0:
        yield f"{rows // wanted} times the rows"
    head = spec.origins["head_dim"]
    if canonical.endswith("q_proj.weight") and spec.latent is None and rows != wanted:
        width, rest = divmod(rows, spec.num_attention_heads)
        if not rest:
            read = "not stated, so taken as " if head.how == "derived" else ""
            yield f"{spec.num_attention_heads} heads of {width}, where head_dim is {read}{spec.head_dim}"
    if expected.why and found[1:] == (spec.hidden_size,):  # of those that take embedding and state side by side
        yield "the columns of a plain layer, which takes no embedding beside the state"


def _table_rows(canonical: str, rows: int, wanted: int, spec: DrafterSpec) -> Iterator[str]:
    """Of a table with a row for each token."""
    key = _TABLES[canonical]
    if canonical == "lm_head.weight" and rows == spec.vocab_size:
        yield "a row for every token of the target, none left out"
    elif rows > wanted:
        yield f"{rows - wanted:,} rows more than {key}, as in a table that was padded"
    else:
        yield f"{wanted - rows:,} rows fewer than {key}: cut short, or {key} is another table's"
    if spec.origins[key].how in ("default", "derived"):
        yield f"{key} is not stated, so taken as {wanted:,}"

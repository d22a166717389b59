"""Tensors that hold the rows of several matrices: which are known by name, and cutting them into their parts.

How rows lie in such a tensor cannot be told by its shape, so only layouts that rules name are split: those of
mappings/fused.yaml, and a dialect's own (`fused`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from converter.checkpoint.reader import Checkpoint, run_name
from converter.drafter.layout import expected_tensors
from converter.drafter.quantised import COMPANIONS
from converter.drafter.spec import DrafterSpec
from converter.findings import Finding, error, some_of, warning
from converter.rules import loading
from converter.rules.names import fill, match

ASSUMED = "T112"
UNSPLIT = ("T102", "T113", "T114")  # what leaves nothing to go on with

Table = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Fused:
    """name   of the tensor in the checkpoint
    parts  canonical tensors whose rows it holds, in their order
    """

    name: str
    parts: tuple[str, ...]


def fused_modules(rules: Mapping[str, Any]) -> Table:
    """The modules that a dialect's rules know to be fused: its own first, then those of every dialect."""
    own = rules.get("fused", {})
    common = loading.load("", "fused")["fused"]
    return {name: row for name, row in {**own, **{n: r for n, r in common.items() if n not in own}}.items() if row}


def fused_tensor(table: Table, name: str, own: str) -> Fused | None:
    """What the tensor `name` (`own` without wrappers) holds, where it or what goes with it is a fused one."""
    module, _, last = own.rpartition(".")
    if last not in ("weight", "bias", *COMPANIONS):
        return None
    for pattern, row in table.items():
        indexes = match(pattern, module)
        if indexes is not None:
            return Fused(name, tuple(f"{fill(part, indexes)}.{last}" for part in row["into"]))
    return None


def split(
    fused: Sequence[Fused], spec: DrafterSpec, checkpoint: Checkpoint, tensors: Mapping[str, str]
) -> tuple[Checkpoint, dict[str, str], list[Finding]]:
    """The checkpoint with the fused tensors cut, and `tensors` (canonical name -> stored name) with their parts.

    Findings: T102 a part that is there by itself too, T112 the layout taken, T113 a number of rows that does not fit,
    T114 quantised.
    """
    expected = expected_tensors(spec)
    named, runs, findings = dict(tensors), {}, []
    for tensor in fused:
        twin = next((named[part] for part in tensor.parts if part in named), None)
        shape = checkpoint.tensors[tensor.name].info.shape
        if tensor.parts[0].rpartition(".")[2] in COMPANIONS:
            findings.append(_quantised(tensor))
        elif twin is not None:
            findings.append(_twice(tensor, twin))
        else:
            # A bias that the config does not speak of has as many rows as its weight; check_tensors says the rest.
            weights = [f"{part.rpartition('.')[0]}.weight" for part in tensor.parts]
            counts = [expected[weight].shape[0] if weight in expected else 0 for weight in weights]
            if not shape or sum(counts) != shape[0] or not all(counts):
                findings.append(_other_rows(tensor, shape, counts))
                continue
            runs[tensor.name] = counts
            first = 0
            for part, count in zip(tensor.parts, counts, strict=True):
                named[part] = run_name(tensor.name, first, count)
                first += count
    if runs and not any(f.code in UNSPLIT for f in findings):
        findings.append(_assumed([t for t in fused if t.name in runs]))
    return checkpoint.cut(runs), named, findings


def _words(parts: Sequence[str]) -> str:
    names = [part.split(".")[-2] for part in parts]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _assumed(fused: Sequence[Fused]) -> Finding:
    kinds = dict.fromkeys(_words(tensor.parts) for tensor in fused)
    return warning(
        ASSUMED,
        f"the rows of {'; of '.join(kinds)} are taken to lie one after another in one tensor",
        where=some_of([t.name for t in fused]),
        why="that is what these names mean to vLLM, SGLang and transformers; rows laid out by head or by rank have the "
        "same shape, and would make another drafter of it",
        fix=("a sample shows it: --sample SAMPLE",),
    )


def _twice(tensor: Fused, twin: str) -> Finding:
    return error(
        "T102",
        f"{tensor.name} holds {_words(tensor.parts)}, and {twin} is one of them again",
        where=tensor.name,
        expected="one of the two forms",
        fix=("remove the stale one from the checkpoint",),
    )


def _other_rows(tensor: Fused, shape: Sequence[int], counts: Sequence[int]) -> Finding:
    return error(
        "T113",
        f"{tensor.name} does not have the rows of {_words(tensor.parts)}",
        where=tensor.name,
        found=str(list(shape)),
        expected=f"{' + '.join(map(str, counts))} = {sum(counts)} rows",
        why="it was cut short, holds a part of each (tensor parallelism), or config.json is of another drafter",
        fix=("save the checkpoint again, whole, or correct the numbers of heads and widths in config.json",),
    )


def _quantised(tensor: Fused) -> Finding:
    return error(
        "T114",
        f"{tensor.name} belongs to a quantised tensor that holds {_words(tensor.parts)}",
        where=tensor.name,
        why="its scales may be shared by blocks of rows or by all of them, so it is not split",
        fix=("save the drafter unquantised, or with the matrices apart",),
    )

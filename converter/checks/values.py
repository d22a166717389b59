"""What the values of the weights tell by themselves: tensors that were lost, doubled, or never trained.

Matrices are judged by some of their rows (`sampling`), norms by all of their values. A tensor that has another shape or
dtype than the config implies is left to the checks that say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from converter.checkpoint.header import FLOATS
from converter.checkpoint.reader import Checkpoint
from converter.checks.fresh import start_of
from converter.checks.sampling import Rows, sample
from converter.drafter.layout import expected_tensors
from converter.drafter.spec import DrafterSpec
from converter.findings import Finding, error, some_of, warning
from converter.transforms import as_float32

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TABLES = ("embed_tokens.weight", "lm_head.weight")
# Share of rows or columns that are zero: rows of tokens that no text has may be, and a few dead neurons are known.
_ZERO_SHARE, _ZERO_SHARE_OF_TABLES = 1 / 8, 1 / 2
_RAW_SIZE = 4.0  # root mean square: weights of a trained matrix stay well below 1, fp8 and int8 numbers above 10
_FP8_LARGEST = 448.0  # of e4m3, which quantisers scale the largest value to
_CONFIRM = "a sample shows what the drafter is worth: --sample FILE"


@dataclass(frozen=True)
class _Weights:
    """matrices   canonical name -> sampled rows, for those that are not all zeros
    norms      canonical name -> values [n], likewise
    names      canonical name of each tensor, these and others -> name in the checkpoint; dtypes: -> dtype
    """

    matrices: Mapping[str, Rows]
    norms: Mapping[str, NDArray[np.float32]]
    names: Mapping[str, str]
    dtypes: Mapping[str, str]

    def where(self, canonical: list[str]) -> str:
        return some_of([self.names[c] for c in canonical])

    @cached_property
    def starts(self) -> dict[str, str]:
        """Matrices that are as an initialiser left them -> how."""
        found = {c: start_of(rows.values, table=c == "embed_tokens.weight") for c, rows in self.matrices.items()}
        return {c: start for c, start in found.items() if start}

    @property
    def norms_are_ones(self) -> bool:
        return bool(self.norms) and all(bool((values == 1).all()) for values in self.norms.values())


def check_values(
    spec: DrafterSpec, checkpoint: Checkpoint, tensors: Mapping[str, str], known: frozenset[str] = frozenset()
) -> Iterator[Finding]:
    """T115 all zeros, T116 one value, T117 partly zero, T118 there twice, T119 and T120 never trained, T121 norms that
    were not, T122 quantised numbers without their scale.

    tensors  canonical name -> name in the checkpoint, quantised weights left out
    known    canonical names of tensors that other findings say are not the drafter's (T109, T123)
    """
    weights, zero = _read(spec, checkpoint, tensors)
    if zero:
        yield _zeros(zero, weights)
    constant = [c for c, rows in weights.matrices.items() if bool((rows.values == rows.values[0, 0]).all())]
    if constant:
        yield _constant(constant, weights)
        weights = replace(weights, matrices={c: rows for c, rows in weights.matrices.items() if c not in constant})
    yield from _partly_zero(spec, weights)
    yield from _repeated(spec, checkpoint, weights)
    yield from _raw_numbers(weights)
    yield from _never_trained(spec, weights, known)


def _read(spec: DrafterSpec, checkpoint: Checkpoint, tensors: Mapping[str, str]) -> tuple[_Weights, list[str]]:
    """The weights to judge, and the canonical names of those that are all zeros."""
    matrices, norms, names, dtypes, zero = {}, {}, {}, {}, []
    for canonical, expected in expected_tensors(spec).items():
        info = checkpoint.tensors[tensors[canonical]].info if canonical in tensors else None
        if info is None or info.dtype not in FLOATS or info.shape != expected.shape:
            continue
        name = tensors[canonical]
        names[canonical], dtypes[canonical] = name, info.dtype
        if len(info.shape) == 2 and min(info.shape) > 1:
            rows = sample(checkpoint, name)
            if rows.values.any():
                matrices[canonical] = rows
            else:
                zero.append(canonical)
        elif canonical.endswith("norm.weight") or canonical.startswith("fc_norm."):
            values = as_float32(checkpoint.read(name), info.dtype)
            if values.any():
                norms[canonical] = values
            else:
                zero.append(canonical)
    return _Weights(matrices, norms, names, dtypes), zero


def _zeros(canonical: list[str], weights: _Weights) -> Finding:
    [one] = canonical if len(canonical) == 1 else [""]
    return error(
        "T115",
        f"{weights.names[one]} is all zeros" if one else f"{len(canonical)} tensors are all zeros",
        where=weights.where(canonical),
        found="all values looked at, from end to end of it" if one else "all values looked at, from end to end of them",
        expected="trained weights",
        why="nothing passes through it: the part of the drafter behind it does not see what comes before",
        fix=("save the checkpoint again: the tensor was allocated and never filled",),
    )


def _constant(canonical: list[str], weights: _Weights) -> Finding:
    [one] = canonical if len(canonical) == 1 else [""]
    value = float(weights.matrices[canonical[0]].values[0, 0])
    return error(
        "T116",
        f"every value of {weights.names[one] if one else f'{len(canonical)} matrices'} is the same",
        where=weights.where(canonical),
        found=f"{value:g}",
        expected="trained weights",
        why="a matrix of one value passes on a single number of what it is given",
        fix=("save the checkpoint again, or take an earlier one of the run",),
    )


def _partly_zero(spec: DrafterSpec, weights: _Weights) -> Iterator[Finding]:
    for canonical, rows in weights.matrices.items():
        present = rows.values != 0
        zero_rows = int((~present.any(axis=1)).sum())
        limit = _ZERO_SHARE_OF_TABLES if canonical in _TABLES else _ZERO_SHARE
        if zero_rows >= limit * len(present):
            yield _part(weights.names[canonical], f"{zero_rows:,} of {len(present):,} rows looked at")
            continue
        columns = present.any(axis=0)
        empty = int((~columns).sum())
        if empty < limit * len(columns):
            continue
        what = f"{empty:,} of {len(columns):,} columns"
        if canonical == "fc.weight":
            blocks = [i for i, block in enumerate(_blocks(columns, spec.num_points)) if not block.any()]
            if blocks:
                states = ", ".join(_ordinal(i) for i in blocks)
                what += f": all of the {states} of {spec.num_points} captured states"
        yield _part(weights.names[canonical], what)
    for canonical, values in weights.norms.items():
        empty = int((values == 0).sum())
        if empty * 2 >= len(values):
            yield _part(weights.names[canonical], f"{empty:,} of {len(values):,} values")


def _ordinal(index: int) -> str:
    return {0: "1st", 1: "2nd", 2: "3rd"}.get(index, f"{index + 1}th")


def _part(name: str, what: str) -> Finding:
    return warning(
        "T117",
        f"a part of {name} is zero",
        where=name,
        found=what,
        why="what was to be computed there is left out; a save or a merge of ranks that filled only a part looks so",
        fix=(_CONFIRM,),
    )


def _repeated(spec: DrafterSpec, checkpoint: Checkpoint, weights: _Weights) -> Iterator[Finding]:
    """Bits are compared, and no two trained rows have the same: one repeated half is certain."""
    import numpy as np
    import xxhash

    for canonical, rows in weights.matrices.items():
        name = weights.names[canonical]
        if np.array_equal(rows.upper, rows.lower) and not _shared_heads(spec, checkpoint, canonical, name):
            yield _twice(name, "the second half of its rows is the first", "merged")
            continue
        count = spec.num_points if canonical == "fc.weight" else 2
        first, *others = _blocks(rows.upper, count, axis=1) if rows.upper.shape[1] % count == 0 else [rows.upper]
        same = [i for i, block in enumerate(others, 1) if first.any() and np.array_equal(first, block)]
        if same:
            where = "columns" if count == 2 else "columns, one for each captured state,"
            yield _twice(name, f"block 1 of {count} of its {where} is there again as {_numbers(same)}", "merged")
    seen: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    for canonical, rows in weights.matrices.items():
        if canonical in _TABLES:  # embedding and head may be one
            continue
        digest = xxhash.xxh3_128(rows.upper.tobytes() + rows.lower.tobytes()).digest()
        key = (rows.dtype, rows.upper.shape, digest)
        other = seen.setdefault(key, canonical)
        if other != canonical:
            names = f"{weights.names[other]}, {weights.names[canonical]}"
            yield _twice(names, "the rows looked at are the same in both", "cut")


def _numbers(indices: list[int]) -> str:
    return " and ".join(str(i + 1) for i in indices)


def _blocks(values: NDArray[Any], count: int, axis: int = 0) -> list[NDArray[Any]]:
    import numpy as np

    return np.array_split(values, count, axis=axis)


def _shared_heads(spec: DrafterSpec, checkpoint: Checkpoint, canonical: str, name: str) -> bool:
    """Heads of k or v may be there several times side by side, one for each group of q that shared them."""
    if not canonical.endswith(("k_proj.weight", "v_proj.weight")):
        return False
    if spec.num_key_value_heads <= 2:
        return True
    first, second = checkpoint.rows(name, 0, spec.head_dim), checkpoint.rows(name, spec.head_dim, spec.head_dim)
    return bool((first == second).all())


def _twice(names: str, what: str, how: str) -> Finding:
    made = "the parts of several ranks were joined wrongly" if how == "merged" else "one was saved as the other"
    return error(
        "T118",
        "the same weights are there twice",
        where=names,
        found=what,
        expected="different ones",
        why=f"{made}, and what belongs there is lost; an engine loads it without a word",
        fix=("merge or cut the tensors of the training run again",),
    )


def _raw_numbers(weights: _Weights) -> Iterator[Finding]:
    import numpy as np

    for canonical, rows in weights.matrices.items():
        values = rows.values
        if not np.isfinite(values).all() or float(np.sqrt(np.square(values, dtype=np.float64).mean())) < _RAW_SIZE:
            continue
        largest = float(np.abs(values).max())
        sixteenths = np.frexp(values)[0] * 16
        fp8 = largest == _FP8_LARGEST and bool((sixteenths == np.rint(sixteenths)).all())
        whole = bool((values == np.rint(values)).all())
        if fp8 or whole:
            yield error(
                "T122",
                f"{weights.names[canonical]} holds quantised numbers, not weights",
                where=weights.names[canonical],
                found="fp8 numbers up to 448" if fp8 else f"whole numbers up to {largest:g}",
                expected="weights, that is numbers times their scale",
                why="somebody cast the quantised tensor to floating point and left its scale out",
                fix=("multiply by the scales, or convert the unquantised drafter",),
            )


def _never_trained(spec: DrafterSpec, weights: _Weights, known: frozenset[str]) -> Iterator[Finding]:
    starts = {c: start for c, start in weights.starts.items() if c not in known}
    core = [c for c, e in expected_tensors(spec).items() if c.startswith("layers.0.") and len(e.shape) == 2]
    if all(c in starts for c in core):
        yield error(
            "T119",
            "the first decoder layer was never trained",
            where=weights.where(core),
            found=f"all {len(core)} matrices are at their random start: {starts[core[0]]}"
            + ("; every norm is all ones" if weights.norms_are_ones else ""),
            expected="trained weights",
            why="it was saved before training, or its trained tensors were lost on the way and it was set up anew",
            fix=("find the checkpoint that was trained, and look how its decoder layer was named",),
        )
        starts = {c: start for c, start in starts.items() if c not in core}
    if starts:
        rest = list(starts)
        yield warning(
            "T120",
            f"{weights.names[rest[0]]} was never trained"
            if len(rest) == 1
            else f"{len(rest)} matrices were never trained",
            where=weights.where(rest),
            found=f"values are at their random start: {starts[rest[0]]}",
            expected="trained weights",
            why="training did not reach them, or their trained values were lost on the way",
            fix=(_CONFIRM,),
        )
    if not weights.starts:
        yield from _norms(weights)


def _norms(weights: _Weights) -> Iterator[Finding]:
    """In 16 bits an update is lost on a one unless it is above 0.002, so only what was trained in 32 bits tells."""
    flat = [c for c, values in weights.norms.items() if len(values) > 1 and bool((values == values[0]).all())]
    odd = [c for c in flat if weights.norms[c][0] != 1]
    wide = all(weights.dtypes[c] in ("F32", "F64") for c in weights.norms)
    if odd:
        value = float(weights.norms[odd[0]][0])
        yield _untouched(f"every value of {weights.names[odd[0]]} is {value:g}", odd, weights)
    elif weights.norms_are_ones and wide and any(map(_uses_32_bits, weights.matrices.values())):
        yield _untouched("every norm of the drafter is all ones", list(weights.norms), weights)


def _uses_32_bits(rows: Rows) -> bool:
    """Not merely a wider copy of bf16 weights."""
    import numpy as np

    return rows.dtype == "F64" or (rows.dtype == "F32" and bool((rows.upper.view(np.uint32) & 0xFFFF).any()))


def _untouched(found: str, canonical: list[str], weights: _Weights) -> Finding:
    return warning(
        "T121",
        f"{found}: its norms seem never to have been trained",
        where=weights.where(canonical),
        expected="values that differ, as training leaves them",
        why="norms that were lost are set up anew as ones without a word, and everything behind them is scaled wrongly",
        fix=(_CONFIRM,),
    )

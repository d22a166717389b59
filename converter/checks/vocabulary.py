"""The vocabulary map: as d2t and t2d hold it, and as the rows of a frozen head tell it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from converter.checkpoint.reader import Checkpoint
from converter.checks.rows import check_head, recover_map, recovered
from converter.drafter.vocab import VocabularyMap, decide
from converter.findings import Finding, error
from converter.rules.dialect import Dialect, DialectReading
from converter.target_weights import RowTable

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_vocabulary(
    dialect: Dialect, reading: DialectReading, checkpoint: Checkpoint
) -> tuple[VocabularyMap | None, list[Finding]]:
    """The map as the checkpoint has it, None where there is none or where findings say why: V209 of a tensor that
    cannot be one, and what `decide` finds. Raises InputError as `Checkpoint.read` does.
    """
    import numpy as np

    assert reading.spec is not None
    arrays: dict[str, NDArray[Any] | None] = {}
    for canonical in ("d2t", "t2d"):
        name = reading.tensors.get(canonical)
        arrays[canonical] = None if name is None else checkpoint.read(name)
        if name is not None:
            info = checkpoint.tensors[name].info
            integer = info.dtype[0] in "IU" or (canonical == "t2d" and info.dtype == "BOOL")
            if not integer or len(info.shape) != 1:
                return None, [_no_map(name, info.dtype, info.shape)]
    marks = arrays["t2d"]
    vocab, findings = decide(
        arrays["d2t"],
        None if marks is None else marks.astype(np.bool_),
        reading.spec.vocab_size,
        reading.spec.draft_vocab_size,
        dialect.map_form,
    )
    lost = dialect.rules.get("map_lost", "")
    if lost:
        findings = [replace(f, fix=(*f.fix, lost)) if f.code == "V204" else f for f in findings]
    return vocab, findings


def _no_map(name: str, dtype: str, shape: tuple[int, ...]) -> Finding:
    marks = name.endswith("t2d")
    return error(
        "V209",
        f"{name} is no vocabulary map",
        where=name,
        found=f"{dtype} {list(shape)}",
        expected="one row of integers" + (" or booleans" if marks else ""),
        why="which tokens the drafter means cannot be told",
        fix=(f"save it again as {'bool, one for each target' if marks else 'int64, one entry for each draft'} token",),
    )


def with_head_rows(
    dialect: Dialect,
    reading: DialectReading,
    checkpoint: Checkpoint,
    table: RowTable,
    vocab: VocabularyMap | None,
    findings: list[Finding],
) -> tuple[VocabularyMap | None, list[Finding]]:
    """Verify the map on the target's head rows where the trainer freezes the head, or recover it where it was lost."""
    spec = reading.spec
    assert spec is not None
    head = reading.tensors.get("lm_head.weight")
    if head is None or checkpoint.tensors[head].info.shape != (spec.draft_vocab_size, table.shape[1]):
        return vocab, findings
    lost = next((f for f in findings if f.severity == "error"), None)
    if lost is not None:
        found = recover_map(spec, checkpoint, reading.tensors, table)
        return (vocab, findings) if found is None else (found, [recovered(found, lost, table)])
    return vocab, [*findings, *check_head(checkpoint, head, vocab, table, dialect.rules.get("head") == "frozen")]

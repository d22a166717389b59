"""What tells one target's weights from another's, without loading them: names, shapes and a few rows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from converter.checkpoint.header import FLOATS
from converter.checkpoint.reader import Checkpoint
from converter.errors import InputError
from converter.target import read_target
from converter.target_weights import open_target_weights, read_target_weights

if TYPE_CHECKING:
    from converter.target_weights import RowTable, TargetWeights

_ROWS = 64
_NORMS = ("norm.weight", "ln_f.weight")


def target_fingerprint(place: Path) -> str:
    """SHA-256 in hex over the target's class, the name, dtype and shape of every tensor, the norms outside its layers,
    and 64 evenly spaced rows of its embedding and of its head. "" where `place`, the target's folder or its id on the
    Hub, holds no weights.

    The same for one file and for shards of the same weights. Raises InputError where a file is damaged or cannot be
    had.
    """
    checkpoint = open_target_weights(place)
    if checkpoint is None:
        return ""
    target = read_target(place)
    tensors = sorted((t.name, t.info.dtype, list(t.info.shape)) for t in checkpoint.tensors.values())
    document = {"architecture": target.architecture, "tensors": tensors}
    digest = hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    for name in _norms(checkpoint):
        digest.update(checkpoint.read(name).tobytes())
    weights = read_target_weights(place, target.vocab_size or 1, target.hidden_size or 0)
    for table in (weights.embedding, weights.head) if weights is not None else ():
        if table is not None:
            digest.update(_rows(table))
    return digest.hexdigest()


def fingerprint_at_hand(weights: TargetWeights | None) -> str:
    """The same of a target whose tables are here; "" where there are none, or they would have to be fetched first."""
    tables = [t for t in (weights.embedding, weights.head) if t is not None] if weights is not None else []
    if weights is None or weights.place is None or not tables:
        return ""
    if not all(table.checkpoint.tensors[table.name].file.exists() for table in tables):
        return ""
    try:
        return target_fingerprint(weights.place)
    except InputError:  # offline, and a norm was never fetched
        return ""


def _norms(checkpoint: Checkpoint) -> list[str]:
    """Norms whose name has no number of a layer in it."""
    return sorted(
        name
        for name, tensor in checkpoint.tensors.items()
        if len(tensor.info.shape) == 1
        and tensor.info.dtype in FLOATS
        and name.endswith(_NORMS)
        and not any(part.isdigit() for part in name.split("."))
    )


def _rows(table: RowTable) -> bytes:
    last = table.shape[0] - 1
    return table.checkpoint.picked(table.name, sorted({i * last // (_ROWS - 1) for i in range(_ROWS)})).tobytes()

"""Samples in PyTorch pickles: what older releases of speculators and SpecForge write. Weights-only, always."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from converter.checkpoint.pickled import load_pickle
from converter.errors import InputError
from converter.findings import error
from converter.forward.sample_forms import DATA_PT, OFFLINE, Opened, States, Stored, no_sample, other_target, unfit

_UNFOLDS = 64  # times its size that a gzipped file may unfold to; states of 16 bits shrink by a third at most
_FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class _Pickled:
    """Tensors of a pickle: a list of [T, H], or one [T, P * H]. The file is opened anew for each reading."""

    file: Path
    gzipped: bool
    key: str
    listed: bool
    count: int
    length: int
    width: int
    coarse: bool = False

    def rows(self, index: int, start: int, stop: int) -> Tensor:
        values = _load(self.file, self.gzipped)[self.key]
        if self.listed:
            return _flat(values[index], 2)[start:stop].clone()
        return _flat(values, 2)[start:stop, index * self.width : (index + 1) * self.width].clone()


_unpacked: tuple[tuple[Path, int], bytes] | None = None  # the last gzipped file: its states are read one by one


def _load(path: Path, gzipped: bool) -> Any:
    global _unpacked
    if not gzipped:
        return load_pickle(path)
    try:
        stamp = (path, path.stat().st_mtime_ns)
        if _unpacked is None or _unpacked[0] != stamp:
            most = path.stat().st_size * _UNFOLDS
            with gzip.open(path) as file:
                content = file.read(most)
                if len(content) == most and file.read(1):
                    raise no_sample(path, f"it unfolds to more than {_UNFOLDS} times its size, which no states do")
            _unpacked = (stamp, content)
        return load_pickle(path, _unpacked[1])
    except (OSError, EOFError, zlib.error) as problem:
        raise InputError(
            error("F101", f"{path.name} is no readable gzip file", where=str(path), found=str(problem)[:200])
        ) from problem


def open_pickle(path: Path, width: int, gzipped: bool) -> Opened | None:
    """`width` is the target's hidden size. None where the file holds neither form.

    Raises InputError: F101, F114 from the loader, F120 where a form is not in order, F121 another width.
    """
    document = _load(path, gzipped)
    if not isinstance(document, Mapping) or "input_ids" not in document:
        return None
    if isinstance(document.get("hidden_states"), list | tuple):
        return _data_pt(path, document, gzipped)
    if "hidden_state" in document:
        if document.get("aux_hidden_state") is None:
            raise no_sample(
                path,
                "it has no aux_hidden_state, so nothing to feed the drafter with",
                fix=("prepare the hidden states with --enable-aux-hidden-states",),
            )
        return _offline(path, document, width, gzipped)
    return None


def _data_pt(path: Path, document: Mapping[str, Any], gzipped: bool) -> Opened:
    """input_ids [T], loss_mask [T], hidden_states: a list of [T, H], the last the target's last layer before its norm.

    speculators 0.3.0 and 0.4.0.1: data_generation/vllm_hidden_states_generator.py (keys), custom_worker.py (captured
    before the norm, in the order of the layers), train/data.py, standardize_data_v1 (the last is the verifier's).
    """
    values = list(document["hidden_states"])
    if not values or not all(_is(v, 2) for v in values) or len({tuple(v.shape) for v in values}) != 1:
        raise no_sample(path, "its hidden_states are no list of tensors of one shape [T, H]")
    length, width = values[0].shape
    states = _Pickled(path, gzipped, "hidden_states", True, len(values), int(length), int(width))
    tokens, mask = _tokens(path, document, states)
    return Opened(path, DATA_PT, {}, (Stored(path.stem, path, tokens, mask, None, states),))


def _offline(path: Path, document: Mapping[str, Any], width: int, gzipped: bool) -> Opened:
    """input_ids [T], loss_mask [T], aux_hidden_state [1, T, n * H], hidden_state [1, T, H] after the final norm.

    SpecForge 0.1.0 and 0.2.0, data/preprocessing.py, OfflineEagle3Dataset; 0.2.0 reads .ckpt.gz too. hidden_state is
    what SGLang gives to its logits processor (0.2.0: offline_capture/sglang_backend/utils.py has
    last_hidden_states=pruned_states; inference/adapters/server_capture.py calls it "post-norm final hidden"), and
    the trainer's TargetHead applies no norm to it (modeling/target/target_head.py, both releases).
    """
    if not _is(document["aux_hidden_state"], 2) or not _is(document["hidden_state"], 2):
        raise no_sample(path, "its aux_hidden_state and hidden_state are no floating-point tensors [1, T, ...]")
    blocks, final = _flat(document["aux_hidden_state"], 2), _flat(document["hidden_state"], 2)
    if blocks.shape[1] % width or final.shape[1] != width:
        found = f"aux_hidden_state {blocks.shape[1]} wide, hidden_state {final.shape[1]} wide"
        raise other_target(path, found, f"multiples of {width}, the hidden size of the drafter's target")
    length = int(blocks.shape[0])
    states = _Pickled(path, gzipped, "aux_hidden_state", False, int(blocks.shape[1]) // width, length, width)
    if int(final.shape[0]) != length:
        raise unfit(path, "it", tuple(blocks.shape), {tuple(final.shape)})
    normed = _Pickled(path, gzipped, "hidden_state", False, 1, length, width)
    tokens, mask = _tokens(path, document, states)
    return Opened(path, OFFLINE, {}, (Stored(path.stem, path, tokens, mask, None, states, normed),))


def _tokens(path: Path, document: Mapping[str, Any], states: States) -> tuple[Tensor, Tensor | None]:
    found = [document["input_ids"]]
    if document.get("loss_mask") is not None:
        found.append(document["loss_mask"])
    for value in found:
        whole = isinstance(value, Tensor) and value.dtype in (*_WHOLE, torch.bool)
        if not whole or value.dim() not in (1, 2) or (value.dim() == 2 and value.shape[0] != 1):
            raise no_sample(path, "its input_ids and loss_mask are no whole numbers [T]")
    flat = [_flat(value, 1).clone() for value in found]
    lengths = {tuple(value.shape) for value in flat}
    if lengths != {(states.length,)}:
        raise unfit(path, "it", (states.count, states.length, states.width), lengths)
    return flat[0].long(), flat[1].bool() if len(flat) > 1 else None


def _is(value: Any, dims: int) -> bool:
    """A floating-point tensor of `dims` axes, or with one of length 1 before them."""
    if not isinstance(value, Tensor) or value.dtype not in _FLOATING:
        return False
    return value.dim() == dims or (value.dim() == dims + 1 and value.shape[0] == 1)


def _flat(value: Tensor, dims: int) -> Tensor:
    return value[0] if value.dim() == dims + 1 else value

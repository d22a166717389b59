"""Samples in safetensors files: this project's own form, and the hidden states that vLLM dumps for speculators."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from converter.checkpoint.header import FLOATS, INTEGERS
from converter.checkpoint.reader import Checkpoint
from converter.forward.sample_forms import HIDDEN_STATES, OWN, Opened, Stored, natural, no_sample, unfit
from converter.forward.weights import as_torch, tensor

_NEXT = ("target_next", "target_greedy_next")


def open_tensors(path: Path, checkpoint: Checkpoint) -> Opened | None:
    """None where the file holds neither form. Raises InputError F120 where one is not in order."""
    if any(name.endswith(".hidden_states") for name in checkpoint.tensors):
        return _own(path, checkpoint)
    if {"token_ids", "hidden_states"} <= checkpoint.tensors.keys():
        return _hidden_states(path, checkpoint)
    return None


@dataclass(frozen=True)
class _Planes:
    """A tensor [P, T, H]."""

    checkpoint: Checkpoint
    name: str
    count: int
    length: int
    width: int
    coarse: bool = False

    def rows(self, index: int, start: int, stop: int) -> Tensor:
        rows = self.checkpoint.part_rows(self.name, index, start, stop - start)
        return as_torch(self.checkpoint, self.name, rows.copy())


@dataclass(frozen=True)
class _Columns:
    """A tensor [T, P, H], with a scale for each of T where it is in fp8."""

    checkpoint: Checkpoint
    name: str
    scales: str
    count: int
    length: int
    width: int

    @property
    def coarse(self) -> bool:
        return bool(self.scales)

    def rows(self, index: int, start: int, stop: int) -> Tensor:
        values = self._read(self.name, start, stop)[:, index]
        if not self.scales:
            return values.contiguous()
        # hs-connectors 0.9.0, fp8_utils.py, dequantize_fp8_tensor: in bf16, the scale rounded too.
        scales = self._read(self.scales, start, stop).reshape(-1, 1)
        return values.to(torch.bfloat16) * scales.to(torch.bfloat16)

    def _read(self, name: str, start: int, stop: int) -> Tensor:
        return as_torch(self.checkpoint, name, self.checkpoint.rows(name, start, stop - start).copy())


def _own(path: Path, checkpoint: Checkpoint) -> Opened:
    names = sorted((n[: -len(".hidden_states")] for n in checkpoint.tensors if n.endswith(".hidden_states")),
                   key=natural)  # fmt: skip
    metadata = next(iter(checkpoint.metadata.values()), {})
    return Opened(path, OWN, metadata, tuple(_own_sequence(path, checkpoint, name) for name in names))


def _own_sequence(path: Path, checkpoint: Checkpoint, name: str) -> Stored:
    following = next((f"{name}.{n}" for n in _NEXT if f"{name}.{n}" in checkpoint.tensors), f"{name}.{_NEXT[0]}")
    needed = (f"{name}.input_ids", f"{name}.loss_mask", following)
    for part in needed:
        if part not in checkpoint.tensors:
            raise no_sample(path, f"it has no tensor {part}")
    infos = [checkpoint.tensors[n].info for n in needed]
    states = checkpoint.tensors[f"{name}.hidden_states"].info
    if any(info.dtype != "BOOL" and info.dtype not in INTEGERS for info in infos):
        raise no_sample(path, f"tokens, mask and choices of {name} must be integers or booleans")
    lengths = {info.shape for info in infos}
    if len(states.shape) != 3 or lengths != {states.shape[1:2]}:
        raise unfit(path, name, states.shape, lengths)
    if states.dtype not in FLOATS:
        raise no_sample(path, f"the states of {name} are {states.dtype}, not floating point")
    tokens, mask, choices = (tensor(checkpoint, n) for n in needed)
    planes = _Planes(checkpoint, f"{name}.hidden_states", *states.shape)
    return Stored(name, path, tokens.long(), mask.bool(), choices.long(), planes)


def _hidden_states(path: Path, checkpoint: Checkpoint) -> Opened:
    """token_ids [T], hidden_states [T, n, H], the last of the n the target's last layer before its final norm.

    vLLM 0.33.0 writes it (distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py,
    _submit_async_write), speculators 0.9.0 moves it to hs_N.safetensors (cli/generate_offline_data.py) and reads it
    (train/data.py, ArrowDataset._get_raw_data); models/eagle3/core.py norms the last state. The fp8 form has
    hidden_states_scales [T, 1, 1] besides (hs-connectors 0.9.0, fp8_hidden_states_connector.py).
    """
    tokens, states = checkpoint.tensors["token_ids"].info, checkpoint.tensors["hidden_states"].info
    if len(states.shape) != 3 or tokens.shape != states.shape[:1]:
        raise unfit(path, "it", states.shape, {tokens.shape})
    if tokens.dtype not in INTEGERS:
        raise no_sample(path, f"its token_ids are {tokens.dtype}, not integers")
    scales = ""
    if states.dtype == "F8_E4M3":
        scales = "hidden_states_scales"
        stored = checkpoint.tensors.get(scales)
        if stored is None or stored.info.shape != (states.shape[0], 1, 1) or stored.info.dtype not in FLOATS:
            found = "no such tensor" if stored is None else f"{stored.info.dtype} {list(stored.info.shape)}"
            raise no_sample(path, f"its fp8 states need {scales} [{states.shape[0]}, 1, 1], found {found}")
    elif states.dtype not in FLOATS:
        raise no_sample(path, f"its states are {states.dtype}, not floating point")
    length, count, width = states.shape
    columns = _Columns(checkpoint, "hidden_states", scales, count, length, width)
    ids = tensor(checkpoint, "token_ids").long()
    return Opened(path, HIDDEN_STATES, {}, (Stored(path.stem, path, ids, None, None, columns),))

"""Changes of a folder that holds a drafter, a target or a sample: each is given the folder and edits its files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

Change = Callable[[Path], None]
Tensors = dict[str, torch.Tensor]
Edit = Callable[[Tensors], object]

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def as_it_is(folder: Path) -> None:
    pass


def all_of(*changes: Change) -> Change:
    def change(folder: Path) -> None:
        for one in changes:
            one(folder)

    return change


# --- files ----------------------------------------------------------------------------------------------------


def gone(folder: Path) -> None:
    shutil.rmtree(folder)


def removed(file: str) -> Change:
    return lambda folder: (folder / file).unlink()


def holding(file: str, content: bytes) -> Change:
    return lambda folder: (folder / file).write_bytes(content) and None


def cut(file: str, part: float = 0.5) -> Change:
    """Only the first `part` of its bytes."""

    def change(folder: Path) -> None:
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: int(len(content) * part)])

    return change


def vocabulary(*ids: int) -> Change:
    """A tokenizer.json of tokens "0", "1", "2", ... that have these ids."""
    document = {"model": {"vocab": {str(k): i for k, i in enumerate(ids)}}}
    return holding("tokenizer.json", json.dumps(document).encode())


def copied(file: str, to: str) -> Change:
    return lambda folder: shutil.copy(folder / file, folder / to) and None


def header(edit: Callable[[dict[str, Any]], object], file: str = WEIGHTS) -> Change:
    """Edit the header of a safetensors file, as parsed JSON; the bytes of the tensors stay."""

    def change(folder: Path) -> None:
        content = (folder / file).read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        document = json.loads(content[8:end])
        edit(document)
        written = json.dumps(document).encode()
        (folder / file).write_bytes(len(written).to_bytes(8, "little") + written + content[end:])

    return change


def pickled(extra: dict[str, Any]) -> Change:
    """The weights as a training state that holds `extra` beside the model."""

    def change(folder: Path) -> None:
        torch.save({"model": load_file(folder / WEIGHTS), **extra}, folder / "pytorch_model.bin")
        (folder / WEIGHTS).unlink()

    return change


# --- config.json and other JSON -------------------------------------------------------------------------------


def config(values: dict[str, Any], file: str = "config.json") -> Change:
    """Set keys of a file of JSON, named with dots; None takes a key out."""

    def change(folder: Path) -> None:
        document = json.loads((folder / file).read_text())
        for key, value in values.items():
            *parents, last = key.split(".")
            place = document
            for parent in parents:
                place = place.setdefault(parent, {})
            if value is None:
                place.pop(last, None)
            else:
                place[last] = value
        (folder / file).write_text(json.dumps(document))

    return change


def layer(**values: Any) -> Change:
    """Keys of the decoder layer in a config of speculators."""
    return config({f"transformer_layer_config.{key}": value for key, value in values.items()})


# --- tensors --------------------------------------------------------------------------------------------------


def tensors(edit: Edit, points: str = "") -> Change:
    """Edit the tensors of the folder's safetensors file by name; `points`: the capture points that a sample names."""

    def change(folder: Path) -> None:
        [file] = folder.glob("*.safetensors")
        with safe_open(file, "pt") as opened:
            metadata = dict(opened.metadata() or {})
        values = load_file(file)
        edit(values)
        if points:
            metadata["capture_points"] = points
        save_file({name: value.contiguous() for name, value in values.items()}, file, metadata or None)

    return change


def put(name: str, value: torch.Tensor) -> Change:
    return tensors(lambda values: values.update({name: value.clone()}))


def replaced(name: str, by: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """The tensor computed from what it was, in its own dtype unless `by` gives another."""
    return tensors(lambda values: values.update({name: by(values[name])}))


def without(*names: str) -> Change:
    return tensors(lambda values: [values.pop(name) for name in names])


def renamed(old: str, new: str) -> Change:
    """Every name with `old` in it."""

    def edit(values: Tensors) -> None:
        for name in [n for n in values if old in n]:
            values[name.replace(old, new)] = values.pop(name)

    return tensors(edit)


def exchanged(first: str, second: str) -> Change:
    def edit(values: Tensors) -> None:
        values[first], values[second] = values[second], values[first]

    return tensors(edit)


def quantised(*modules: str) -> Change:
    """Weights in fp8 with a scale, as block-quantised checkpoints hold them."""

    def edit(values: Tensors) -> None:
        for module in modules:
            values[f"{module}.weight"] = values[f"{module}.weight"].to(torch.float8_e4m3fn)
            values[f"{module}.weight_scale_inv"] = torch.ones(1, 1)

    return tensors(edit)


def fused(values: Tensors) -> None:
    """q, k and v of layer 0 as one tensor, gate and up as another."""
    for room, parts, whole in (("self_attn", "qkv", "qkv_proj"), ("mlp", ("gate", "up"), "gate_up_proj")):
        names = [f"layers.0.{room}.{part}_proj.weight" for part in parts]
        values[f"layers.0.{room}.{whole}.weight"] = torch.cat([values.pop(name) for name in names])


# --- samples --------------------------------------------------------------------------------------------------


def states(edit: Callable[[torch.Tensor], torch.Tensor], points: str = "") -> Change:
    """Edit the states [points, T, Ht] of every sequence; `points` names those that are left."""

    def change(values: Tensors) -> None:
        for name in [n for n in values if n.endswith("hidden_states")]:
            values[name] = edit(values[name])

    return tensors(change, points)


def masks(edit: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Edit the loss mask [T] of every sequence."""
    return tensors(lambda values: values.update({n: edit(values[n]) for n in list(values) if n.endswith("loss_mask")}))


def only_first(edit: Change = as_it_is) -> Change:
    """The first sequence alone, then `edit`."""

    def keep(values: Tensors) -> None:
        for name in [n for n in values if not n.startswith("s0.")]:
            del values[name]

    return all_of(tensors(keep), edit)


def as_speculators_keeps_it(*points: int) -> Change:
    """Files of unlabelled states of these points, without a mask."""

    def change(folder: Path) -> None:
        [file] = folder.glob("*.safetensors")
        values = load_file(file)
        file.unlink()
        for k in range(4):
            kept = values[f"s{k}.hidden_states"][list(points)].transpose(0, 1).contiguous()
            save_file({"token_ids": values[f"s{k}.input_ids"], "hidden_states": kept}, folder / f"hs_{k}.safetensors")

    return change

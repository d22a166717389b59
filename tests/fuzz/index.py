"""The index of a sharded checkpoint, beside two shards that are in order."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from converter.checkpoint.header import TensorInfo, build_header
from converter.checkpoint.pickled import INDEX as PICKLES
from converter.checkpoint.pickled import find_pickles
from converter.checkpoint.reader import INDEX, open_checkpoint
from converter.errors import InputError
from tests.fuzz.folders import Hostile, made
from tests.fuzz.mutation import mutate_json

_SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
_OTHERS = (
    *_SHARDS, "model.safetensors", "config.json", "../x/model.safetensors", f"./{_SHARDS[0]}", f"/{_SHARDS[0]}", ".",
    "..", f"{_SHARDS[0]}\0", f"{_SHARDS[0]}/", _SHARDS[0].upper(), "out.safetensors", "a.bin", "x" * 256,
)  # fmt: skip


@cache
def _folder() -> tuple[Path, Hostile, Hostile]:
    folder = made("index")
    for name, file in zip("ab", _SHARDS, strict=True):
        (folder / file).write_bytes(build_header({name: TensorInfo("U8", (1,), 0, 1)}, {}) + b"\1")
    outside = made("outside") / "secret.safetensors"
    outside.write_bytes(build_header({"a": TensorInfo("U8", (1,), 0, 1)}, {}) + b"\2")
    (folder / "out.safetensors").symlink_to(outside)
    pickles = made("pickles")
    (pickles / "a.bin").write_bytes(b"")
    return folder, Hostile(folder / INDEX), Hostile(pickles / PICKLES)


def seeds() -> list[bytes]:
    whole = dict(zip("ab", _SHARDS, strict=True))
    documents: list[Any] = [
        {"metadata": {"total_size": 2}, "weight_map": whole},
        {"weight_map": {"a": _SHARDS[0]}},
        {"weight_map": whole | {"c": "a.bin"}},
        {"weight_map": {"w": "a.bin"}},
    ]
    return [json.dumps(document).encode() for document in documents]


def one(data: bytes) -> None:
    folder, index, pickles = _folder()
    index.write(data)
    try:
        checkpoint = open_checkpoint(folder)
    except InputError as problem:
        assert problem.finding.code in ("F100", "F101", "F106", "F108", "F110")
        return
    assert all(file.parent == folder for file in checkpoint.files)
    assert set(checkpoint.tensors) == set(json.loads(data)["weight_map"])
    pickles.write(data)
    try:
        assert all(file.parent == pickles.path.parent for file in find_pickles(pickles.path.parent))
    except InputError as problem:
        assert problem.finding.code in ("F100", "F108", "F110")


def mutate(data: bytes, random: Random) -> bytes | None:
    return mutate_json(data, random, _OTHERS)


def folders() -> tuple[Path, ...]:
    folder, _, pickles = _folder()
    return folder, pickles.path.parent

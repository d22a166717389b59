"""The seal of an output, read by everything that trusts or distrusts it. The first byte says what is done."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random

from converter import gate
from converter.errors import Eagle3Error, InputError
from converter.output import check_out
from converter.pipeline import look, validate
from converter.run import Request
from converter.seal import NAME, launch_of, listed_files, listing, read_seal, sound_seal, still_is, target_of
from tests.fuzz.folders import Hostile, made
from tests.fuzz.mutation import mutate_json
from tests.support import DRAFTERS, run

_WORDS = (
    "eagle3-convert/seal/1", "sglang==0.5.23", "vllm==0.33.0", "sglang", "specforge", "model.safetensors",
    "config.json", NAME, "LlamaForCausalLM", "measured", ["sglang==0.5.23"], [{"engine": "vllm==0.33.0"}],
    [{"name": "config.json", "size": 0}], {"name": "LlamaForCausalLM", "architecture": "LlamaForCausalLM", "layers": 6},
    ["C999", "\x1b[2J"],
)  # fmt: skip
_EVERY = 400  # a validation, or a schema, costs as much as some hundred readings


@cache
def _folders() -> tuple[Path, Hostile, Path, Hostile]:
    """A real output, and a folder of the same names whose files are small, so that digests cost nothing."""
    real, small = made("sealed"), made("small")
    run(DRAFTERS / "a_plain", real / "out", "vllm==0.33.0")
    out = real / "out"
    for file in out.iterdir():
        if file.name != NAME:
            (small / file.name).write_bytes(b"x")
    return out, Hostile(out / NAME), small, Hostile(small / NAME)


@cache
def _seal() -> bytes:
    """Of a real output, before anything wrote over it."""
    folder = made("seal")
    run(DRAFTERS / "a_plain", folder / "out", "vllm==0.33.0")
    document = json.loads((folder / "out" / NAME).read_bytes())
    document["tensors"], document["rules"], document["findings"] = document["tensors"][:1], {}, []
    document["source"]["given"], document["target"]["name"] = "checkpoint", "target"  # not of this machine
    return json.dumps(document).encode()


def seeds() -> list[bytes]:
    short = b'{"schema":"eagle3-convert/seal/1","files":[{"name":"config.json","size":1,"sha256":""}],"engines":[]}'
    return [b"\0" + _seal(), b"\1" + _seal(), b"\2" + _seal(), b"\0" + short]


def one(data: bytes) -> None:
    out, real, small, light = _folders()
    way = data[0] if data else 0
    if way in (1, 2):
        real.write(data[1:])
        try:
            request = Request(source=str(out), engines=("vllm",), scan=False)
            validate(request) if way == 1 else look(request)
        except Eagle3Error:
            pass
        return
    light.write(data[1:])
    if way == 3:
        try:
            sound_seal(small / NAME)
        except InputError as problem:
            assert problem.finding.code == "H415"
        return
    document = read_seal(small)
    if document is None:
        return
    listed_files(document)
    for require in ("none", "sample", "measured"):
        for finding in gate.may_leave(document, listing(small), str(small), require):
            assert finding.code in ("C233", "H414")
    gate.level_of(document), target_of(document), launch_of(document)
    still_is(document, small, "config.json")
    try:
        check_out(small, str(out), force=True)
    except Eagle3Error:
        return


def mutate(data: bytes, random: Random) -> bytes | None:
    text = mutate_json(data[1:], random, _WORDS)
    if text is None:
        return None
    return bytes([random.choice((1, 2, 3)) if random.randrange(_EVERY) == 0 else 0]) + text


def folders() -> tuple[Path, ...]:
    out, _, small, _ = _folders()
    return out.parent, small

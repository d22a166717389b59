"""One target under libFuzzer: `python -m tests.fuzz.guided TARGET [libFuzzer's options] [CORPUS ...]`."""

from __future__ import annotations

import importlib
import sys
from random import Random

import atheris

with atheris.instrument_imports(include=["converter"], enable_loader_override=False):
    target = importlib.import_module(f"tests.fuzz.{sys.argv[1]}")

from tests.fuzz.guard import watched

_STRUCTURED = 0.8  # of the mutations; the others are libFuzzer's own, of bytes


def one(data: bytes) -> None:
    with watched(*_FOLDERS):
        target.one(data)


def mutate(data: bytes, longest: int, seed: int) -> bytes:
    random = Random(seed)
    found = target.mutate(data, random) if random.random() < _STRUCTURED else None
    return found[:longest] if found is not None else atheris.Mutate(data, longest)


for seed in target.seeds():  # what is imported late is imported before anybody watches
    target.one(seed)
_FOLDERS = target.folders()
atheris.Setup([sys.argv[0], *sys.argv[2:]], one, custom_mutator=mutate)
atheris.Fuzz()

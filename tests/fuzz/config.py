"""config.json of a drafter or a target, and what a folder says of tokens, through the real commands.

The first byte of an input says which of the drafters' weights lie beside it (its low three bits) and what is done.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

from converter.errors import Eagle3Error
from converter.look.inspect import inspect
from converter.look.subject import Asked
from converter.pipeline import convert, look, validate
from converter.report.document import as_json
from converter.report.files import WRITERS
from converter.report.inspect_text import InspectPrinter
from converter.report.inspected import as_json as as_inspected
from converter.report.text import Printer
from converter.run import Report, Request
from tests.fuzz.folders import Hostile, made
from tests.fuzz.mutation import mutate_json
from tests.support import DATA, TARGET, quiet

_DRAFTERS = (
    "drafters/a_plain", "drafters/g_aux024", "producers/specforge_hf", "producers/angelslim",
    "producers/modelopt_layers", "producers/automodel_mla", "producers/specforge_peagle", "producers/speculators_010",
)  # fmt: skip
_ENGINES = ("sglang", "vllm", "tensorrt-llm", "llama.cpp")
# Text that means something to one of the dialects.
_WORDS = (
    "LlamaForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM", "eagle3", "peagle", "gelu", "full_attention",
    "sliding_attention", {"rope_type": "llama3", "factor": 8.0}, [1, 3, 5], [0, 2, 4], [5, 3, 1], [-1], "bfloat16", 512,
    384, {"quant_method": "fp8"}, {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
)  # fmt: skip


@cache
def _folder(index: int) -> tuple[Path, Hostile]:
    """A drafter's weights with a config to be written over."""
    folder = made("config")
    given = DATA / _DRAFTERS[index]
    for file in given.iterdir():
        if file.name != "config.json" and file.is_file():
            shutil.copy(file, folder)
    return folder, Hostile(folder / "config.json")


@cache
def _target() -> tuple[Path, Hostile, dict[str, Hostile]]:
    """A target whose files are written over: its config alone, or those that speak of tokens."""
    folder, talks = made("target"), made("tokens")
    shutil.copy(TARGET / "config.json", talks)
    names = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.json")
    return talks, Hostile(folder / "config.json"), {name: Hostile(talks / name) for name in names}


@cache
def _out() -> Path:
    return made("out")


def _look(index: int, data: bytes) -> None:
    folder, file = _folder(index)
    file.write(data)
    look(Request(source=str(folder), engines=("sglang",)))


def _looked_at_by(engine: str) -> Callable[[int, bytes], None]:
    def run(index: int, data: bytes) -> None:
        folder, file = _folder(index)
        file.write(data)
        validate(Request(source=str(folder), engines=(engine,), scan=False))

    return run


def _told(index: int, data: bytes) -> None:
    """All reports of a validation."""
    folder, file = _folder(index)
    file.write(data)
    report = validate(Request(source=str(folder), scan=False))
    _print(report)
    for write in WRITERS.values():
        write(report).encode()


def _print(report: Report) -> None:
    text = io.StringIO()
    Printer(text, True).validated(report)
    _plain(text.getvalue())


def _plain(text: str) -> None:
    """Nothing that a terminal would obey."""
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def _converted(index: int, data: bytes) -> None:
    folder, file = _folder(index)
    file.write(data)
    out = _out() / "out"
    report = convert(Request(source=str(folder), out=out, engines=("vllm",), force=True, digest=False), quiet)
    assert (report.outcome == "converted") is (out / "eagle3-seal.json").exists()
    if out.exists():
        json.loads((out / "config.json").read_bytes())
        shutil.rmtree(out)


def _inspected(index: int, data: bytes) -> None:
    folder, file = _folder(index)
    file.write(data)
    found = inspect(str(folder), Asked(engines=("sglang",)))
    as_inspected(found)
    text = io.StringIO()
    InspectPrinter(text, True).inspected(found)
    _plain(text.getvalue())


def _targets(index: int, data: bytes) -> None:
    _, config, _ = _target()
    config.write(data)
    as_json(look(Request(source=str(DATA / _DRAFTERS[index]), engines=("sglang",), target=config.path)))


def _tokens(index: int, data: bytes) -> None:
    talks, _, files = _target()
    for file in files.values():
        file.write(data)
    look(Request(source=str(DATA / _DRAFTERS[index % 2]), engines=("sglang",), target=talks))


_WAYS: tuple[Callable[[int, bytes], None], ...] = (
    *[_look] * 20, *map(_looked_at_by, _ENGINES), _told, _converted, _inspected, _inspected, _targets, _targets,
    _tokens, _tokens,
)  # fmt: skip
assert len(_WAYS) == 32
_OFTEN = [way for way, run in enumerate(_WAYS) if run in (_look, _targets, _tokens)]


def seeds() -> list[bytes]:
    found = []
    for index, name in enumerate(_DRAFTERS):
        text = json.dumps(json.loads((DATA / name / "config.json").read_bytes())).encode()
        found += [bytes([index | way << 3]) + text for way in (0, 20 + index % 4, 24 + index % 4)]
    found += [bytes([way << 3]) + (TARGET / "config.json").read_bytes() for way in (28, 29)]
    return found + [bytes([way << 3]) + _small_tokenizer() for way in (30, 31)]


def _small_tokenizer() -> bytes:
    tokens = {
        "model": {"vocab": {"a": 0, "<s>": 1, "</s>": 2}},
        "added_tokens": [{"id": 2, "content": "</s>"}],
        "added_tokens_decoder": {"2": {"content": "</s>"}},
        "eos_token": "</s>",
        "eos_token_id": [2],
        "chat_template": [{"name": "default", "template": "{{ x }}"}],
    }
    return json.dumps(tokens).encode()


def one(data: bytes) -> None:
    first = data[0] if data else 0
    try:
        _WAYS[first >> 3](first & 7, data[1:])
    except Eagle3Error:
        return


def mutate(data: bytes, random: Random) -> bytes | None:
    text = mutate_json(data[1:], random, _WORDS)
    if text is None:
        return None
    first = data[0]
    if random.random() < 0.95:  # what costs as much as ten looks, and reaches more branches, is done a tenth as often
        first = random.choice((first & 7, random.randrange(8))) | random.choice(_OFTEN) << 3
    return bytes([first]) + text


def folders() -> tuple[Path, ...]:
    """Where it may write."""
    return (*tuple(_folder(i)[0] for i in range(len(_DRAFTERS))), _out(), _target()[0], _target()[1].path.parent)

"""Configs of published drafters, as far as public reports quote them (tests/data/published/README.md), and how they
read.

Of these drafters nothing is here but quoted keys and tensor names; what is not quoted is filled in from a bundled
drafter of the same trainer. So each shows how its keys read, and nothing about its weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter.drafter.spec import Rope
from converter.pipeline import Report
from tests.support import DATA, TARGET, check, codes, errors
from tests.test_producers import PRODUCERS, finding

PUBLISHED = DATA / "published"
IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Expected:
    """dialect   "" where it is refused before it is read
    points    None where they are not known
    codes     all findings, of any severity
    fields    of the spec
    perhaps   the other reading that A109 names
    """

    dialect: str
    points: tuple[int, ...] | None
    codes: str
    fields: dict[str, Any] = field(default_factory=dict)
    perhaps: str = ""


EXPECTED = {
    # Its ids can only be capture points: SGLang reads them so where the largest is the number of layers.
    "nvidia_gpt-oss-120b-Eagle3-v3": Expected(
        "modelopt", (25, 31, 37), "A102 A109 C204 C216", {"norm_before_fc": True}, "layer 24, layer 30, layer 36"
    ),
    "nvidia_gpt-oss-120b-Eagle3-long-context": Expected("modelopt", (2, 18, 33), "C216"),
    "nvidia_gpt-oss-120b-Eagle3-v2": Expected("", None, "F116"),
    "nvidia_Llama-3.3-70B-Instruct-Eagle3": Expected("modelopt", (2, 40, 77), "A105 C216"),
    "syzygy_DeepSeek-V4-Flash-EAGLE3.1": Expected(
        "specforge", (2, 22, 41), "A108 A109", perhaps="layer 1, layer 21, layer 40"
    ),
    "speculators_1065": Expected(
        "speculators",
        (2, 46, 91, 93),
        "A108",
        {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True, "fc_norm": False,
         "target_hidden_size": 64, "layer_windows": (2048,)},
    ),
    "nm-testing_Qwen3-235B-A22B-EAGLE3-converted": Expected(
        "speculators",
        (1, 46, 90),
        "A109 C206",  # C206 is of the release in the frame
        perhaps="layer 2, layer 47, layer 91; these are the points that trainers take by default",
    ),
    "redhat_gpt-oss-20b-speculator": Expected(
        "speculators",
        (1, 3, 5),  # of the frame
        "A108",
        {"draft_vocab_size": 64000, "norm_before_fc": True, "norm_before_residual": True, "norm_output": False},
    ),
    "tensorrt-llm_6158": Expected("eagle", None, "A104"),
    "yuhuili_EAGLE3-Vicuna1.3-13B": Expected("eagle", (2, 20, 37), "A105", {"num_hidden_layers": 1}),
    "specforge_qwen3-235B-A22B": Expected("specforge", (2, 47, 91), ""),
    "specforge_gpt-oss-120B": Expected("specforge", (2, 18, 34), "A109", perhaps="layer 1, layer 17, layer 33"),
    "specforge_deepseek-v3": Expected("specforge", (2, 30, 58), ""),
    "specforge_qwen3-30B-A3B-eagle3.1": Expected(
        "specforge", (1, 3, 5), "A108 A109 C215", {"norm_output": True}, "embedding, layer 2, layer 4"
    ),
    # C213 follows: the target's base is that of the config, the one that training used is another.
    "angelslim_qwen3-8b": Expected("angelslim", (2, 18, 33), "A105 C213 C215", {"rope": Rope(10000.0)}),
    "angelslim_qwen3-vl-4b": Expected(
        "angelslim",
        (2, 18, 33),
        "A105 C213 C215 C244",
        {"rope": Rope(10000.0, "default", (("mrope_section", (4, 2, 2)),)), "tie_word_embeddings": False},
    ),
    "angelslim_Qwen3-published": Expected(
        "specforge",
        (2, 18, 33),
        "A105 C215 C244",
        {"rope": Rope(1e6), "tie_word_embeddings": False, "qk_norm": False},
    ),
    "angelslim_Qwen3-4B": Expected("specforge", (2, 18, 33), "A105", {"head_dim": 80}),
    "nebius_EAGLE3-gpt-oss-20b": Expected(
        "eagle",
        (2, 12, 21),
        "A105 C204",
        {"draft_vocab_size": 64000,
         "rope": Rope(10000.0, "yarn", (("factor", 32.0), ("original_max_position_embeddings", 4096)))},
    ),
}  # fmt: skip


def quote(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((PUBLISHED / f"{name}.json").read_text())
    return document


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, objects key by key; null takes a key out."""
    result = dict(base)
    for key, value in over.items():
        result[key] = merged(result.get(key) or {}, value) if isinstance(value, dict) else value
    return {key: value for key, value in result.items() if value is not None}


def shape(name: str, config: dict[str, Any], points: int) -> list[int]:
    """Of a tensor under any trainer's name, by the config."""
    c = {**config, **config.get("transformer_layer_config", {})}
    hidden, inner, draft = c["hidden_size"], c["intermediate_size"], config["draft_vocab_size"]
    q, kv = (c[f"num_{which}_heads"] * c["head_dim"] for which in ("attention", "key_value"))
    ends = {
        "input_norm.weight": [points * hidden], "fc.weight": [hidden, points * hidden],
        "q_proj.weight": [q, 2 * hidden], "k_proj.weight": [kv, 2 * hidden], "v_proj.weight": [kv, 2 * hidden],
        "o_proj.weight": [hidden, q], "gate_proj.weight": [inner, hidden], "up_proj.weight": [inner, hidden],
        "down_proj.weight": [hidden, inner], "lm_head.weight": [draft, hidden],
        "embed_tokens.weight": [c["vocab_size"], hidden], "d2t": [draft], "t2d": [c["vocab_size"]],
    }  # fmt: skip
    return next((found for end, found in ends.items() if name.endswith(end)), [hidden])


def drafter(name: str, folder: Path) -> Path:
    """A folder with the quoted config in the frame of its trainer's, and weights that are a hole in the file."""
    quoted = quote(name)
    frame = PRODUCERS / quoted["frame"]
    config = json.loads((frame / "config.json").read_text())
    if f"eagle_config.{IDS}" not in quoted.get("keep", []):
        config.get("eagle_config", {}).pop(IDS, None)
    config = merged(config, quoted["config"])
    inner = config.get("transformer_layer_config", config)
    inner["vocab_size"] = 2 * config["draft_vocab_size"]
    content = (frame / "model.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    names = [n for n in header if n != "__metadata__" and n not in quoted.get("without", [])]
    ids = config.get(IDS) or config.get("eagle_config", {}).get(IDS) or [0, 0, 0]
    # Of four tokens of the target the first two are in the draft vocabulary.
    kept = np.arange(inner["vocab_size"]) % 4 < 2
    maps = {"d2t": np.flatnonzero(kept) - np.arange(config["draft_vocab_size"]), "t2d": kept}
    entries, values, end = {}, {}, 0
    for tensor in [*names, *quoted.get("tensors", [])]:
        kind = {"d2t": "I64", "t2d": "BOOL"}.get(tensor, "BF16")
        size = int(np.prod(shape(tensor, config, len(ids)))) * {"I64": 8, "BOOL": 1, "BF16": 2}[kind]
        entries[tensor] = {"dtype": kind, "shape": shape(tensor, config, len(ids)), "data_offsets": [end, end + size]}
        if kind != "BF16":
            values[end] = maps[tensor].tobytes()
        end += size
    written = json.dumps(entries).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(written).to_bytes(8, "little") + written)
        start = file.tell()
        file.truncate(start + end)
        for offset, value in values.items():
            file.seek(start + offset)
            file.write(value)
    if "target_layers" in quoted:
        document = json.loads((TARGET / "config.json").read_text()) | {
            "num_hidden_layers": quoted["target_layers"], "vocab_size": inner["vocab_size"],
            **{key: inner.get(key) for key in ("rope_theta", "rope_scaling", "rope_parameters")},
        }  # fmt: skip
        (folder / "target").mkdir()
        (folder / "target" / "config.json").write_text(json.dumps(document))
    return folder


def read(name: str, folder: Path, **options: Any) -> Report:
    made = drafter(name, folder)
    target = made / "target"
    report = check(made, target=target if target.exists() else None, allow=("T115",), scan=False, **options)
    report.findings = [f for f in report.findings if f.code != "T115"]  # a hole reads as zeros
    return report


def test_every_quote_is_expected_to_read_as_something() -> None:
    assert {path.stem for path in PUBLISHED.glob("*.json")} == EXPECTED.keys()
    listed = (PUBLISHED / "README.md").read_text()
    assert all(f"`{name}`" in listed and quote(name)["quoted"] for name in EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_it_reads_as_it_was_meant_or_says_what_is_open(name: str, tmp_path: Path) -> None:
    report = read(name, tmp_path / "in")
    expected = EXPECTED[name]
    assert codes(report) == expected.codes.split()
    assert (report.dialect.name if report.dialect else "") == expected.dialect
    spec = report.drafter.spec if report.drafter is not None else None
    assert (spec.capture_points if spec else None) == expected.points
    assert {key: getattr(spec, key) for key in expected.fields} == expected.fields
    if expected.perhaps:
        assert finding(report, "A109").expected == f"perhaps {expected.perhaps}"


@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if expected.perhaps])
def test_the_option_that_is_named_settles_it(name: str, tmp_path: Path) -> None:
    """Of both readings but the impossible one."""
    found = finding(read(name, tmp_path / "first"), "A109")
    ways = [way.split()[-1] for way in found.fix[0].removeprefix("say which it was trained on: ").split("  or  ")]
    assert len(ways) == 2
    for i, way in enumerate(ways):
        points = tuple(0 if point == "embed" else int(point) for point in way.split(","))
        report = read(name, tmp_path / str(i), aux=points)
        assert "A109" not in codes(report)
        assert report.drafter is not None and report.drafter.spec.capture_points == points
        assert errors(report) == (["A102"] if max(points) == 37 else [])


def test_a_published_drafter_with_a_norm_before_fc_converts(tmp_path: Path) -> None:
    """Its tensor input_norm.weight is in no export of ModelOpt's, and engines load it."""
    report = read("nvidia_gpt-oss-120b-Eagle3-v3", tmp_path / "in", aux=(24, 30, 36))
    assert report.drafter is not None and "input_norm.weight" in report.drafter.tensors

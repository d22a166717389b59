"""`eagle3 inspect`: what a drafter is, exactly, and what each engine would make of the folder as it is."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from converter.look.inspect import Inspection, inspect
from converter.look.parts import group_of
from converter.look.subject import Asked
from converter.pipeline import convert
from converter.report.inspect_text import InspectPrinter, _scaled
from converter.report.inspected import as_json
from converter.rules import loading
from converter.rules.releases import resolve
from tests.support import DATA, DRAFTERS, PRODUCERS, TARGET, check, copy_of, eagle3, quiet, request, run
from tests.test_cli import imported
from tests.test_forms import to as written
from tests.test_fused import fuse

BOTH = ("sglang==0.5.23", "vllm==0.33.0")


def look(folder: Path, *engines: str, target: Path | None = TARGET, **options: Any) -> Inspection:
    return inspect(str(folder), Asked(engines or BOTH, target, **options))


def header(folder: Path) -> dict[str, Any]:
    """The tensors of model.safetensors, read here by hand."""
    data = (folder / "model.safetensors").read_bytes()
    tensors: dict[str, Any] = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    tensors.pop("__metadata__", None)
    return tensors


def seen(found: dict[str, Any], engine: str) -> dict[str, Any]:
    [row] = [row for row in found["engines"] if row["engine"] == engine]
    return dict(row)


def text(*args: object) -> str:
    done = eagle3("inspect", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def words(*args: object) -> str:
    """The text without its line breaks."""
    return " ".join(text(*args).split())


# --- what it is -------------------------------------------------------------------------------------------------


def test_a_plain_drafter_in_every_detail() -> None:
    """Worked out by hand from its config.json and the shapes in its header: hidden 64, intermediate 192, 4 heads and 2
    of keys of width 16, 3 states, 384 of 512 tokens, bfloat16.
    """
    found = as_json(look(DRAFTERS / "a_plain"))
    assert found["input"]["files"] == ["model.safetensors"] and found["input"]["tensors"] == 16
    assert found["dialect"] == {
        "name": "speculators", "title": "speculators", "release": "0.9.0", "marks": ["speculators_model_type = eagle3"],
    }  # fmt: skip
    assert found["seal"] is None and found["refusal"] is None
    assert found["points"] == {"trained": [1, 3, 5], "words": "layer 1, layer 3, layer 5", "perhaps": ""}
    assert found["spec"]["capture_points"]["where"] == "eagle_aux_hidden_state_layer_ids"
    assert found["spec"]["target_hidden_size"] == {"value": 64, "how": "derived", "where": "hidden_size"}
    assert found["spec"]["fc_bias"]["how"] == "fixed" and found["spec"]["norm_output"]["how"] == "stated"
    assert [(g["group"], len(g["names"]), g["dtypes"], g["elements"], g["bytes"]) for g in found["tensors"]] == [
        ("fc", 1, ["BF16"], 64 * 192, 24576),
        ("norms", 1, ["BF16"], 64, 128),
        ("layer 0", 10, ["BF16"], 57536, 115072),  # 8192 + 2 * 4096 + 4096 + 3 * 12288 + 3 * 64
        ("head", 1, ["BF16"], 24576, 49152),
        ("embedding", 1, ["BF16"], 32768, 65536),
        ("map", 2, ["BOOL", "I64"], 896, 3584),  # 512 + 384 * 8 bytes
    ]
    assert found["map"]["stored"] == "offsets" and found["map"]["agrees_with_t2d"] and not found["map"]["identity"]
    assert found["owners"] == {
        "embedding": "own", "embedding_is": "target's", "embedding_trained": False, "head": "own", "head_frozen": True,
    }  # fmt: skip
    assert found["cost"] == {
        "parameters": 127232,  # 12288 + 64 + 57536 + 24576 + 32768
        "embedding_parameters": 32768,
        "step_flops": 163840,  # 2 * (57344 + 24576)
        "step_bytes": 164480,  # 2 * (57536 + 64 + 24576) and a row of 128
        "first_flops": 24576,
        "first_bytes": 24576,
        "context_flops": 256,  # 4 * 4 heads * 16
        "context_bytes": 128,  # 2 * 2 heads * 16 * 2 bytes
        "head_share": 49152 / 164480,
    }
    assert found["findings"] == {"errors": 0, "warnings": 0, "codes": []}
    sglang, vllm = (seen(found, engine) for engine in BOTH)
    assert sglang["unreadable"] == "finds no hidden_size in config.json" and sglang["points"] is None
    assert vllm["points"] == [1, 3, 5] and vllm["as_trained"] and vllm["differs"] == []
    assert len(vllm["loaded"]) == 15 and vllm["missing"] == vllm["ignored"] == [] and vllm["embedding"] == "own"


WITH_HEADER = [p.parent for p in sorted(DATA.glob("[dp]*/*/model.safetensors"))]


@pytest.mark.parametrize("folder", WITH_HEADER, ids=lambda p: p.name)
def test_every_tensor_is_in_one_group_and_parameters_add_up(folder: Path) -> None:
    tensors, found = header(folder), as_json(look(folder))
    names = [name for g in found["tensors"] for name in g["names"]]
    assert sorted(names) == sorted(tensors)
    ends = {name: t["data_offsets"][1] - t["data_offsets"][0] for name, t in tensors.items()}
    assert all(g["bytes"] == sum(ends[n] for n in g["names"]) for g in found["tensors"])
    weights = {name: t for name, t in tensors.items() if name.split(".")[-1] not in ("d2t", "t2d")}
    assert found["cost"]["parameters"] == sum(math.prod(t["shape"]) for t in weights.values())
    other = ("embed_tokens.weight", "fc.weight")
    matrices = [t["shape"] for name, t in weights.items() if len(t["shape"]) == 2 and not name.endswith(other)]
    assert found["cost"]["step_flops"] == 2 * sum(map(math.prod, matrices))


def target_ids() -> list[int]:
    """Of the draft ids of a_plain, from the bytes of its d2t."""
    import numpy as np

    data = (DRAFTERS / "a_plain" / "model.safetensors").read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0] + header(DRAFTERS / "a_plain")["d2t"]["data_offsets"][0]
    return (np.frombuffer(data, "<i8", 384, start) + np.arange(384)).tolist()


def test_the_map_is_counted_against_d2t() -> None:
    ids, facts = target_ids(), as_json(look(DRAFTERS / "a_plain"))["map"]
    assert facts["lowest"] == sum(i < 256 for i in ids)
    assert [(row["key"], row["id"], row["drafted"]) for row in facts["special"]] == [
        ("bos_token_id", 1, 1 in ids), ("eos_token_id", 2, 2 in ids),
    ]  # fmt: skip


def test_a_token_outside_the_draft_vocabulary_is_named(tmp_path: Path) -> None:
    outside = min(set(range(512)) - set(target_ids()))

    def last(config: dict[str, Any]) -> None:
        config["transformer_layer_config"]["eos_token_id"] = [2, outside]

    found = as_json(look(copy_of("a_plain", tmp_path / "in", last)))
    assert {row["id"]: row["drafted"] for row in found["map"]["special"]} == {1: True, 2: True, outside: False}
    assert f"eos {outside} NOT in it" in words(tmp_path / "in")


@pytest.mark.parametrize(
    ("name", "group"),
    [("fc.bias", "fc"), ("fc_norm.2.weight", "norms"), ("input_norm.weight", "norms"), ("norm.weight", "norms"),
     ("layers.0.mlp.up_proj.weight", "layer 0"), ("layers.10.mlp.up_proj.weight", "layers 1.."), ("t2d", "map"),
     ("lm_head.weight_scale", "head"), ("embed_tokens.weight", "embedding"), ("mask_hidden", "fc"), ("masks", "other")],
)  # fmt: skip
def test_the_group_of_a_tensor(name: str, group: str) -> None:
    assert group_of(name) == group


# --- what engines would make of it --------------------------------------------------------------------------------


def test_vllm_lays_a_speculators_config_flat_and_takes_another_default(tmp_path: Path) -> None:
    """Absent is true (transformers_utils/configs/speculators/algos.py:33-35 @ 0.33.0), to the trainer false."""

    def silent(config: dict[str, Any]) -> None:
        del config["norm_before_residual"]

    found = as_json(look(copy_of("a_plain", tmp_path / "in", silent), "vllm==0.33.0", "vllm==0.32.0"))
    assert seen(found, "vllm==0.33.0")["differs"] == [
        {"field": "norm_before_residual", "trained": False, "engine": True}
    ]
    assert "was not read here" in seen(found, "vllm==0.32.0")["unreadable"]
    assert "reads norm_before_residual as true; trained false" in text(tmp_path / "in", "--engine", "vllm==0.33.0")


def test_a_speculators_config_of_another_layer_class_stops_vllm(tmp_path: Path) -> None:
    def mistral(config: dict[str, Any]) -> None:
        config["transformer_layer_config"]["model_type"] = "mistral"

    row = seen(as_json(look(copy_of("a_plain", tmp_path / "in", mistral))), "vllm==0.33.0")
    assert row["unreadable"].startswith("vLLM stops at start")


def test_nested_ids_are_not_seen_by_vllm() -> None:
    """It takes its default of a target of 6 layers, 2, 3, 3; SGLang adds one to the ids 0, 2, 4."""
    found = as_json(look(PRODUCERS / "specforge_hf"))
    sglang, vllm = (seen(found, engine) for engine in BOTH)
    assert (sglang["points"], sglang["as_trained"]) == ([1, 3, 5], True)
    assert (vllm["points"], vllm["as_trained"]) == ([2, 3], False)
    assert (sglang["embedding"], vllm["embedding"]) == ("the target's", "own")


def test_without_a_target_points_are_unknown_and_never_guessed() -> None:
    found = as_json(look(PRODUCERS / "specforge_hf", target=None))
    assert found["points"]["trained"] == [1, 3, 5]  # as the trainer counts
    for engine in BOTH:
        row = seen(found, engine)
        assert row["points"] is None and row["as_trained"] is None and "--target" in row["unknown"]
        assert row["spec" if "spec" in row else "loaded"] and row["unreadable"] == ""


def test_a_class_alone_gives_the_ids_their_meaning_where_depth_does_not_matter() -> None:
    found = as_json(look(PRODUCERS / "specforge_hf", target=None, target_arch="LlamaForCausalLM"))
    assert seen(found, "sglang==0.5.23")["points"] == [1, 3, 5]
    assert "number of layers" in seen(found, "vllm==0.33.0")["unknown"]  # its default depends on it
    other = as_json(look(PRODUCERS / "specforge_hf", target=None, target_arch="NobodysClass"))
    assert "NobodysClass" in seen(other, "sglang==0.5.23")["unknown"]


def test_ids_out_of_order_are_captured_in_layer_order(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    shutil.copytree(PRODUCERS / "specforge_hf", folder)
    config = json.loads((folder / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [4, 0, 2]
    (folder / "config.json").write_text(json.dumps(config))
    row = seen(as_json(look(folder)), "sglang==0.5.23")
    assert row["points"] == [1, 3, 5] and row["as_trained"] is False
    assert "NOT in the order of fc's blocks: layer 5, layer 1, layer 3" in words(folder, "--target", TARGET)


def test_an_old_release_says_what_it_would_drop_and_needs() -> None:
    """0.5.9 builds midlayer.* and drops layers.0.*; its CUDA graphs take the default points without a flag."""
    row = seen(as_json(look(PRODUCERS / "modelopt_layers", "sglang==0.5.9")), "sglang==0.5.9")
    dropped = [n for n in header(PRODUCERS / "modelopt_layers") if n.startswith("layers.0.")]
    assert sorted(row["ignored"]) == sorted(dropped) and len(row["missing"]) == len(dropped)
    assert row["flags"] == ["--disable-cuda-graph"]
    shown = text(PRODUCERS / "modelopt_layers", "--engine", "sglang==0.5.9", "--target", TARGET)
    assert "only with --disable-cuda-graph" in shown and f"passes over {len(dropped)} tensors" in shown


def test_a_class_that_sglang_does_not_run_is_said() -> None:
    row = seen(as_json(look(PRODUCERS / "angelslim")), "sglang==0.5.23")
    assert "runs only LlamaForCausalLMEagle3" in row["stops"]
    assert {d["field"] for d in row["differs"]} == {"rope"}  # it reads the base that the trainer passed over


def test_engines_may_be_a_range_and_are_named() -> None:
    found = as_json(look(PRODUCERS / "specforge_hf", "sglang>=0.5.21,<=0.5.22"))
    assert [row["engine"] for row in found["engines"]] == ["sglang==0.5.21", "sglang==0.5.22"]
    assert eagle3("inspect", PRODUCERS / "specforge_hf", "--engine", "nobody").returncode == 2
    assert [row["engine"] for row in as_json(inspect(str(PRODUCERS / "specforge_hf"), Asked()))["engines"]] == [
        str(resolve(name)[0].requirement) for name in loading.names("engines")
    ]


def test_an_output_with_latent_attention_is_seen_as_the_engines_class_sees_it(tmp_path: Path) -> None:
    run(PRODUCERS / "automodel_mla", tmp_path / "out", aux=(1, 3, 5))
    found = as_json(look(tmp_path / "out", *BOTH, "sglang==0.5.9"))
    assert found["spec"]["latent"]["value"]["kv_lora_rank"] == 16 and found["refusal"] is None
    for engine in BOTH:
        row = seen(found, engine)
        assert (row["stops"], row["differs"], row["missing"], row["as_trained"]) == ("", [], [], True)
        dialect = as_json(look(tmp_path / "out", dialect=engine))  # read as it, not only looked at as it is
        assert dialect["spec"]["latent"]["value"] == found["spec"]["latent"]["value"]
        assert dialect["points"]["trained"] == [1, 3, 5] and dialect["findings"]["errors"] == 0
    assert "runs only LlamaForCausalLMEagle3" in seen(found, "sglang==0.5.9")["stops"]
    config = tmp_path / "out" / "config.json"
    document = json.loads(config.read_text())
    config.write_text(json.dumps({**document, "q_lora_rank": None}))
    assert "requires q_lora_rank" in seen(as_json(look(tmp_path / "out")), BOTH[0])["stops"]
    # Its class alone still tells the kind; then it has no latent at all.
    config.write_text(json.dumps({k: v for k, v in document.items() if not k.endswith("lora_rank")}))
    assert "requires q_lora_rank" in seen(as_json(look(tmp_path / "out")), BOTH[0])["stops"]
    config.write_text(json.dumps({**document, "architectures": ["LlamaForCausalLMEagle3"]}))
    assert "only as Eagle3DeepseekV2ForCausalLM" in seen(as_json(look(tmp_path / "out")), BOTH[0])["stops"]


def test_an_output_that_drafts_in_parallel_is_seen_so(tmp_path: Path) -> None:
    run(PRODUCERS / "speculators_peagle", tmp_path / "out", "vllm==0.33.0")
    found = as_json(look(tmp_path / "out", "vllm==0.33.0", "vllm==0.15.0"))
    assert found["spec"]["mask_token_id"]["value"] == 3
    assert seen(found, "vllm==0.33.0")["differs"] == [] and seen(found, "vllm==0.33.0")["ignored"] == []
    assert [d["field"] for d in seen(found, "vllm==0.15.0")["differs"]] == ["mask_token_id"]
    as_dialect = as_json(look(tmp_path / "out", dialect="vllm==0.33.0"))
    assert as_dialect["spec"]["mask_token_id"]["value"] == 3 and as_dialect["findings"]["errors"] == 0


def test_what_travels_at_launch_is_not_missed_in_the_config(tmp_path: Path) -> None:
    """llama.cpp's converter is told the dtype, and TensorRT-LLM the layers."""
    rows = as_json(look(PRODUCERS / "modelopt_midlayer", "llama.cpp", "tensorrt-llm"))["engines"]
    assert [row["unreadable"] for row in rows] == ["", ""]
    assert (rows[1]["points"], rows[1]["unknown"]) == (None, "they are named where it is launched, not in the folder")
    run(DRAFTERS / "a_plain", tmp_path / "llama.cpp", "llama.cpp")
    found = as_json(look(tmp_path / "llama.cpp"))
    assert found["spec"]["dtype"] == {"value": "bfloat16", "how": "derived", "where": "fc.weight"}
    assert found["unsaid"] == {"dtype": "the folder does not say; it is named where the drafter is launched"}
    assert as_json(look(tmp_path / "llama.cpp", dialect="llama.cpp"))["findings"]["errors"] == 0
    run(DRAFTERS / "a_plain", tmp_path / "trt", "tensorrt-llm")
    found = as_json(look(tmp_path / "trt"))
    assert found["points"]["trained"] is None and "named where the drafter is launched" in found["points"]["words"]
    seal = tmp_path / "trt" / "eagle3-seal.json"
    document = json.loads(seal.read_text())
    report = check(tmp_path / "trt", "sglang==0.5.23", dialect="tensorrt-llm")  # the seal says what was named
    assert report.drafter is not None and report.drafter.spec.capture_points == (1, 3, 5)
    seal.write_text(json.dumps({k: v for k, v in document.items() if k != "launch"}))  # those of older releases do not
    report = check(tmp_path / "trt", "sglang==0.5.23", dialect="tensorrt-llm")
    [finding] = [f for f in report.findings if f.severity == "error"]
    assert finding.code == "A104" and "--aux" in finding.fix[0] and "where it is launched" in finding.why
    assert finding.found == "" and not any("give the target" in fix for fix in finding.fix)  # it is known, and no help
    said = check(tmp_path / "trt", "sglang==0.5.23", dialect="tensorrt-llm", aux=(1, 3, 5))
    assert said.outcome == "validated" and said.drafter is not None and said.drafter.spec.capture_points == (1, 3, 5)


def test_an_output_in_a_trainers_form_is_read_as_that_trainer_does(tmp_path: Path) -> None:
    written(DRAFTERS / "a_plain", tmp_path / "out", "specforge")
    found = as_json(look(tmp_path / "out"))
    assert found["dialect"]["name"] == "specforge" and found["points"] == {
        "trained": [1, 3, 5], "words": "layer 1, layer 3, layer 5", "perhaps": "",
    }  # fmt: skip
    assert found["seal"]["engines"] == [] and found["seal"]["read_as"].startswith("specforge")
    shown = text(tmp_path / "out", "--target", TARGET)
    assert ", in the form of specforge 0.2.0\n" in shown and "as it was sealed" not in shown
    assert shown.rstrip().endswith(f"0 errors, 0 warnings: eagle3 validate {tmp_path / 'out'} --target {TARGET}")
    config = tmp_path / "out" / "config.json"  # changed since, so its ids may mean something else again
    config.write_text(json.dumps({**json.loads(config.read_text()), "bos_token_id": 0}))
    assert as_json(look(tmp_path / "out"))["points"]["perhaps"] == "embedding, layer 2, layer 4"


def test_a_dialect_counts_for_outputs_too(tmp_path: Path) -> None:
    run(DRAFTERS / "a_plain", tmp_path / "out")
    found = as_json(look(tmp_path / "out", dialect="vllm==0.33.0"))
    assert (found["dialect"]["name"], found["dialect"]["release"]) == ("vllm", "0.33.0")
    assert found["seal"]["read_as"] == "vllm==0.33.0" and found["points"]["trained"] == [1, 3, 5]
    shown = text(tmp_path / "out", "--dialect", "vllm==0.33.0", "--target", TARGET)
    assert shown.rstrip().endswith(f"eagle3 validate {tmp_path / 'out'} --target {TARGET} --dialect vllm==0.33.0")
    refused = as_json(look(tmp_path / "out", dialect="specforge"))  # as validate refuses it
    assert refused["refusal"]["code"] == "F112" and refused["spec"] is None


def test_fused_tensors_are_shown_as_they_are_stored(tmp_path: Path) -> None:
    folder = copy_of("a_plain", tmp_path / "in", tensors=fuse)
    found, plain = as_json(look(folder)), as_json(look(DRAFTERS / "a_plain"))
    assert found["input"]["tensors"] == 13 == len(header(folder))
    assert sorted(n for g in found["tensors"] for n in g["names"]) == sorted(header(folder))
    assert {g["group"]: g["bytes"] for g in found["tensors"]} == {g["group"]: g["bytes"] for g in plain["tensors"]}
    assert found["cost"] == plain["cost"]
    row = seen(found, "vllm==0.33.0")
    assert not [n for n in (*row["loaded"], *row["ignored"]) if "[" in n]
    assert " of 13 tensors; embedding" in words(folder, "--engine", "vllm==0.33.0")


def test_cost_of_latent_attention_and_parallel_drafting() -> None:
    """By hand: 4 heads, latents of 16 and a turned key of 8, bf16; then a mask_hidden of 3 x 64 in bf16."""
    latent = as_json(look(PRODUCERS / "automodel_mla"))["cost"]
    assert (latent["context_flops"], latent["context_bytes"]) == (4 * 2 * (2 * 16 + 8), (16 + 8) * 2)
    mask = as_json(look(PRODUCERS / "speculators_peagle"))
    tensors = header(PRODUCERS / "speculators_peagle")
    ends = {name: t["data_offsets"][1] - t["data_offsets"][0] for name, t in tensors.items()}
    first = [n for n in tensors if n.startswith(("fc", "input_norm", "mask_hidden"))]
    step = [n for n in tensors if n.startswith(("layers.", "norm.", "lm_head."))]
    row = ends["embed_tokens.weight"] // 512 if "embed_tokens.weight" in ends else 128
    assert mask["cost"]["first_bytes"] == sum(ends[n] for n in first) and "mask_hidden" in first
    assert mask["cost"]["step_bytes"] == sum(ends[n] for n in step) + row


@pytest.mark.parametrize("name", sorted(p.name for p in PRODUCERS.iterdir()))
def test_every_producer_is_looked_at_without_a_target(name: str) -> None:
    it = inspect(str(PRODUCERS / name), Asked())
    found = json.loads(json.dumps(as_json(it), allow_nan=False))
    assert [row["engine"].split("==")[0] for row in found["engines"]] == loading.names("engines")
    assert found["spec"] is not None and all(row["points"] is None for row in found["engines"] if row["unknown"])
    printed = io.StringIO()
    for verbose in (False, True):
        InspectPrinter(printed, verbose).inspected(it)
    assert "as it is" in printed.getvalue() and "finds no  " not in printed.getvalue()


# --- what cannot be converted -------------------------------------------------------------------------------------


def test_points_that_only_a_default_gives_are_named_as_it() -> None:
    found = as_json(look(PRODUCERS / "angelslim", target=None))
    assert found["points"] == {"trained": None, "words": "2, L//2, L-3 of the target's L layers", "perhaps": ""}
    assert found["spec"]["capture_points"] == {"value": [], "how": "default", "where": ""}
    assert found["cost"]["first_flops"] == 2 * 64 * 192  # fc tells how many states there are
    assert found["findings"]["errors"] == 1
    assert as_json(look(PRODUCERS / "angelslim"))["points"]["trained"] == [2, 3, 3]


def test_ids_with_two_meanings_are_shown_with_both() -> None:
    found = as_json(look(PRODUCERS / "specforge_hf", target=None))
    assert found["points"]["perhaps"] == "embedding, layer 2, layer 4"
    assert "or perhaps embedding, layer 2, layer 4 (A109)" in text(PRODUCERS / "specforge_hf")


def test_an_output_says_that_it_is_one_and_is_read_as_its_engine_reads_it(tmp_path: Path) -> None:
    run(DRAFTERS / "g_aux024", tmp_path / "out", target=TARGET)
    found = as_json(look(tmp_path / "out", *BOTH))
    assert found["dialect"] is None and found["refusal"] is None
    seal = found["seal"]
    assert seal["made_from"] == str(DRAFTERS / "g_aux024") and seal["engines"] == ["sglang==0.5.23"]
    assert seal["read_as"] == "sglang==0.5.23" and seal["proof"] == "none"
    assert found["points"]["trained"] == [0, 2, 4]
    assert found["spec"]["capture_points"]["where"] == "eagle_config.eagle_aux_hidden_state_layer_ids"
    assert [seen(found, e)["as_trained"] for e in BOTH] == [True, True]
    assert found["owners"]["embedding_is"] == "target's"
    trained = as_json(look(DRAFTERS / "g_aux024"))
    assert found["cost"] == trained["cost"]
    assert {k: v for k, v in found["map"].items() if k != "special"} == {
        k: v for k, v in trained["map"].items() if k != "special"
    }
    shown = text(tmp_path / "out")
    assert shown.startswith("An output of eagle3-convert ") and "for sglang 0.5.23\n" in shown
    assert f"made from {DRAFTERS / 'g_aux024'}; proof: none" in shown


def test_an_output_whose_seal_is_no_use_is_looked_at_all_the_same(tmp_path: Path) -> None:
    run(DRAFTERS / "a_plain", tmp_path / "out", target=TARGET)
    file = tmp_path / "out" / "eagle3-seal.json"
    document = json.loads(file.read_text())
    for wrong in ([{"engine": "nobody==1"}], [{"engine": 5}, None], "sglang", None):
        file.write_text(json.dumps({**document, "engines": wrong, "source": 7, "target": None}))
        found = as_json(look(tmp_path / "out"))
        assert found["seal"]["read_as"] == "" and found["spec"] is None and found["seal"]["made_from"] == ""
        assert seen(found, "sglang==0.5.23")["points"] == [1, 3, 5]
        assert "no engine of its seal reads its config" in text(tmp_path / "out")


def test_an_output_is_read_as_the_first_engine_that_can(tmp_path: Path) -> None:
    """And it says which: SGLang, the first of the seal, needs a key that was taken out of the config."""
    out = tmp_path / "out"
    convert(request(DRAFTERS / "a_plain", out=out, engines=BOTH, target=TARGET), quiet)
    config = json.loads((out / "config.json").read_text())
    del config["draft_vocab_size"]
    (out / "config.json").write_text(json.dumps(config))
    assert [str(e) for e in look(out).subject.sealed_for] == ["sglang 0.5.23", "vllm 0.33.0"]
    found = as_json(look(out))
    assert found["seal"]["read_as"] == "vllm==0.33.0" and "read here as vllm 0.33.0 reads it" in text(out)
    assert json.loads(eagle3("diff", out, out, "--json").stdout)["a"]["read_as"] == "vllm==0.33.0"
    assert "as vllm 0.33.0 reads it" in eagle3("diff", out, out).stdout


def test_an_unrecognised_folder_says_what_was_found() -> None:
    found = as_json(look(TARGET, target=None))
    assert found["refusal"]["code"] == "F112" and found["dialect"] is None and found["spec"] is None
    [layers] = [g for g in found["tensors"] if g["group"] == "model.layers.{n}.mlp.up_proj.weight"]
    assert len(layers["names"]) == 6
    assert sorted(n for g in found["tensors"] for n in g["names"]) == sorted(header(TARGET))
    shown = text(TARGET)
    assert shown.startswith("No drafter that is read here: this is no EAGLE-3 drafter but a whole language model")
    assert "model.layers.{n}.mlp.up_proj.weight" in shown and "architectures, attention_bias" in shown


def test_a_config_that_cannot_be_read_still_has_tensors_and_a_dialect(tmp_path: Path) -> None:
    def wrong(config: dict[str, Any]) -> None:
        config["transformer_layer_config"]["hidden_size"] = "wide"

    found = as_json(look(copy_of("a_plain", tmp_path / "in", wrong)))
    assert found["dialect"]["name"] == "speculators" and found["spec"] is None and found["cost"] is None
    assert found["refusal"]["code"] == "C203" and found["findings"]["errors"] == 1
    assert [g["group"] for g in found["tensors"]] == ["fc", "norms", "layer 0", "head", "embedding", "map"]
    assert "cannot read hidden_size" in seen(found, "vllm==0.33.0")["unreadable"]
    assert "Not read: transformer_layer_config.hidden_size in config.json cannot be read" in text(tmp_path / "in")


def test_missing_tensors_are_counted_and_what_engines_would_leave_is_named(tmp_path: Path) -> None:
    def lose(tensors: dict[str, Any]) -> None:
        del tensors["lm_head.weight"], tensors["layers.0.mlp.up_proj.weight"], tensors["d2t"], tensors["t2d"]

    found = as_json(look(copy_of("a_plain", tmp_path / "in", tensors=lose)))
    assert found["findings"]["errors"] == 3 and found["findings"]["codes"] == ["T103", "V204"]
    assert found["owners"]["head"] == "none" and found["map"] is None
    row = seen(found, "vllm==0.33.0")
    assert row["missing"] == ["layers.0.mlp.up_proj.weight", "lm_head.weight", "d2t"]
    assert row["head"] == "none in the folder"
    assert found["cost"]["step_flops"] == 163840 and found["cost"]["step_bytes"] == 164480  # of what it should have
    shown = text(tmp_path / "in")
    assert "and no map that can be read" in shown and "3 errors, 0 warnings: eagle3 validate" in shown


def test_a_quantised_drafter_counts_its_weights_once(tmp_path: Path) -> None:
    import torch

    def quantise(tensors: dict[str, Any]) -> None:
        name = "layers.0.mlp.up_proj"
        weight = tensors.pop(f"{name}.weight").float()
        tensors[f"{name}.weight"] = (weight * 100).to(torch.float8_e4m3fn)
        tensors[f"{name}.weight_scale"] = torch.tensor([0.01])

    def declare(config: dict[str, Any]) -> None:
        config["quantization_config"] = {"quant_method": "fp8"}

    found = as_json(look(copy_of("a_plain", tmp_path / "in", declare, quantise)))
    assert found["quantised"] == ["layers.0.mlp.up_proj.weight"]
    [layer] = [g for g in found["tensors"] if g["group"] == "layer 0"]
    assert layer["dtypes"] == ["BF16", "F32", "F8_E4M3"] and len(layer["names"]) == 11
    assert found["cost"]["parameters"] == 127232  # scales are no parameters
    assert found["cost"]["step_bytes"] == 164480 - 192 * 64 + 4  # a byte a weight less, and the scale


def test_a_lone_file_and_a_pickle_are_looked_at() -> None:
    lone = as_json(look(DRAFTERS / "a_plain" / "model.safetensors"))
    assert lone["points"]["trained"] == [1, 3, 5]
    pickle = as_json(look(PRODUCERS / "specforge_state"))
    assert pickle["input"]["files"] == ["training_state.pt"] and pickle["points"]["trained"] == [1, 3, 5]


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_what_cannot_be_opened_is_an_error(missing: str, tmp_path: Path) -> None:
    folder = copy_of("a_plain", tmp_path / "in")
    (folder / missing).unlink()
    done = eagle3("inspect", folder)
    assert done.returncode == 3 and done.stdout == "" and "error F1" in done.stderr


def test_a_forced_dialect_is_said_to_be_forced() -> None:
    shown = text(PRODUCERS / "automodel", "--dialect", "speculators")
    assert "told by --dialect, not by its marks" in shown
    assert eagle3("inspect", PRODUCERS / "automodel", "--dialect", "nobody").returncode == 2


# --- on the terminal ------------------------------------------------------------------------------------------------


def on_a_terminal(columns: int, *args: object, **environment: str) -> list[str]:
    """What a terminal of so many columns gets, line by line, without carriage returns."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "LINES": "40", "TERM": "xterm-256color", **environment}
    command = [sys.executable, "-m", "converter", *map(str, args)]
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=env)
    os.close(theirs)
    data = b""
    try:
        while block := os.read(ours, 65536):
            data += block
    except OSError:  # the other end is closed
        pass
    _, errors = process.communicate()
    os.close(ours)
    assert process.returncode in (0, 1), errors
    return data.decode().replace("\r", "").splitlines()


def without_styles(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


@pytest.mark.parametrize("columns", [60, 80])
def test_it_fits_the_terminal_and_cuts_nothing(columns: int) -> None:
    lines = on_a_terminal(columns, "inspect", DRAFTERS / "l_defaults", "--target", TARGET, NO_COLOR="1")
    plain = [without_styles(line) for line in lines]
    assert all(len(line) <= columns for line in plain if str(DATA) not in line)  # paths stay whole, for copying
    if columns == 80:
        assert len(plain) <= 40
    told = " ".join(" ".join(plain).split())
    for fact in ("max_position_embeddings 1024", "stored as offsets, agrees with t2d", "127,424 parameters",
                 "finds no hidden_size in config.json", "captures layer 1, layer 3, layer 5, as trained"):  # fmt: skip
        assert fact in told


def test_colours_on_a_terminal_only_and_not_with_no_color() -> None:
    assert any("\x1b[1m" in line for line in on_a_terminal(80, "inspect", DRAFTERS / "a_plain"))
    assert not any("\x1b[3" in line for line in on_a_terminal(80, "inspect", TARGET, NO_COLOR="1"))
    assert "\x1b" not in text(DRAFTERS / "a_plain")


def test_verbose_names_every_field_and_tensor() -> None:
    shown = text(DRAFTERS / "a_plain", "-v")
    assert all(name in shown for name in header(DRAFTERS / "a_plain"))
    assert "head_dim = 16   (stated: transformer_layer_config.head_dim)" in shown
    assert "qkv_bias = false   (stated: transformer_layer_config.attention_bias)" in shown


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    shutil.copytree(TARGET, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"a\x1b[31m\x07": 1, **config}))
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    names = data[8 : 8 + size].replace(b'"lm_head.weight"', b'"lm\\u001b[2J\\u202ed"')
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(names)) + names + data[8 + size :])
    for shown in (text(folder, "-v"), text(folder)):
        assert "lm\\u001b[2J\\u202ed" in shown and "a\\u001b[31m\\u0007" in shown
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", shown)


def test_a_name_with_line_breaks_makes_no_lines_of_its_own(tmp_path: Path) -> None:
    def name(config: dict[str, Any]) -> None:
        config["speculators_config"]["verifier"]["name_or_path"] = "org/target\n0 errors, 0 warnings"

    lines = text(copy_of("a_plain", tmp_path / "in", name)).splitlines()
    assert "target org/target 0 errors, 0 warnings: LlamaForCausalLM, depth unknown (--target)" in lines


@pytest.mark.parametrize("command", ["validate", "convert"])
def test_a_class_with_line_breaks_makes_no_lines_of_its_own(command: str, tmp_path: Path) -> None:
    def name(config: dict[str, Any]) -> None:
        config["speculators_config"]["verifier"]["architectures"] = ["LlamaForCausalLM\nConverted."]

    out = (tmp_path / "out",) if command == "convert" else ()
    done = eagle3(command, copy_of("a_plain", tmp_path / "in", name), *out)
    lines = (done.stdout + done.stderr).splitlines()
    assert "Converted." not in lines
    assert any("LlamaForCausalLM Converted." in line for line in lines)


def test_a_number_that_rounds_up_to_a_unit_is_one_of_it() -> None:
    assert [_scaled(n) for n in (999, 999_400, 999_999_999, 1_240_000_000)] == ["999 ", "999 k", "1 G", "1.24 G"]


def test_it_imports_neither_torch_nor_what_it_does_not_need() -> None:
    modules = imported("inspect", DRAFTERS / "a_plain")
    assert not modules & {"torch", "transformers", "safetensors", "jsonschema", "huggingface_hub"}


def test_json_goes_to_stdout_alone() -> None:
    done = eagle3("inspect", DRAFTERS / "a_plain", "--json", "--target", TARGET)
    assert done.stderr == "" and json.loads(done.stdout)["schema"] == "eagle3-convert/inspect/1"

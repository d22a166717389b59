"""One fault for each code of `mappings/findings.yaml`. The package's docstring says what a row is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from converter.pipeline import convert
from tests.faults.changes import (
    INDEX,
    WEIGHTS,
    Change,
    Edit,
    Tensors,
    all_of,
    as_it_is,
    as_speculators_keeps_it,
    config,
    copied,
    cut,
    fused,
    gone,
    header,
    holding,
    layer,
    masks,
    only_first,
    pickled,
    put,
    quantised,
    removed,
    replaced,
    states,
    tensors,
    vocabulary,
    without,
)
from tests.support import SAMPLE, TARGET, quiet, request

SGLANG, OLD_SGLANG, VLLM = "sglang==0.5.23", "sglang==0.5.9", "vllm==0.33.0"

A_PLAIN = "drafters/a_plain"
LAYER = "layers.0."
IDS, SEAL = "eagle_aux_hidden_state_layer_ids", "eagle3-seal.json"
NESTED = f"eagle_config.{IDS}"
FP8_SAMPLE = SAMPLE.parent / "hs_0_fp8.safetensors"


@dataclass(frozen=True)
class Fault:
    """A fault and where it shows.

    where     part of what the finding points to; "" for the few that point nowhere
    drafter   folder in tests/data
    change    of the drafter
    target, sample  changes of the target's config.json and of samples/tiny; None where the run is given what `options`
              say, or their default
    options   of the run with and without the fault; fault: options that are the fault
    follows   codes of other errors, each the cause or the consequence of this one
    writes    whether it is shown in a conversion (True) or in a validation; by default an error is in a conversion,
              which it refuses
    """

    code: str
    title: str
    where: str
    drafter: str = A_PLAIN
    change: Change = as_it_is
    target: Change | None = None
    sample: Change | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    fault: Mapping[str, Any] = field(default_factory=dict)
    follows: frozenset[str] = frozenset()
    writes: bool | None = None


def ids(*points: int) -> Change:
    return config({IDS: list(points)})


def speculators(release: str, written_by: str) -> Change:
    return config({"speculators_version": release, "architectures": [written_by]})


def swapped_for(folder: Path, **options: Any) -> None:
    """Put what the drafter is converted to in its place."""
    out = folder.with_name(f"{folder.name} converted")
    convert(request(folder, out=out, target=TARGET / "config.json", **options), quiet)
    gone(folder)
    out.rename(folder)


def shards(folder: Path) -> None:
    """An index of a second shard that is not there."""
    (folder / INDEX).write_text(json.dumps({"weight_map": {"fc.weight": "model-00002-of-00002.safetensors"}}))
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")


def packed_map(document: dict[str, Any]) -> None:
    """d2t as half-byte numbers: its 3,072 bytes hold 6,144."""
    document["d2t"] |= {"dtype": "F4", "shape": [6144]}


def half_vocabulary(values: Tensors) -> None:
    """128 of 512 ids with d2t = 0, 1, 2, ...: as ids 0 to 127, as offsets 0, 2, 4, ..."""
    values["d2t"] = torch.arange(128)
    values["lm_head.weight"] = values["lm_head.weight"][:128]
    del values["t2d"]


def map_of_another_run(values: Tensors) -> None:
    """In range, without duplicates, agreeing with its t2d: only the head's rows tell."""
    chosen = torch.cat([torch.arange(0, 300), torch.arange(400, 484)])
    values["d2t"] = chosen - torch.arange(384)
    values["t2d"] = torch.zeros(512, dtype=torch.bool).index_fill(0, chosen, True)


def reversed_vocabulary(values: Tensors) -> None:
    values["d2t"] = torch.arange(512).flip(0) - torch.arange(512)
    values["t2d"] = torch.ones(512, dtype=torch.bool)


def target_head() -> torch.Tensor:
    return load_file(TARGET / WEIGHTS)["lm_head.weight"]


def end_left_out(values: Tensors) -> None:
    """Trained on all first ids but 1, which ends the target's answers."""
    chosen = torch.cat([torch.tensor([0]), torch.arange(2, 385)])
    values["lm_head.weight"] = target_head()[chosen]
    values["d2t"] = chosen - torch.arange(384)
    values["t2d"] = torch.zeros(512, dtype=torch.bool).index_fill(0, chosen, True)


def target_head_one_off(values: Tensors) -> None:
    """The rows of the target's head after those that the map names."""
    values["lm_head.weight"] = target_head()[(values["d2t"] + torch.arange(384) + 1) % 512]


def noise(of: torch.Tensor, share: float) -> torch.Tensor:
    """`of` with Gaussian noise of `share` of its own spread on top."""
    generator = torch.Generator().manual_seed(7)
    values = of.float()
    return (values + share * values.std() * torch.randn(values.shape, generator=generator)).to(of.dtype)


def at_random(of: torch.Tensor, spread: float = 0.02, seed: int = 7) -> torch.Tensor:
    return (torch.randn(of.shape, generator=torch.Generator().manual_seed(seed)) * spread).to(of.dtype)


def decoder_at_random(spread: float) -> Change:
    """Where the spread is far larger than what was trained, no other wiring does better either (A301)."""

    def edit(values: Tensors) -> None:
        names = [n for n in values if n.startswith(LAYER) and values[n].dim() == 2]
        for seed, name in enumerate(sorted(names)):
            values[name] = at_random(values[name], spread, seed)

    return tensors(edit)


def in_eight_bits(of: torch.Tensor) -> torch.Tensor:
    """int8 numbers without their scale, in the dtype of the weights."""
    return (of.float() / of.abs().max() * 127).round().to(of.dtype)


def choices(token: int) -> Edit:
    """The same one of the target's on every position of a sample."""

    def edit(values: Tensors) -> None:
        for name in [n for n in values if n.endswith("greedy_next")]:
            values[name] = torch.full_like(values[name], token)

    return edit


def biased_mlp(values: Tensors) -> None:
    for part, width in (("gate", 192), ("up", 192), ("down", 64)):
        values[f"layers.0.mlp.{part}_proj.bias"] = torch.ones(width, dtype=torch.bfloat16)


def q_without_compression(values: Tensors) -> None:
    room = "model.layers.0.self_attn"
    for part in ("q_a_proj", "q_a_layernorm", "q_b_proj"):
        del values[f"{room}.{part}.weight"]
    values[f"{room}.q_proj.weight"] = at_random(torch.empty(80, 128, dtype=torch.bfloat16), 0.1)


def wider_target(values: Tensors) -> None:
    """A P-EAGLE drafter of a target of width 96."""
    values["fc.weight"] = at_random(torch.empty(64, 288, dtype=torch.bfloat16), 0.1)
    values["mask_hidden"] = torch.ones(1, 1, 288, dtype=torch.bfloat16)


UP, GATE = f"{LAYER}mlp.up_proj.weight", f"{LAYER}mlp.gate_proj.weight"
ROTATION = {"location": "weight_output", "targets": ["re:.*embed_tokens$"]}
NEVER_DRAFTED = 469  # not in the map of a_plain, nor below 384, where a lost map would name it
SLIDING = layer(layer_types=["sliding_attention"], sliding_window=16, use_sliding_window=True)
DEEP = config({"num_hidden_layers": 10, "max_position_embeddings": 1024})
DEFAULT_POINTS = {"aux": (2, 5, 7)}  # of a target of ten layers
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 256}
FOUR_POINTS = all_of(ids(1, 2, 3, 5), replaced("fc.weight", lambda fc: torch.cat([fc, noise(fc[:, :64], 1.0)], dim=1)))
QUANTISATION = config({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})
MLA = {"drafter": "producers/automodel_mla", "options": {"aux": (1, 3, 5)}}
PEAGLE = {"drafter": "producers/speculators_peagle", "options": {"engines": (VLLM,)}}
ON_SAMPLE = {"sample": SAMPLE}
WHOLE_TARGET = {"target": TARGET}

FAULTS = [
    # --- files: what cannot be opened ends the run before anything else is said
    Fault("F100", "a folder that is not there", "in", change=gone),
    Fault("F101", "a web page saved as weights", WEIGHTS, change=holding(WEIGHTS, b"<!DOCTYPE html><html></html>")),
    Fault("F102", "a Git LFS pointer", WEIGHTS,
          change=holding(WEIGHTS, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")),
    Fault("F103", "a download cut short", WEIGHTS, change=cut(WEIGHTS)),
    Fault("F104", "a shape that does not fill its bytes", WEIGHTS,
          change=header(lambda document: document["fc.weight"]["shape"].append(2))),
    Fault("F105", "a map in half-byte numbers", WEIGHTS, change=header(packed_map)),
    Fault("F106", "a tensor in two shards", "model-00002-of-00002.safetensors", change=all_of(
        copied(WEIGHTS, "model-00001-of-00002.safetensors"), copied(WEIGHTS, "model-00002-of-00002.safetensors"),
        removed(WEIGHTS), holding(INDEX, json.dumps({"weight_map": {
            "fc.weight": "model-00001-of-00002.safetensors", "d2t": "model-00002-of-00002.safetensors"}}).encode()))),
    Fault("F107", "a folder without weights", "in", change=removed(WEIGHTS)),
    Fault("F108", "a shard that was not downloaded", "in", change=shards),
    Fault("F110", "a config cut short", "config.json", change=cut("config.json")),
    Fault("F111", "no config", "in", change=removed("config.json")),
    Fault("F112", "a drafter of another kind", "speculators_model_type",
          change=config({"speculators_model_type": "dflash"})),
    Fault("F113", "a target that names no class", "config.json", target=config({"architectures": None})),
    Fault("F114", "a pickle of more than tensors", "pytorch_model.bin", change=pickled({"arguments": Path("x")})),
    Fault("F116", "a fused matrix whose layout nobody knows", "tensor names",
          change=tensors(lambda values: (fused(values), values.update(
              {"layers.0.self_attn.W_pack.weight": values.pop("layers.0.self_attn.qkv_proj.weight")})))),
    Fault("F140", "model code in the folder", "auto_map in config.json", change=holding("config.py", b"import os")),
    Fault("F141", "a licence that lies elsewhere", "LICENSE", change=lambda folder: (folder / "LICENSE").symlink_to(
        SAMPLE)),
    # --- samples
    Fault("F120", "a sample without states", "sample",
          sample=only_first(without("s0.hidden_states")), options=ON_SAMPLE),
    Fault("F121", "states of another width", "sample", sample=states(lambda s: s[..., :32]), options=ON_SAMPLE),
    Fault("F122", "a point of the drafter that was not captured", "sample",
          sample=states(lambda s: s[[0, 1, 2, 4]], "0 1 2 4"), options=ON_SAMPLE),
    Fault("F123", "a loss mask of zeros", "sample", sample=masks(torch.zeros_like), options=ON_SAMPLE),
    Fault("F124", "a state that overflowed", "s0",
          sample=states(lambda s: s.index_fill(1, torch.tensor(77), float("inf"))), options=ON_SAMPLE),
    Fault("F125", "one unlabelled state fewer than points", "sample",
          sample=as_speculators_keeps_it(1, 3, 5), options=ON_SAMPLE),
    Fault("F126", "states that came without a loss mask", "sample",
          sample=as_speculators_keeps_it(1, 3, 5, 6), options=ON_SAMPLE | WHOLE_TARGET),
    Fault("F127", "a text that is there twice", "sample", sample=tensors(lambda values: values.update(
        {name.replace("s0.", "s9."): values[name].clone() for name in list(values) if name.startswith("s0.")})),
        options=ON_SAMPLE),
    Fault("F128", "a last state that was not captured", "sample",
          sample=as_speculators_keeps_it(0, 1, 3, 5),
          options=ON_SAMPLE | WHOLE_TARGET, fault={"sample_points": (0, 1, 3, 5)}),
    Fault("F129", "ids that are not in the order of the layers", "hs_0", options={"sample": FP8_SAMPLE,
          **WHOLE_TARGET, "engines": (VLLM,)},
          change=all_of(config({IDS: [5, 1, 3]}), replaced("fc.weight", lambda fc: fc.roll(64, 1)))),
    Fault("F135", "more positions than asked for", "tiny", options=ON_SAMPLE, fault={"positions": 160}),
    # --- tensors
    Fault("T101", "an adapter", "adapter.weight", change=put("adapter.weight", torch.ones(4))),
    Fault("T102", "q, k and v fused, and k again", "qkv_proj", change=tensors(lambda values: (
        kept := values["layers.0.self_attn.k_proj.weight"].clone(), fused(values),
        values.update({"layers.0.self_attn.k_proj.weight": kept})))),
    Fault("T103", "no final norm", "norm.weight", change=without("norm.weight")),
    Fault("T104", "the rows of another number of key heads", "k_proj.weight",
          change=replaced("layers.0.self_attn.k_proj.weight", lambda k: torch.cat([k, k]))),
    Fault("T105", "a norm that the config does not declare", "input_norm.weight", drafter="drafters/c_nbfc",
          change=config({"norm_before_fc": False})),
    Fault("T106", "a norm in whole numbers", "norm.weight", change=replaced("norm.weight", lambda norm: norm.char())),
    Fault("T107", "a norm kept in fp32", "norm.weight", change=replaced("norm.weight", lambda norm: norm.float())),
    Fault("T108", "a wrapper's prefix", "module.", change=tensors(lambda values: [
        values.update({f"module.{name}": values.pop(name)}) for name in list(values)])),
    Fault("T109", "an embedding at its random start", "embed_tokens.weight",
          change=replaced("embed_tokens.weight", at_random), options=WHOLE_TARGET),
    Fault("T110", "quantised, and the config is silent", "up_proj.weight", change=quantised("layers.0.mlp.up_proj")),
    Fault("T111", "called quantised, and is not", "quantization_config", change=QUANTISATION),
    Fault("T112", "q, k and v as one tensor", "qkv_proj.weight", change=tensors(fused)),
    Fault("T113", "one rank's share of a fused tensor", "qkv_proj.weight", change=all_of(
        tensors(fused), replaced("layers.0.self_attn.qkv_proj.weight", lambda rows: rows[:64]))),
    Fault("T114", "a fused tensor with a scale", "gate_up_proj.weight_scale", change=all_of(
        tensors(fused), put("layers.0.mlp.gate_up_proj.weight_scale", torch.ones(1)))),
    Fault("T115", "a matrix of zeros", "up_proj.weight", change=replaced(UP, torch.zeros_like)),
    Fault("T116", "a matrix of ones", "up_proj.weight", change=replaced(UP, torch.ones_like)),
    Fault("T117", "a captured state left out of fc", "fc.weight",
          change=replaced("fc.weight", lambda fc: fc.index_fill(1, torch.arange(64), 0))),
    Fault("T118", "gate saved as up", "up_proj.weight", change=tensors(
        lambda values: values.update({UP: values[GATE].clone()}))),
    Fault("T119", "a decoder layer as transformers starts it", LAYER, change=decoder_at_random(0.02)),
    Fault("T120", "an fc as transformers starts it", "fc.weight", change=replaced("fc.weight", at_random)),
    Fault("T121", "a norm of halves", "norm.weight",
          change=replaced("norm.weight", lambda norm: torch.full_like(norm, 0.5))),
    Fault("T122", "int8 numbers without their scale", "up_proj.weight", change=replaced(UP, in_eight_bits)),
    Fault("T123", "an embedding whose ids are shifted", "embed_tokens.weight",
          change=replaced("embed_tokens.weight", lambda table: table.roll(3, 0)), options=WHOLE_TARGET),
    Fault("T124", "a trained head that is the target's, one row off", "lm_head.weight", options=WHOLE_TARGET,
          change=all_of(config({"speculators_version": "0.4.0.1"}), tensors(target_head_one_off))),
    Fault("T130", "a frozen embedding of another fine-tune", "embed_tokens.weight", drafter="producers/specforge_hf",
          options=WHOLE_TARGET | {"engines": (VLLM,)},
          change=replaced("embed_tokens.weight", lambda table: table * 1.05)),
    # --- the vocabulary map
    Fault("V201", "ids where offsets are usual", "d2t", change=replaced("d2t", lambda d: d + torch.arange(384))),
    Fault("V202", "no d2t beside t2d", "d2t", change=without("d2t")),
    Fault("V203", "a map that was never loaded", "d2t", change=replaced("d2t", torch.zeros_like)),
    Fault("V204", "no map", "d2t", change=without("d2t", "t2d")),
    Fault("V205", "d2t one entry short", "d2t", change=replaced("d2t", lambda d: d[:-1])),
    Fault("V206", "t2d one entry short", "t2d", change=replaced("t2d", lambda marks: marks[:-1])),
    Fault("V207", "a map that reads both ways", "d2t",
          change=all_of(config({"draft_vocab_size": 128}), tensors(half_vocabulary))),
    Fault("V208", "d2t one entry off", "d2t", change=replaced("d2t", lambda d: d.roll(1))),
    Fault("V209", "a map of floating-point numbers", "d2t", change=replaced("d2t", lambda d: d.float())),
    Fault("V210", "a map of another run", "lm_head.weight", change=tensors(map_of_another_run), options=WHOLE_TARGET),
    Fault("V211", "a lost map beside a frozen head", "d2t", change=without("d2t", "t2d"), options=WHOLE_TARGET),
    Fault("V212", "the end of an answer left out", "d2t", change=tensors(end_left_out), options=WHOLE_TARGET),
    Fault("V213", "another map beside the checkpoint", "d2t.npy",
          change=lambda folder: np.save(folder / "d2t.npy", np.arange(384))),
    # --- capture points
    Fault("A101", "a point twice", IDS, change=ids(1, 3, 3)),
    Fault("A102", "a point past the target's end", IDS, change=ids(1, 3, 7)),
    Fault("A103", "two points where fc takes three states", "fc.weight", change=ids(1, 3)),
    Fault("A104", "no ids and a target of unknown depth", "config.json", change=config({IDS: None}),
          options={"target": None, "target_arch": "LlamaForCausalLM"}),
    Fault("A105", "no ids", "config.json", target=DEEP, change=config({IDS: None})),
    Fault("A106", "--aux against the config", "--aux", fault={"aux": (2, 3, 4)}),
    Fault("A108", "no target", "", fault={"target": None}),
    Fault("A109", "ids that came through a converter", IDS, change=speculators("0.9.0", "Eagle3Speculator")),
    Fault("A111", "ids under the class of a target", NESTED, drafter="producers/specforge_hf", target=DEEP,
          change=config({"architectures": ["LlamaForCausalLM"]})),
    Fault("A112", "an id of -1", NESTED, drafter="producers/specforge_hf", change=config({NESTED: [-1, 2, 4]})),
    Fault("A301", "one point declared a layer off", "wiring", change=ids(1, 3, 4), options=ON_SAMPLE),
    Fault("A302", "a sample that calls the embedding layer 1", "the sample",
          sample=states(lambda s: s[[0, 2, 4, 6]], "1 3 5 6"),
          options=ON_SAMPLE | WHOLE_TARGET),
    Fault("A303", "a last state that is not the target's", "the sample",
          sample=states(lambda s: torch.cat([s[:6], noise(s[6:], 3.0)])), options=ON_SAMPLE | WHOLE_TARGET),
    # --- config and target
    Fault("C202", "no vocabulary size", "vocab_size", change=layer(vocab_size=None)),
    Fault("C203", "a number in quotes", "hidden_size", change=layer(hidden_size="64")),
    Fault("C204", "a key of a newer trainer", "brand_new", change=config({"brand_new": True})),
    Fault("C205", "float32 written over bfloat16 weights", "dtype", change=config({"dtype": "float32"})),
    Fault("C206", "a converter that loses rope", "speculators_version",
          change=speculators("0.6.0", "Eagle3Speculator")),
    Fault("C207", "heads of one element", "config.json",
          change=layer(num_attention_heads=64, num_key_value_heads=32, head_dim=1)),
    Fault("C208", "a trainer of the future", "speculators_version", change=config({"speculators_version": "2.0.0"})),
    Fault("C210", "a wider target", "config.json", target=config({"hidden_size": 128})),
    Fault("C211", "a target of another vocabulary", "config.json", target=config({"vocab_size": 600})),
    Fault("C212", "a target of another class", "config.json", target=config({"architectures": ["Qwen3ForCausalLM"]})),
    Fault("C213", "a target of another rope", "transformer_layer_config",
          target=config({"rope_parameters.rope_theta": 5e5})),
    Fault("C214", "a target of a longer context", "max_position_embeddings",
          target=config({"max_position_embeddings": 131072})),
    Fault("C215", "a flag that changed its meaning", "norm_output", drafter="producers/specforge_hf",
          change=config({"norm_output": True})),
    Fault("C216", "yarn that only its trainer computes so", "rope_parameters", **MLA,
          change=config({"rope_parameters": YARN})),
    Fault("C217", "a mask token that nobody names", "mask_token_id", **PEAGLE, change=config({"mask_token_id": None})),
    Fault("C218", "a mask token outside the vocabulary", "mask_token_id", **PEAGLE,
          change=config({"mask_token_id": 512})),
    Fault("C226", "ids under two keys that disagree", IDS, drafter="producers/specforge_hf",
          change=config({IDS: [2, 3, 4]})),
    Fault("C227", "a second norm that loses nothing", "input_layernorm", drafter="producers/modelopt_midlayer",
          fault=ON_SAMPLE),
    Fault("C230", "no target to name", "speculators_config", drafter="producers/specforge_hf",
          options={"to": "speculators"}, fault={"target": None}),
    Fault("C231", "an output that an error spoke against", "eagle3-seal.json", drafter="drafters/b_nbr",
          options={"engines": (VLLM,)}, change=lambda folder: swapped_for(folder, to="specforge", allow=("K103",))),
    Fault("C232", "vLLM's output read as SGLang's", "eagle3-seal.json",
          change=lambda folder: swapped_for(folder, engines=(VLLM,)),
          fault={"dialect": SGLANG, "aux": (1, 3, 5)}),
    Fault("C233", "an output whose config was edited", SEAL, writes=False,
          change=all_of(swapped_for, config({"rope_theta": 5e5}))),
    Fault("C234", "an output for an engine of the user's own", SEAL, writes=False,
          change=all_of(swapped_for, config({"engines": [{"engine": "mine==1.0"}]}, SEAL))),
    Fault("C235", "an output with a window, of an older seal", SEAL,
          change=all_of(SLIDING, swapped_for, config({"launch": None}, SEAL))),
    Fault("C236", "as many layers as the target has", "num_hidden_layers", drafter="producers/specforge_hf",
          change=config({"num_hidden_layers": 6})),
    Fault("C237", "another tokenizer", "tokenizer.json", change=vocabulary(7, 6), options=WHOLE_TARGET),
    Fault("C238", "another chat template", "chat_template.jinja",
          change=holding("chat_template.jinja", b"{{ messages[0].content }}"),
          target=holding("chat_template.jinja", b"{{ messages }}")),
    Fault("C239", "a token past the target's table", "tokenizer.json", target=vocabulary(6, 600)),
    Fault("C240", "a tokenizer cut short", "tokenizer.json",
          change=holding("tokenizer.json", b'{"model": '), options=WHOLE_TARGET),
    Fault("C241", "a drafter of another fine-tune", "config.json", target=as_it_is,
          change=config({"speculators_config.verifier.name_or_path": "org/another"})),
    Fault("C242", "an adapter beside the target", "adapter_config.json", target=holding("adapter_config.json", b"{}")),
    Fault("C243", "a rotated target", "transform_config", target=config({
        "quantization_config.transform_config.config_groups": {"R1": {"type": "hadamard", "apply": [ROTATION]}}})),
    Fault("C244", "a head that is called tied", "tie_word_embeddings", drafter="producers/specforge_hf",
          change=config({"tie_word_embeddings": True})),
    # --- engines
    Fault("K101", "a release of the future", "sglang==9.9", fault={"engines": ("sglang==9.9",)}),
    Fault("K102", "two layers for a release of one", "num_hidden_layers", drafter="drafters/e_2layers",
          fault={"engines": (OLD_SGLANG,)}),
    Fault("K103", "a flag that SGLang does not read", "norm_before_residual",
          change=config({"norm_before_residual": True})),
    Fault("K104", "a norm that came later", "norm_before_fc", drafter="drafters/c_nbfc",
          fault={"engines": (OLD_SGLANG,)}),
    Fault("K105", "norms of the states that came later", "fc_norm", options={"engines": (OLD_SGLANG,)}, change=all_of(
        config({"fc_norm": True}),
        *(put(f"fc_norm.{j}.weight", torch.ones(64, dtype=torch.bfloat16)) for j in range(3)))),
    Fault("K106", "a normed state that came later", "norm_output", options={"engines": (OLD_SGLANG,)},
          change=config({"norm_output": True})),
    Fault("K107", "norms of q and k for SGLang", "model_type", drafter="drafters/f_qwen3",
          options={"engines": (VLLM,)}, fault={"engines": (SGLANG,)}),
    Fault("K108", "attention biases for SGLang", "attention_bias", drafter="drafters/j_attnbias",
          options={"engines": (VLLM,)}, fault={"engines": (SGLANG,)}),
    Fault("K109", "biases in the MLP", "mlp_bias", change=all_of(layer(mlp_bias=True), tensors(biased_mlp))),
    Fault("K110", "a sliding window for an old release", "transformer_layer_config", options={"engines": (OLD_SGLANG,)},
          change=SLIDING),
    Fault("K111", "four capture points for an old release", "eagle_aux_hidden_state_layer_ids",
          options={"engines": (OLD_SGLANG,)}, change=FOUR_POINTS),
    Fault("K112", "a rope that SGLang reads otherwise", "transformer_layer_config",
          change=layer(rope_parameters={**YARN, "attention_factor": 1.5})),
    Fault("K113", "another activation", "hidden_act", change=layer(hidden_act="gelu")),
    Fault("K114", "one state as wide as the drafter", "eagle_aux_hidden_state_layer_ids",
          change=all_of(ids(5), replaced("fc.weight", lambda fc: fc[:, :64]))),
    Fault("K115", "a drafter called float32", "dtype", change=config({"dtype": "float32"})),
    Fault("K116", "a map for a release that loses it", "draft_vocab_size", drafter="producers/modelopt_midlayer",
          target=DEEP, options={"engines": (VLLM,), **DEFAULT_POINTS}, fault={"engines": ("vllm==0.9.0",)}),
    Fault("K117", "fc quantised for SGLang", "fc.weight", change=all_of(QUANTISATION, quantised("fc"))),
    Fault("K118", "a quantised matrix", "quantization_config",
          change=all_of(QUANTISATION, quantised("layers.0.mlp.up_proj"))),
    Fault("K119", "a permuted full vocabulary for vLLM", "d2t", drafter="drafters/h_fullvocab",
          change=tensors(reversed_vocabulary), options={"engines": (VLLM,)}),
    Fault("K120", "a target that nobody serves", "config.json",
          target=config({"architectures": ["MadeUpForCausalLM"]})),
    Fault("K121", "the embedding from an old release", IDS, drafter="drafters/g_aux024",
          fault={"engines": (OLD_SGLANG,)}),
    Fault("K122", "the last layer", IDS, change=ids(1, 3, 6)),
    Fault("K123", "other points for a release that reads no ids", IDS, fault={"engines": ("vllm==0.11.0",)},
          options={"engines": (VLLM,)}),
    Fault("K124", "a Gemma as the target", IDS, target=config({"architectures": ["Gemma3ForCausalLM"]})),
    Fault("K126", "the embedding in vLLM", "llama", drafter="drafters/g_aux024", fault={"engines": (VLLM,)}),
    Fault("K127", "points that CUDA graphs forget", "cuda_graph_runner.py", fault={"engines": (OLD_SGLANG,)}),
    Fault("K130", "two releases that number a DeepSeek's layers differently", IDS,
          options={"target_arch": "DeepseekV3ForCausalLM"}, fault={"engines": ("sglang==0.5.12", SGLANG)}),
    Fault("K131", "an embedding trained further", "embed_tokens.weight",
          change=replaced("embed_tokens.weight", lambda table: noise(table, 0.2)), options=WHOLE_TARGET),
    Fault("K132", "an embedding that training may have changed", "embed_tokens.weight",
          change=config({"embed_requires_grad": True})),
    Fault("K133", "an engine that was never run", "tensorrt-llm.yaml", fault={"engines": ("tensorrt-llm",)}),
    Fault("K140", "parallel drafting in SGLang", "mask_token_id", **PEAGLE, fault={"engines": (SGLANG,)}),
    Fault("K141", "latent attention in an old SGLang", "the input", **MLA, fault={"engines": ("sglang==0.5.11",)}),
    Fault("K142", "a mask token and its states", "config.json", options={"engines": (VLLM,)}, change=all_of(
        config({"mask_token_id": 3}), put("mask_hidden", torch.ones(1, 1, 192, dtype=torch.bfloat16)))),
    Fault("K143", "a wider target for an old vLLM", "target_hidden_size", drafter="producers/speculators_peagle",
          options={"target": None, "target_arch": "LlamaForCausalLM", "engines": ("vllm==0.21.0",)},
          change=all_of(config({"target_hidden_size": 96}), tensors(wider_target))),
    Fault("K144", "latent attention that does not compress q", "the input", **MLA,
          change=all_of(config({"q_lora_rank": None}), tensors(q_without_compression))),
    Fault("K146", "a target that adds images to its first layers", IDS, target=config({
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "vision_config": {"deepstack_visual_indexes": [5, 11, 17]}})),
    Fault("K147", "a target of more heads for an old vLLM", "num_key_value_heads",
          options={"engines": ("vllm==0.10.2",), **DEFAULT_POINTS},
          target=all_of(DEEP, config({"num_key_value_heads": 4}))),
    Fault("K160", "a drafter that needs the plugin", "--allow-plugin", drafter="drafters/b_nbr",
          fault={"allow_plugin": True}),
    Fault("K161", "a quantised drafter for the plugin", "quantization_config", drafter="drafters/b_nbr",
          change=all_of(QUANTISATION, quantised(f"{LAYER}mlp.up_proj")), options={"allow_plugin": True}),
    Fault("K162", "a plugin that is not needed", "--allow-plugin", fault={"allow_plugin": True}),
    Fault("K164", "four capture points for the plugin in an old release", "cuda_graph_runner.py",
          options={"engines": (OLD_SGLANG,), "allow_plugin": True}, change=FOUR_POINTS),
    Fault("K190", "a release that adds a random bias", "bias=False", target=DEEP, options=DEFAULT_POINTS,
          fault={"engines": ("sglang==0.4.8",)}),
    # --- the forward pass
    Fault("N101", "an accuracy that is asked for", "--min-accuracy", options=ON_SAMPLE, fault={"min_accuracy": 0.9}),
    Fault("N102", "what a flag costs that SGLang does not read", "norm_before_residual", drafter="drafters/b_nbr",
          options={**ON_SAMPLE, "engines": (VLLM,)}, fault={"engines": (SGLANG,)}, follows=frozenset({"K103"})),
    Fault("N103", "a weight that is NaN", "lm_head.weight", writes=True,
          change=replaced("lm_head.weight", lambda head: head.index_fill(1, torch.tensor(3), float("nan")))),
    Fault("N104", "a rope that is not computed here", "", options={**ON_SAMPLE, "engines": (VLLM,)},
          change=layer(rope_parameters={"rope_theta": 1e4, "rope_type": "dynamic", "factor": 2.0})),
    Fault("N105", "a target that says only what is never drafted", "step 0", options=ON_SAMPLE,
          sample=tensors(choices(NEVER_DRAFTED))),
    Fault("N106", "a decoder layer of random numbers", "step 0", change=decoder_at_random(5.0), options=ON_SAMPLE),
    Fault("N107", "an fc of next to nothing", "fc.weight", change=replaced("fc.weight", lambda fc: fc * 1e-12),
          options=ON_SAMPLE),
    Fault("N108", "sixty positions", "the sample", options=ON_SAMPLE,
          sample=only_first(masks(lambda mask: mask * (mask.cumsum(0) <= 60)))),
    Fault("N109", "a window narrower than the sample", "layer_windows", drafter="drafters/l_defaults", change=SLIDING,
          options={**ON_SAMPLE, "engines": (VLLM,)}),
    Fault("N110", "a norm that float16 cannot hold", "norm.weight", options={"dtype": "float16"}, writes=True,
          change=replaced("norm.weight", lambda norm: norm.index_fill(0, torch.tensor(2), 7e4))),
    Fault("N111", "an fc that is too small for float16", "fc.weight", writes=True, options={"dtype": "float16"},
          change=replaced("fc.weight", lambda fc: fc * 2.0**-20)),
]  # fmt: skip

# What no change of a file can show: code -> the test that shows it, `module::function`.
ELSEWHERE = {
    "F109": "tests.checkpoint.test_writer::test_a_source_cut_short_while_it_is_copied",  # written to while it is read
    "F115": "tests.test_pull::test_repositories_that_cannot_be_read",
    "F130": "tests.test_capture::test_targets_that_cannot_be_used",  # F130 to F134: making a sample
    "F131": "tests.test_capture::test_targets_that_cannot_be_used",
    "F132": "tests.test_capture::test_prompts_that_cannot_be_used",
    "F133": "tests.test_capture::test_layers_are_found_in_wrappers_and_states_in_keywords",
    "F134": "tests.test_capture::test_a_target_that_stops_is_an_error_of_the_target",
    "F136": "tests.test_pull::test_folders_come_first",  # what the folder's name means on the Hub
    "H401": "tests.test_pull::test_repositories_that_cannot_be_read",  # H401 to H412: what the Hub answers
    "H402": "tests.test_pull::test_repositories_that_cannot_be_read",
    "H403": "tests.test_pull::test_repositories_that_cannot_be_read",
    "H404": "tests.test_pull::test_repositories_that_cannot_be_read",
    "H405": "tests.test_pull::test_nothing_is_fetched_twice",
    "H406": "tests.test_pull::test_nothing_is_fetched_twice",
    "H407": "tests.test_pull::test_a_busy_hub_and_a_connection_that_breaks",
    "H408": "tests.test_pull::test_repositories_without_a_drafter",
    "H409": "tests.test_pull::test_revisions_and_folders",
    "H411": "tests.test_pull::test_a_server_without_ranges",
    "H412": "tests.test_pull::test_nothing_is_fetched_twice",
    "H413": "tests.test_gate::test_what_is_not_sealed_stays",  # H413 on: what may leave
    "H414": "tests.test_gate::test_the_level_must_reach_what_is_required",
    "H415": "tests.test_seal::test_a_seal_that_cannot_be_relied_on",  # H415 to H418: what is said of a seal
    "H416": "tests.test_seal::test_files_that_were_sealed_without_digests",
    "H417": "tests.test_seal::test_rules_that_changed_since",
    "H418": "tests.test_signing::test_keys_that_cannot_be_used",
    "H420": "tests.test_push::test_what_may_not_go_is_refused_before_anything_is_asked",
    "H421": "tests.test_push::test_what_may_not_go_is_refused_before_anything_is_asked",
    "H422": "tests.test_push::test_checks_that_are_run_now",
    "H423": "tests.test_push::test_tokens",
    "H424": "tests.test_push::test_somebody_else_commits",
    "H425": "tests.test_push::test_a_busy_hub",
    "H426": "tests.test_push::test_a_file_that_changes_while_it_is_sent",
    "H427": "tests.test_hook::test_the_policy_of_the_pushed_commit_counts",  # H427 to H431: what a push publishes
    "H428": "tests.test_hook::test_the_policy_may_leave_it_to_the_static_checks",
    "H429": "tests.test_hook::test_tags_of_commits_trees_and_files",
    "H430": "tests.test_hook_install::test_what_is_no_clone",
    "H431": "tests.test_hook_install::test_nothing_of_the_user_is_lost",
    "H434": "tests.test_signing::test_what_nobody_signed",  # H434 to H436: of a signature
    "H435": "tests.test_signing::test_a_signature_of_somebody_else",
    "H436": "tests.test_signing::test_files_that_nobody_signed",
    "H437": "tests.test_card::test_markers_that_are_damaged",
    "H438": "tests.test_card::test_metadata_that_cannot_be_read",
    "H440": "tests.test_push::test_offline",
    "H441": "tests.test_push::test_what_was_of_an_older_drafter_is_deleted",
    "H442": "tests.test_push::test_a_card_that_the_hub_does_not_take",
    "H443": "tests.test_push::test_only_the_drafter_goes",
    "H444": "tests.test_push::test_a_link_out_of_the_folder_is_not_published",
    "H445": "tests.test_push::test_a_gitignore_in_the_repository",
    "K125": "tests.test_engine_rules::test_what_was_written_is_held_against_what_was_meant",  # a writer's own mistake
    "K145": "tests.test_inputs::test_a_quantised_fc_whose_blocks_would_change_places",
    "K163": "tests.test_plugin::test_its_class_is_unknown_to_every_other_engine",  # the same
}

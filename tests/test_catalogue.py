"""Faults in config, tokens, target and shapes as reports describe them (docs/catalogue.md), each beside a sibling that
is none; and what every healthy drafter shows."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from converter.checks.engine import examine
from converter.checks.target import check_target
from converter.drafter.drafter import Provenance
from converter.drafter.target import Target
from converter.findings import Finding
from converter.pipeline import Report, look
from converter.report.explain import known_codes
from converter.rules.releases import resolve
from converter.target import read_target
from tests.support import DRAFTERS, PRODUCERS, ROOT, TARGET, Config, Tensors, check, codes, errors, request

SPECFORGE = "specforge_hf"  # A109 is always said of it: its ids have two meanings


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target without its weights."""
    folder = tmp_path_factory.mktemp("light") / "target"
    shutil.copytree(TARGET, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


def copied(name: str, folder: Path, edit: Callable[[Config], Any] | None = None,
           weights: Callable[[Tensors], Any] | None = None) -> Path:  # fmt: skip
    """A copy of a bundled drafter, its config and tensors edited in place."""
    source = next(root / name for root in (DRAFTERS, PRODUCERS) if (root / name).exists())
    folder.mkdir(parents=True)
    document = json.loads((source / "config.json").read_text())
    if edit is not None:
        edit(document)
    (folder / "config.json").write_text(json.dumps(document))
    tensors = load_file(source / "model.safetensors")
    if weights is not None:
        weights(tensors)
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    return folder


def changed(target: Path, folder: Path, **changes: Any) -> Path:
    """The target with other values in its config."""
    shutil.copytree(target, folder)
    document = json.loads((target / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(document))
    return folder


def read(source: Path, target: Path | None, **options: Any) -> Report:
    """Read and check, no engines."""
    return look(request(source, target=target, **options))


def one(report: Report, code: str) -> Finding:
    [finding] = [f for f in report.findings if f.code == code]
    return finding


# --- healthy ----------------------------------------------------------------------------------------------------

# Drafter: findings with its target; those of the engines' newest releases; findings without a target (values
# not looked at). T119 and T120: what their producers left at its start (tests/data/README.md).
HEALTHY = {
    "a_plain": ("", "K133", "A108"),
    "b_nbr": ("", "K103 K133", "A108"),
    "c_nbfc": ("", "K133", "A108"),
    "d_fcnorm_normout": ("", "K105 K106 K133", "A108"),
    "e_2layers": ("", "K102 K133", "A108"),
    "f_qwen3": ("", "K107 K133", "A108"),
    "g_aux024": ("", "K121 K126 K133", "A108"),
    "h_fullvocab": ("", "K133", "A108"),
    "i_rope_headdim": ("C213", "K133", "A108"),
    "j_attnbias": ("", "K108 K133", "A108"),
    "k_embedgrad": ("", "K133", "A108"),
    "l_defaults": ("", "K103 K106 K110 K133", "A108"),
    # Six layers are too few for the trainer's default points.
    "angelslim": ("A101 C215", "", "A104 C215"),
    "automodel": ("A101", "", "A104"),
    "automodel_mla": ("A101 T120", "", "A104"),
    "modelopt_layers": ("A109 C213 C215 C216", "K133", "A108 A109 C215 C216"),
    "modelopt_midlayer": ("A109 C216", "K133", "A108 A109 C216"),
    "specforge_hf": ("A109", "K133", "A108 A109"),
    "specforge_peagle": ("A109 C217 T120", "", "A108 A109 C217"),
    "specforge_sglang": ("A109", "K133", "A108 A109"),
    "specforge_state": ("A109", "K133", "A108 A109"),
    "speculators_010": ("A101", "", "A104"),
    "speculators_020": ("A109 C206 T119", "", "A108 A109 C206"),
    "speculators_0401": ("A101 C205", "", "A104"),
    "speculators_peagle": ("T120", "K102 K133 K140 K142", "A108"),
}


def test_every_bundled_drafter_is_listed() -> None:
    assert {p.name for root in (DRAFTERS, PRODUCERS) for p in root.iterdir()} == HEALTHY.keys()


@pytest.mark.parametrize("name", HEALTHY)
def test_what_a_healthy_drafter_shows(name: str) -> None:
    source = next(root / name for root in (DRAFTERS, PRODUCERS) if (root / name).exists())
    with_target, engines, without = HEALTHY[name]
    report = check(source)
    assert codes(report) == with_target.split()
    assert sorted({f.code for found in report.verdicts.values() for f in found}) == engines.split()
    assert codes(read(source, None)) == without.split()


# --- shapes -----------------------------------------------------------------------------------------------------

K, Q, EMBED, HEAD = (
    "layers.0.self_attn.k_proj.weight", "layers.0.self_attn.q_proj.weight", "embed_tokens.weight", "lm_head.weight",
)  # fmt: skip
SHAPES = [
    # tensor, rows and columns, what it looks like, what engines do
    (K, (64, 128), "2 times the rows", "drop the others without a word"),
    (K, (16, 128), "", "stop while loading"),
    (Q, (64, 64), "the columns of a plain layer", "stop while loading"),
    (Q, (128, 128), "2 times the rows; 4 heads of 32, where head_dim is 16", "drop the others without a word"),
    (EMBED, (576, 64), "64 rows more than vocab_size, as in a table that was padded", "stop while loading"),
    (EMBED, (500, 64), "12 rows fewer than vocab_size", "stop while loading"),
    (HEAD, (300, 64), "84 rows fewer than draft_vocab_size", "stop while loading"),
    (HEAD, (512, 64), "a row for every token of the target", "stop while loading"),
    ("layers.0.mlp.up_proj.weight", (100, 64), "", "fill up with rows of zeros"),
    ("norm.weight", (64, 1), "2 axes instead of 1", "stop while loading"),
]


@pytest.mark.parametrize(
    ("tensor", "shape", "looks", "does"), SHAPES, ids=lambda v: str(v) if isinstance(v, tuple) else ""
)
def test_a_shape_says_what_it_looks_like(
    tensor: str, shape: tuple[int, ...], looks: str, does: str, light: Path, tmp_path: Path
) -> None:
    source = copied(
        "a_plain", tmp_path / "in", None, lambda w: w.update({tensor: torch.ones(shape, dtype=torch.bfloat16)})
    )
    finding = one(read(source, light), "T104")
    assert finding.found == f"{list(shape)}" if not looks else looks in finding.found
    assert does in finding.why


def test_numbers_that_were_not_stated_are_said_to_be_assumed(light: Path, tmp_path: Path) -> None:
    source = copied(SPECFORGE, tmp_path / "a", lambda c: (c.pop("head_dim"), c.update(num_attention_heads=2)))
    found = [f.found for f in read(source, light).findings if f.code == "T104" and "q_proj" in f.where]
    assert found == []  # q fits by chance: 2 heads of 32
    wider = [f for f in read(source, light).findings if f.code == "T104" and "k_proj" in f.where]
    assert wider[0].expected.startswith("[64, 128] = [2 heads of keys x 32 rows, 2 x hidden 64 columns]: layer 0 takes")
    source = copied(SPECFORGE, tmp_path / "b", lambda c: c.update(draft_vocab_size=None))
    [head] = [f for f in read(source, light).findings if f.code == "T104"]
    assert "draft_vocab_size is not stated, so taken as 512" in head.found


def test_only_what_reads_embedding_and_state_has_the_columns_of_a_plain_layer(light: Path, tmp_path: Path) -> None:
    report = read(copied(SPECFORGE, tmp_path / "in", lambda c: c.update(head_dim=32)), light)
    [output] = [f for f in report.findings if f.code == "T104" and "o_proj" in f.where]
    assert output.found == "[64, 64]" and output.expected == "[64, 128] = [hidden 64, 4 heads x 32 columns]"


def test_all_captured_states_in_fc_are_counted(light: Path, tmp_path: Path) -> None:
    def wide(count: int) -> Callable[[Tensors], Any]:
        return lambda w: w.update({"fc.weight": torch.ones((64, 64 * count), dtype=torch.bfloat16)})

    for count, words in (
        (6, "as many as the target has layers"),
        (7, "as many as the target has layers and its embedding"),
    ):
        finding = one(read(copied("a_plain", tmp_path / str(count), None, wide(count)), light), "A103")
        assert finding.found == f"[64, {64 * count}]: {64 * count} = {count} states x 64, {words}"
    assert "layers" not in one(read(copied("a_plain", tmp_path / "4", None, wide(4)), light), "A103").found


def test_a_number_of_layers_that_is_the_target_s(light: Path, tmp_path: Path) -> None:
    report = read(copied(SPECFORGE, tmp_path / "in", lambda c: c.update(num_hidden_layers=6)), light)
    assert errors(report) == ["C236"]
    assert one(report, "C236").message == "the config says 6 layers, the checkpoint has 1"
    # Where windows are listed by layer, the list is the first to be too short.
    source = copied("a_plain", tmp_path / "b", lambda c: c["transformer_layer_config"].update(num_hidden_layers=6))
    finding = one(read(source, light), "C203")
    assert finding.where == "transformer_layer_config.layer_types" and finding.found == "['full_attention']"


def test_a_head_that_is_the_target_s_is_told_how_to_be_saved(light: Path, tmp_path: Path) -> None:
    finding = one(read(copied("a_plain", tmp_path / "in", None, lambda w: w.pop(HEAD)), light), "T103")
    assert "save those rows as lm_head.weight" in finding.fix[1]
    finding = one(read(copied("a_plain", tmp_path / "b", None, lambda w: w.pop("norm.weight")), light), "T103")
    assert len(finding.fix) == 1


# --- config -----------------------------------------------------------------------------------------------------

IDS = "eagle_aux_hidden_state_layer_ids"


def ids(value: Any) -> Callable[[Config], Any]:
    return lambda c: c["eagle_config"].update({IDS: value})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([0.0, 2.0, 4.0], "C203"),
        (["0", "2", "4"], "C203"),
        ([[0, 2, 4]], "C203"),
        ([True, 2, 4], "C203"),
        ([], "C203"),
        ("0,2,4", "C203"),
        ({"a": 1}, "C203"),
        ([2**40, 2, 4], "C203"),
        ([-2, 2, 4], "A102"),
        ([0, 2, 9], "A102"),
        ([0, 2, 2], "A101"),
        ([0, 2], "A103"),
        ([4, 2, 0], ""),
        ([0, 2, 4], ""),
    ],
    ids=str,
)
def test_ids_of_every_kind(value: Any, expected: str, light: Path, tmp_path: Path) -> None:
    report = read(copied(SPECFORGE, tmp_path / "in", ids(value)), light)
    assert errors(report) == [e for e in [expected] if e]


def test_an_id_that_is_no_number_is_named(light: Path, tmp_path: Path) -> None:
    finding = one(read(copied(SPECFORGE, tmp_path / "in", ids([0, "2", 4])), light), "C203")
    assert finding.expected == "a list of layer ids, whole numbers all; '2' cannot be one"


def test_an_id_before_the_first_layer_has_two_meanings(light: Path, tmp_path: Path) -> None:
    source = copied(SPECFORGE, tmp_path / "in", ids([-1, 2, 4]))
    report = read(source, light)
    assert codes(report) == ["A112"]
    assert one(report, "A112").fix[0] == "if it is the embedding, say so: --aux embed,3,5"
    assert codes(read(source, light, aux=(0, 3, 5))) == []


@pytest.mark.parametrize(
    ("layers", "code", "words"),
    [
        (2, "A102", "the config names no layers, and the trainer's default gives layer -1 on this target"),
        (4, "A101", "the config names no layers, and the trainer's default repeats one on this target"),
        (6, "A101", "the config names no layers, and the trainer's default repeats one on this target"),
        (7, "A105", "the config names no target layers; the trainer's default was assumed: layer 2, layer 3, layer 4"),
    ],
)
def test_default_points_on_a_shallow_target(layers: int, code: str, words: str, light: Path, tmp_path: Path) -> None:
    source = copied("automodel", tmp_path / "in")
    report = read(source, changed(light, tmp_path / "target", num_hidden_layers=layers))
    assert one(report, code).message == words


def test_ids_that_the_dialect_does_not_read_are_no_default(light: Path, tmp_path: Path) -> None:
    """A SpecForge drafter under the target's class looks like EAGLE's own, which has no ids in its config."""
    deep = changed(light, tmp_path / "deep", num_hidden_layers=12)
    source = copied(SPECFORGE, tmp_path / "in", lambda c: c.update(architectures=["LlamaForCausalLM"]))
    report = read(source, deep)
    assert errors(report) == ["A111"]
    assert any("--dialect specforge" in way for way in one(report, "A111").fix)
    assert "C204" not in codes(report)
    assert errors(read(source, deep, aux=(1, 3, 5))) == []
    assert errors(read(source, deep, dialect="specforge")) == []
    without = copied(SPECFORGE, tmp_path / "b",
                     lambda c: (c.update(architectures=["LlamaForCausalLM"]), c.pop("eagle_config")))  # fmt: skip
    assert errors(read(without, deep)) == []


@pytest.mark.parametrize("name", ["Qwen3ForCausalLM", "Eagle3Qwen2_5vlForCausalLM"])
def test_a_class_that_no_trainer_writes(name: str, light: Path, tmp_path: Path) -> None:
    source = copied(SPECFORGE, tmp_path / "in", lambda c: c.update(architectures=[name]))
    finding = one(read(source, light), "F112")
    assert f"the class {name} in config.json is no known trainer's" in finding.message
    assert "if it is a drafter of SpecForge: --dialect specforge" in finding.fix
    assert errors(read(source, light, dialect="specforge")) == []


@pytest.mark.parametrize("where", ["num_aux_hidden_states", "eagle_config.num_aux_hidden_states"])
def test_a_count_that_is_not_that_of_the_ids(where: str, light: Path, tmp_path: Path) -> None:
    def count(value: int) -> Callable[[Config], Any]:
        nested, _, key = where.rpartition(".")
        return lambda c: (c[nested] if nested else c).update({key: value})

    finding = one(read(copied(SPECFORGE, tmp_path / "a", count(4)), light), "C226")
    assert (finding.where, finding.found) == (where, "4 captured states")
    assert codes(read(copied(SPECFORGE, tmp_path / "b", count(3)), light)) == ["A109"]


QUANTISED = [
    ({"quant_method": "fp8"}, "warning"),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "warning"),
    ({"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"}, "note"),
    ({"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": {"num_bits": 8}}, "note"),
]


@pytest.mark.parametrize(("config", "severity"), QUANTISED)
def test_quantisation_of_the_cache_alone_is_no_fault(
    config: dict[str, Any], severity: str, light: Path, tmp_path: Path
) -> None:
    source = copied(SPECFORGE, tmp_path / "in", lambda c: c.update(quantization_config=config))
    assert one(read(source, light), "T111").severity == severity


# --- vocabulary -------------------------------------------------------------------------------------------------


def first_ids(weights: Tensors) -> None:
    weights["d2t"], weights["t2d"] = torch.arange(384), torch.arange(512) < 384


def test_the_first_ids_in_order_are_a_map_never_loaded(light: Path, tmp_path: Path) -> None:
    finding = one(read(copied("a_plain", tmp_path / "a", None, first_ids), light), "V203")
    assert finding.message.startswith("d2t holds the first target ids in order")
    full = copied("h_fullvocab", tmp_path / "b", None, lambda w: w.update(d2t=torch.arange(512)))
    assert "V203" not in codes(read(full, light))


def end_left_out(weights: Tensors) -> None:
    """Id 1, which ends the target's answers, exchanged for one that was left out."""
    places = (weights["d2t"] + torch.arange(384)).tolist()
    assert 1 in places
    other = next(i for i in range(512) if i not in places)
    chosen = sorted({*places, other} - {1})
    weights["d2t"] = torch.tensor(chosen) - torch.arange(384)
    weights["t2d"] = torch.zeros(512, dtype=torch.bool)
    weights["t2d"][chosen] = True


def test_an_end_that_is_never_drafted(light: Path, tmp_path: Path) -> None:
    source = copied("a_plain", tmp_path / "in", None, end_left_out)
    finding = one(read(source, light), "V212")
    assert finding.found == "1 '<|eos|>' left out of 384 draft tokens"
    # Without a tokenizer the target's generation_config.json tells, or its config.
    for left_out in ("tok*", "[tg]*"):
        bare = shutil.copytree(light, tmp_path / f"target{left_out[0]}", ignore=shutil.ignore_patterns(left_out))
        assert one(read(source, bare), "V212").found == "1 left out of 384 draft tokens"
    # Several may end an answer; the one that ends a turn counts, or any where that is not known.
    several = shutil.copytree(light, tmp_path / "several", ignore=shutil.ignore_patterns("tok*"))
    (several / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert codes(read(source, several)) == []


def tokens(target: Path, folder: Path, edit: Callable[[dict[str, Any]], Any], name: str = "tokenizer.json") -> None:
    """The target's file of that name, changed, in another folder."""
    document = json.loads((target / name).read_text())
    edit(document)
    (folder / name).write_text(json.dumps(document))


def exchange(document: dict[str, Any]) -> None:
    table = document["model"]["vocab"]
    one, other = list(table)[100:102]
    table[one], table[other] = table[other], table[one]


def test_a_tokenizer_that_is_not_the_target_s(light: Path, tmp_path: Path) -> None:
    source = copied("a_plain", tmp_path / "in")
    shutil.copy(light / "tokenizer.json", source)
    assert codes(read(source, light)) == []
    tokens(light, source, exchange)
    finding = one(read(source, light), "C237")
    assert "2 of 512 ids differ" in finding.message
    # A token more, as for padding in training, changes none of the others.
    tokens(light, source, lambda d: d["added_tokens"].append({"id": 512, "content": "<pad>"}))
    assert codes(read(source, light)) == []


def test_unigram_vocabularies_are_compared_by_place(light: Path, tmp_path: Path) -> None:
    source = copied("a_plain", tmp_path / "in")
    names = sorted(json.loads((light / "tokenizer.json").read_text())["model"]["vocab"].items(), key=lambda kv: kv[1])

    def by_place(document: dict[str, Any]) -> None:
        document["model"]["vocab"] = [[name, 0.0] for name, _ in names]

    tokens(light, source, by_place)
    assert codes(read(source, light)) == []


def test_chat_templates(light: Path, tmp_path: Path) -> None:
    target = shutil.copytree(light, tmp_path / "target")
    (target / "chat_template.jinja").write_text("{% for m in messages %}\n{{ m.content }}{% endfor %}")
    source = copied("a_plain", tmp_path / "in")
    tokens(light, source, lambda d: d.update(chat_template="{% for m in messages %} {{ m.content }}{% endfor %}"),
           "tokenizer_config.json")  # fmt: skip
    assert codes(read(source, target)) == []
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "{{ messages }}"}]
    tokens(light, source, lambda d: d.update(chat_template=several), "tokenizer_config.json")
    finding = one(read(source, target), "C238")
    assert finding.where == "tokenizer_config.json" and "chat_template.jinja" in finding.found
    assert codes(read(source, light)) == []  # the target has none to compare with


def test_a_vocabulary_that_was_cut_and_one_that_was_padded(light: Path, tmp_path: Path) -> None:
    cut = shutil.copytree(light, tmp_path / "cut")
    tokens(light, cut, lambda d: d["added_tokens"].append({"id": 600, "content": "<image>"}))
    finding = one(read(copied("a_plain", tmp_path / "in"), cut), "C239")
    assert finding.severity == "note" and finding.found == "600 '<image>'"
    padded = shutil.copytree(light, tmp_path / "padded")

    def shorter(document: dict[str, Any]) -> None:
        document["model"]["vocab"] = {t: i for t, i in document["model"]["vocab"].items() if i < 500}

    tokens(light, padded, shorter)
    assert codes(read(tmp_path / "in", padded)) == []


def test_a_damaged_tokenizer_is_not_passed_over(light: Path, tmp_path: Path) -> None:
    source = copied("a_plain", tmp_path / "in")
    (source / "tokenizer.json").write_text('{"model": ')
    report = read(source, light)
    assert codes(report) == ["C240"] and one(report, "C240").severity == "warning"
    assert codes(read(source, None)) == ["A108"]


# --- maps beside the checkpoint ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["d2t.npy", "t2d.npy", "vocab_mapping.pt"])
def test_a_stray_map(name: str, light: Path, tmp_path: Path) -> None:
    source = copied("a_plain", tmp_path / "in")
    stored = load_file(source / "model.safetensors")
    shifted = {"d2t": stored["d2t"].roll(1), "t2d": stored["t2d"].roll(1)}

    def write(maps: Tensors) -> None:
        if name.endswith(".pt"):
            torch.save({key: maps[key] for key in ("d2t", "t2d")}, source / name)
        else:
            np.save(source / name, maps[name.removesuffix(".npy")].numpy())

    write(stored)
    assert codes(read(source, light)) == []
    write(shifted)
    finding = one(read(source, light), "V213")
    assert finding.message.startswith(f"{name} beside the checkpoint is another vocabulary map")
    (source / name).write_bytes(b"nothing that can be read")
    assert codes(read(source, light)) == []


def test_a_stray_map_may_hold_ids_and_one_of_another_size_is_none(light: Path, tmp_path: Path) -> None:
    source = copied("a_plain", tmp_path / "in")
    offsets = load_file(source / "model.safetensors")["d2t"].numpy()
    np.save(source / "d2t.npy", offsets + np.arange(384))
    assert codes(read(source, light)) == []
    np.save(source / "d2t.npy", offsets[:100])
    assert one(read(source, light), "V213").found == "d2t is int64 [100], where 384 entries are expected"


# --- target -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trained_for", "target", "said"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", False),
        ("meta-llama/Llama-3.1-8B-Instruct", "unsloth/Llama-3.1-8B-Instruct", False),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-FP8", False),
        ("Qwen/Qwen3-8B", "org/Qwen3-8B-w4a16", False),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base", True),
        ("meta-llama/Llama-3.1-8B-Instruct", "org/Hermes-3-Llama-3.1-8B", True),
        ("target-tiny", "Qwen/Qwen3-8B", False),
        ("/data/llama", "Qwen/Qwen3-8B", False),
    ],
)
def test_a_target_of_another_name(trained_for: str, target: str, said: bool) -> None:
    spec = _spec("a_plain")
    provenance = Provenance("speculators", "0.9.0", trained_for, "LlamaForCausalLM")
    for known in (
        Target(name=target, architecture="LlamaForCausalLM", where=f"{target}@main"),
        Target(name="/c/x", where=f"/c/models--{target.replace('/', '--')}/snapshots/abc/config.json"),
    ):
        assert [f.code for f in check_target(spec, provenance, known)] == ["C241"] * said
    local = Target(name=target, where=f"{target}/config.json")  # a folder of the user's, whatever it is called
    assert list(check_target(spec, provenance, local)) == []


def _spec(name: str) -> Any:
    drafter = read(next(root / name for root in (DRAFTERS, PRODUCERS) if (root / name).exists()), None).drafter
    assert drafter is not None
    return drafter.spec


def rotation(location: str, *modules: str) -> dict[str, Any]:
    applied = {"targets": list(modules), "location": location}
    return {"quant_method": "compressed-tensors",
            "transform_config": {"config_groups": {"R1": {"type": "hadamard", "apply": [applied]}}}}  # fmt: skip


def test_a_rotated_target(light: Path, tmp_path: Path) -> None:
    source = copied("a_plain", tmp_path / "in")
    for name, config, expected in (
        ("stream", rotation("weight_output", "re:.*embed_tokens$", "re:.*o_proj$"), ["C243"]),
        ("values", rotation("weight_output", "re:.*v_proj$"), []),
        ("online", rotation("weight_input", "re:.*embed_tokens$"), []),
        ("plain", {"quant_method": "fp8"}, []),
        (
            "strange",
            {"transform_config": {"config_groups": {"R1": {"apply": [None, {"location": "weight_output"}]}}}},
            [],
        ),
    ):
        assert codes(read(source, changed(light, tmp_path / name, quantization_config=config))) == expected


def test_a_frozen_embedding_of_another_fine_tune(tmp_path: Path) -> None:
    target = shutil.copytree(TARGET, tmp_path / "target")
    weights = load_file(TARGET / "model.safetensors")
    name = next(n for n in weights if n.endswith("embed_tokens.weight"))
    weights[name] = (weights[name].float() * 1.05).to(weights[name].dtype)
    save_file(weights, target / "model.safetensors")
    finding = one(read(PRODUCERS / SPECFORGE, target), "T130")
    assert "0 of 512 rows equal" in finding.found
    # speculators may leave it trainable; that it was trained further is no fault of the target's.
    assert "T130" not in codes(read(DRAFTERS / "k_embedgrad", target))


VISION = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "vision_config": {"deepstack_visual_indexes": [5, 11, 17]},
}


@pytest.mark.parametrize(
    ("release", "said"),
    [("sglang==0.5.10", ""), ("sglang==0.5.18", "before"), ("sglang==0.5.23", "after"), ("vllm==0.33.0", "after")],
)
def test_image_features_in_early_layers(release: str, said: str, light: Path, tmp_path: Path) -> None:
    [engine] = resolve(release)
    target = read_target(changed(light, tmp_path / "vision", **VISION))

    def found(points: tuple[int, ...], of: Target) -> list[str]:
        examined = examine(engine, replace(_spec("a_plain"), capture_points=points), of)
        return [f.message for f in examined.findings if f.code == "K146"]

    expected = [
        f"{engine} hands out layer 1, layer 3 of Qwen3VLForConditionalGeneration {said} image features are added"
    ]
    assert found((1, 3, 5), target) == (expected if said else [])
    assert found((4, 5), target) == []
    assert found((1, 3, 5), read_target(light)) == []


@pytest.mark.parametrize(
    ("release", "changes", "said"),
    [
        ("vllm==0.10.2", {"num_key_value_heads": 4}, True),
        ("vllm==0.10.2", {"head_dim": 32}, True),
        ("vllm==0.10.2", {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, True),
        ("vllm==0.10.2", {"num_key_value_heads": 1, "head_dim": 32}, False),  # as many values in other heads
        ("vllm==0.10.2", {}, False),
        ("vllm==0.11.0", {"num_key_value_heads": 4}, False),
        ("sglang==0.5.23", {"num_key_value_heads": 4}, False),
    ],
)
def test_caches_of_another_size(release: str, changes: dict[str, Any], said: bool, light: Path, tmp_path: Path) -> None:
    [engine] = resolve(release)
    target = read_target(changed(light, tmp_path / "target", **changes))
    found = [f for f in examine(engine, _spec("a_plain"), target).findings if f.code == "K147"]
    assert len(found) == said
    if said:
        assert found[0].found == "64 values: keys and values of 2 heads x 16" and "0.11.0 to" in found[0].fix[0]


# --- the catalogue itself ---------------------------------------------------------------------------------------


def test_every_code_of_the_catalogue_has_a_page() -> None:
    text = (ROOT / "docs" / "catalogue.md").read_text()
    named = set(re.findall(r"\b[FTVACKN][0-9]{3}\b", text))
    assert named and named <= known_codes()

"""Faults in real drafters, one change each: the exact finding, OUT absent, IN unchanged.

Further ones of codes that tests/faults/rows.py shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from converter.errors import InputError
from converter.pipeline import Request, validate
from tests.support import DRAFTERS, TARGET, codes, copy_of, errors, run

Edit = Callable[[dict[str, Any]], None]


def put(name: str, value: Any) -> Edit:
    def edit(document: dict[str, Any]) -> None:
        node = document
        *parents, last = name.split("/")
        for parent in parents:
            node = node[parent]
        node[last] = value

    return edit


def drop(*names: str) -> Edit:
    def edit(document: dict[str, Any]) -> None:
        for name in names:
            *parents, last = name.split("/")
            node = document
            for parent in parents:
                node = node[parent]
            del node[last]

    return edit


LAYER = "transformer_layer_config"

FAULTS: list[tuple[str, str, Edit | None, Edit | None, list[str]]] = [
    # what, drafter, config, tensors, error codes
    ("a second spelling", "a_plain", None, put("midlayer.mlp.up_proj.weight", torch.ones(192, 64)), ["T101"]),
    ("no head", "a_plain", None, drop("lm_head.weight"), ["T103"]),
    ("flag without tensor", "a_plain", put("norm_before_fc", True), None, ["T103"]),
    ("flag without tensors", "a_plain", put("fc_norm", True), None, ["T103"]),
    ("a layer that the config does not count", "e_2layers", put(f"{LAYER}/num_hidden_layers", 1), None, ["C203"]),
    ("qwen3 called llama", "f_qwen3", put(f"{LAYER}/model_type", "llama"), None, ["T105"]),
    ("bias without flag", "j_attnbias", put(f"{LAYER}/attention_bias", False), None, ["T105"]),
    ("q of a plain layer", "a_plain", None, put("layers.0.self_attn.q_proj.weight", torch.ones(64, 64)), ["T104"]),
    ("another head_dim", "i_rope_headdim", put(f"{LAYER}/head_dim", 16), None, ["T104"]),
    ("a negative point", "a_plain", put("eagle_aux_hidden_state_layer_ids", [-1, 3, 5]), None, ["A102"]),
    ("fc of four states", "a_plain", None, put("fc.weight", torch.ones(64, 256)), ["A103"]),
    ("fc of a wider target", "a_plain", None, put("fc.weight", torch.ones(64, 200)), ["A103"]),
    ("no layer config", "a_plain", drop(LAYER), None, ["C202"]),
    ("zero layers", "a_plain", put(f"{LAYER}/num_hidden_layers", 0), None, ["C203"]),
    ("vocabulary 0", "a_plain", put(f"{LAYER}/vocab_size", 0), None, ["C203"]),
    ("one for true", "a_plain", put("norm_output", 1), None, ["C203"]),
    ("an unknown kind of layer", "a_plain", put(f"{LAYER}/model_type", "mamba"), None, ["C203"]),
    ("a huge number", "a_plain", put(f"{LAYER}/hidden_size", 10**18), None, ["C203"]),
    ("ids that are no list", "a_plain", put("eagle_aux_hidden_state_layer_ids", 3), None, ["C203"]),
    ("rope by layer type", "a_plain", put(f"{LAYER}/rope_parameters", {"full_attention": {}}), None, ["C203"]),
    ("mlp bias without tensors", "a_plain", put(f"{LAYER}/mlp_bias", True), None, ["T103"]),
    ("another vocabulary", "a_plain", put(f"{LAYER}/vocab_size", 600), None, ["C211", "T104", "V206"]),
]


@pytest.mark.parametrize(("name", "config", "tensors", "expected"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_fault_is_refused(
    name: str, config: Edit | None, tensors: Edit | None, expected: list[str], tmp_path: Path
) -> None:
    source = copy_of(name, tmp_path / "in", config, tensors)
    before = {p.name: p.read_bytes() for p in source.iterdir()}
    report = run(source, tmp_path / "out")
    assert errors(report) == expected
    assert report.outcome == "refused"
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    assert {p.name: p.read_bytes() for p in source.iterdir()} == before


HEALTHY: list[tuple[str, str, Edit | None, Edit | None, list[str]]] = [
    # what looks like a fault and is none, with the warnings and notes that it may raise
    ("training leftovers", "a_plain", None, put("verifier_norm.weight", torch.ones(64)), []),
    ("no embedding", "a_plain", None, drop("embed_tokens.weight"), []),
    ("no release", "a_plain", drop("speculators_version"), None, []),
    ("a key of a newer trainer", "a_plain", put("brand_new", {"a": 1}), None, ["C204"]),
    ("dtypes mixed", "a_plain", None, put("norm.weight", torch.ones(64)), ["T107"]),
    ("old name of the class", "a_plain", put("architectures", ["Eagle3Speculator"]), None, ["A109"]),
    ("no flags, as before 0.5", "a_plain", drop("norm_before_fc", "norm_output", "fc_norm"), None, []),
    ("no bos and eos", "a_plain", drop(f"{LAYER}/bos_token_id", f"{LAYER}/eos_token_id"), None, []),
    ("window that only qwen3 forgets", "a_plain", put(f"{LAYER}/use_sliding_window", True), None, []),
    ("config says float32", "a_plain", put("dtype", "float32"), None, ["C205", "K115"]),
    ("no dtype", "a_plain", drop("dtype"), None, []),
    ("a shorter context", "a_plain", put(f"{LAYER}/max_position_embeddings", 512), None, ["C214"]),
]


@pytest.mark.parametrize(
    ("name", "config", "tensors", "expected"), [f[1:] for f in HEALTHY], ids=[f[0] for f in HEALTHY]
)
def test_what_is_no_fault_is_converted(
    name: str, config: Edit | None, tensors: Edit | None, expected: list[str], tmp_path: Path
) -> None:
    report = run(copy_of(name, tmp_path / "in", config, tensors), tmp_path / "out")
    assert report.outcome == "converted"
    assert codes(report) == expected


def test_an_unknown_tensor_may_be_left_out(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", tensors=put("adapter.weight", torch.ones(4)))
    report = run(source, tmp_path / "out", allow=("T101",))
    assert report.outcome == "converted"
    assert report.plan is not None
    assert list(report.plan.dropped) == ["adapter.weight"]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "model."])
def test_a_wrapper_s_prefix_is_cut_off_when_all_names_bear_it(prefix: str, tmp_path: Path) -> None:
    def wrap(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[prefix + name] = tensors.pop(name)

    report = run(copy_of("a_plain", tmp_path / "in", tensors=wrap), tmp_path / "out")
    assert codes(report) == ["T108"]
    run(DRAFTERS / "a_plain", tmp_path / "plain")
    wrapped, plain = (load_file(tmp_path / folder / "model.safetensors") for folder in ("out", "plain"))
    assert {n: t.tolist() for n, t in wrapped.items()} == {n: t.tolist() for n, t in plain.items()}


def test_a_prefix_on_some_names_is_left_alone(tmp_path: Path) -> None:
    def wrap(tensors: dict[str, Any]) -> None:
        for name in [n for n in tensors if n != "d2t"]:
            tensors["module." + name] = tensors.pop(name)

    assert "T101" in errors(run(copy_of("a_plain", tmp_path / "in", tensors=wrap), tmp_path / "out"))


def test_every_input_tensor_is_accounted_for(tmp_path: Path) -> None:
    source = copy_of("e_2layers", tmp_path / "in", tensors=put("verifier_lm_head.weight", torch.ones(512, 64)))
    report = run(source, tmp_path / "out")
    assert report.plan is not None and report.source is not None
    used = {t.source for t in report.plan.tensors} | set(report.plan.dropped)
    assert used == set(report.source.checkpoint.tensors)
    renamed = {t.source for t in report.plan.tensors if t.source.startswith("layers.0.")}
    assert renamed and {t.source for t in report.plan.renamed} >= renamed


def test_the_width_of_fc_is_explained(tmp_path: Path) -> None:
    report = run(copy_of("a_plain", tmp_path / "in", tensors=put("fc.weight", torch.ones(64, 256))), tmp_path / "out")
    [finding] = [f for f in report.findings if f.code == "A103"]
    assert finding.message == "fc takes 4 states of width 64, the config names 3"
    assert finding.expected == "[64, 192] = [hidden 64, 3 capture points x target hidden 64]"
    assert finding.fix == ("name the points as trained, 4 of them: --aux ...",)


def test_an_fc_of_no_whole_states_is_another_targets(tmp_path: Path) -> None:
    report = run(copy_of("a_plain", tmp_path / "in", tensors=put("fc.weight", torch.ones(64, 200))), tmp_path / "out")
    [finding] = [f for f in report.findings if f.code == "A103"]
    assert finding.message == "fc takes 3.12 states of width 64, the config names 3"
    assert finding.found == "[64, 200]" and "target hidden size" in finding.fix[0]


@pytest.mark.parametrize(
    ("shape", "found"),
    [((32, 192), "[32, 192]"), ((64,), "[64]: 1 axes instead of 2"), ((128, 192), "[128, 192]: 2 times the rows")],
)
def test_an_fc_that_takes_its_states_and_has_another_shape(shape: tuple[int, ...], found: str, tmp_path: Path) -> None:
    report = run(copy_of("a_plain", tmp_path / "in", tensors=put("fc.weight", torch.ones(shape))), tmp_path / "out")
    assert errors(report) == ["T104"]
    [finding] = [f for f in report.findings if f.code == "T104"]
    assert finding.found == found
    assert finding.expected == "[64, 192] = [hidden 64, 3 capture points x target hidden 64]"


def test_a_shape_is_explained(tmp_path: Path) -> None:
    edit = put("layers.0.self_attn.q_proj.weight", torch.ones(64, 64))
    report = run(copy_of("a_plain", tmp_path / "in", tensors=edit), tmp_path / "out")
    [finding] = [f for f in report.findings if f.code == "T104"]
    assert finding.found == "[64, 64]: the columns of a plain layer, which takes no embedding beside the state"
    assert finding.expected == (
        "[64, 128] = [4 heads x 16 rows, 2 x hidden 64 columns]: layer 0 takes the token's embedding and the state "
        "side by side"
    )


def test_aux_replaces_what_the_config_states(tmp_path: Path) -> None:
    report = run(DRAFTERS / "a_plain", tmp_path / "out", aux=(2, 3, 4))
    assert codes(report) == ["A106"]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert codes(run(DRAFTERS / "a_plain", tmp_path / "out2", aux=(1, 3, 5))) == []


# --- targets --------------------------------------------------------------------------------------------------


def target(tmp_path: Path, **changes: Any) -> Path:
    config = json.loads((TARGET / "config.json").read_text()) | changes
    folder = tmp_path / "target"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_hidden_layers": 4}, ["A102"]),
        ({"num_hidden_layers": 5}, ["K122"]),
    ],
)
def test_what_is_said_of_a_target(changes: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    assert codes(run(DRAFTERS / "a_plain", tmp_path / "out", target=target(tmp_path, **changes))) == expected


def test_a_multimodal_wrapper_is_read_through(tmp_path: Path) -> None:
    inner = json.loads((TARGET / "config.json").read_text())
    folder = tmp_path / "target"
    folder.mkdir()
    wrapper = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": inner}
    (folder / "config.json").write_text(json.dumps(wrapper))
    report = run(DRAFTERS / "a_plain", tmp_path / "out", target=folder / "config.json")
    assert report.target.layers == 6
    assert report.plan is not None
    assert report.plan.layer_ids == {"sglang==0.5.23": (3, 1, 5)}  # literal, because the first listed is not 1


def test_a_target_that_is_none(tmp_path: Path) -> None:
    for changes in ({"architectures": None}, {"num_hidden_layers": None}):
        with pytest.raises(InputError) as caught:
            run(DRAFTERS / "a_plain", tmp_path / "out", target=target(tmp_path, **changes))
        assert caught.value.finding.code == "F113"


def test_without_a_target_the_drafter_s_own_record_is_used(tmp_path: Path) -> None:
    report = run(DRAFTERS / "a_plain", tmp_path / "out", target=None)
    assert report.outcome == "converted"
    assert report.target.architecture == "LlamaForCausalLM"
    bare = copy_of("a_plain", tmp_path / "in", drop("speculators_config"))
    report = run(bare, tmp_path / "out2", target=None)
    assert errors(report) == ["K120"] and report.plan is None
    assert [f.where for f in report.findings if f.code == "K120"] == ["config.json"]
    assert run(bare, tmp_path / "out3", target=None, target_arch="LlamaForCausalLM").outcome == "converted"


def test_the_context_limit_sets_the_variable_that_sglang_asks_for(tmp_path: Path) -> None:
    from converter.report.document import launch_lines

    short = run(DRAFTERS / "a_plain", tmp_path / "a", target=target(tmp_path, max_position_embeddings=131072))
    assert launch_lines(short)[0]["environment"] == {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
    assert launch_lines(run(DRAFTERS / "a_plain", tmp_path / "b"))[0]["environment"] == {}


# --- releases of speculators ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "points"),
    [("0.9.0", (2, 4, 5)), ("0.5.0", (2, 4, 5)), ("0.4.0.1", (3, 5, 6)), ("0.3.0", (3, 5, 6)), ("0.2.0", (2, 4, 5))],
)
def test_default_points_by_release(version: str, points: tuple[int, ...], tmp_path: Path) -> None:
    """0.3.0 to 0.4.0.1 wrote no ids and captured one layer later than the ids that their default names."""

    def age(config: dict[str, Any]) -> None:
        config["speculators_version"] = version
        config["eagle_aux_hidden_state_layer_ids"] = None

    source = copy_of("a_plain", tmp_path / "in", age)
    report = run(source, tmp_path / "out", target=target(tmp_path, num_hidden_layers=8))
    assert report.drafter is not None
    assert report.drafter.spec.capture_points == points
    assert codes(report) == ["A105"]


@pytest.mark.parametrize(
    ("version", "words"), [("0.2.0", "midlayer"), ("0.4.0", "midlayer"), ("0.4.0.1", "rope"), ("0.6.0", "rope")]
)
def test_what_old_converters_lost(version: str, words: str, tmp_path: Path) -> None:
    def age(config: dict[str, Any]) -> None:
        config |= {"speculators_version": version, "architectures": ["Eagle3Speculator"]}

    report = run(copy_of("a_plain", tmp_path / "in", age), tmp_path / "out", target=TARGET / "config.json")
    assert codes(report) == ["A109", "C206"]
    assert any(words in f.message for f in report.findings)


def test_newer_converters_and_trainers_are_not_cautioned(tmp_path: Path) -> None:
    for folder, version, name, ids in (
        ("a", "0.7.0", "Eagle3Speculator", ["A109"]),  # given to the converter by hand
        ("b", "0.4.0", "Eagle3DraftModel", []),
    ):
        edit = lambda c, v=version, n=name: c.update(speculators_version=v, architectures=[n])  # noqa: E731
        report = run(
            copy_of("a_plain", tmp_path / folder, edit), tmp_path / f"{folder}-out", target=TARGET / "config.json"
        )
        assert codes(report) == ids


def test_another_rope_than_the_target_s_is_a_note(tmp_path: Path) -> None:
    assert codes(run(DRAFTERS / "i_rope_headdim", tmp_path / "out")) == ["C213"]


def test_no_sliding_before_0_7(tmp_path: Path) -> None:
    def age(config: dict[str, Any]) -> None:
        config["speculators_version"] = "0.6.0"
        config[LAYER] |= {"layer_types": ["sliding_attention"], "sliding_window": 64}

    report = validate(Request(source=str(copy_of("a_plain", tmp_path / "in", age)), target=TARGET))
    assert report.drafter is not None
    assert report.drafter.spec.layer_windows == (None,)


def test_every_field_says_where_it_came_from(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", drop("norm_output", f"{LAYER}/head_dim"))
    report = run(source, tmp_path / "out", aux=(1, 3, 5))
    assert report.drafter is not None
    origins = report.drafter.spec.origins
    assert origins["hidden_size"].how == "stated"
    assert origins["norm_output"].how == "default"
    assert origins["head_dim"].how == "derived"
    assert origins["capture_points"].how == "given"
    assert origins["fc_bias"].how == "fixed"


# --- other checkpoints, by name ---------------------------------------------------------------------------------

OTHERS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("a Medusa head", {"medusa_num_heads": 4}, ["medusa_head.0.0.linear.weight"]),
    ("a Medusa head", {}, ["0.0.linear.weight", "0.0.linear.bias"]),
    ("a DFlash drafter", {"architectures": ["DFlashDraftModel"]}, ["layers.0.self_attn.q_proj.weight"]),
    ("an MTP", {"model_type": "qwen3_next"}, ["mtp.fc.weight", "mtp.layers.0.input_layernorm.weight"]),
    ("an MTP", {"architectures": ["DeepseekV3ForCausalLM"]}, ["model.layers.61.eh_proj.weight"]),
    ("an EAGLE-1 or EAGLE-2 head", {"model_type": "llama"}, ["fc.weight", "layers.0.self_attn.q_proj.weight"]),
    ("an MLP speculator", {"model_type": "mlp_speculator"}, ["speculator.head.0.weight"]),
    ("a whole language model", {"model_type": "llama"}, ["model.embed_tokens.weight", "lm_head.weight"]),
    ("a LoRA adapter", {"peft_type": "LORA"}, ["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"]),
]  # fmt: skip


@pytest.mark.parametrize(("title", "config", "names"), OTHERS)
def test_another_kind_of_checkpoint_is_named(
    title: str, config: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    save_file({name: torch.ones(2) for name in names}, tmp_path / "in" / "model.safetensors")
    report = run(tmp_path / "in", tmp_path / "out")
    assert errors(report) == ["F112"]
    assert title in report.findings[0].message
    assert not (tmp_path / "out").exists()


def test_a_target_is_not_taken_for_a_drafter(tmp_path: Path) -> None:
    assert "a whole language model" in run(TARGET, tmp_path / "out").findings[0].message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_values_that_are_no_numbers_are_found_on_the_way(value: float, dtype: torch.dtype, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, Any]) -> None:
        for name in ("lm_head.weight", "layers.0.mlp.up_proj.weight"):
            tensors[name] = tensors[name].to(dtype)
            tensors[name][-1, -1] = tensors[name][0, 3] = value

    report = run(copy_of("a_plain", tmp_path / "in", tensors=spoil), tmp_path / "out", target=TARGET / "config.json")
    assert errors(report) == ["N103"]
    assert sorted(f.message for f in report.findings if f.code == "N103") == [
        "lm_head.weight holds 2 values that are NaN or infinite",
        "midlayer.mlp.up_proj.weight holds 2 values that are NaN or infinite",
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_one_layer_that_is_not_there_is_said_as_a_layer(tmp_path: Path) -> None:
    def lose(tensors: dict[str, Any]) -> None:
        for name in [n for n in tensors if n.startswith("layers.1.")]:
            del tensors[name]

    report = run(copy_of("e_2layers", tmp_path / "in", tensors=lose), tmp_path / "out", "vllm==0.33.0")
    assert errors(report) == ["C236"]
    [found] = [f for f in report.findings if f.code == "C236"]
    assert found.message == "the config says 2 layers, the checkpoint has 1" and found.found == "no tensor of layer 1"

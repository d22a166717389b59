"""Drafters with latent attention (MLA): one by NeMo AutoModel's own code, the forms of ModelOpt and TorchSpec imitated.

ModelOpt's layer is code of a repository on the Hub and TorchSpec is in no package, so theirs are put together from the
names and the config template of nvidia-modelopt 0.47.0 (torch/export/plugins/hf_spec_export.py:66-90 and
hf_spec_configs.py:58-149; midlayer.* as 0.42.0 has them), with the weights of AutoModel's.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from safetensors.torch import load_file, save_file

from converter.checks.engine import examine
from converter.drafter.spec import DrafterSpec, Latent, Rope
from converter.drafter.target import Target
from converter.rules.engine import all_releases, resolve
from tests.support import DATA, SAMPLE, TARGET, check, codes, eagle3, errors, run
from tests.test_producers import changed, convert_for_both

AUTOMODEL = DATA / "producers" / "automodel_mla"
POINTS = {"aux": (1, 3, 5)}  # AutoModel writes none
SGLANG, VLLM = "sglang==0.5.23", "vllm==0.33.0"
LATENT = Latent(24, 16, 12, 8, 10)
# The values of the template that are no drafter's but copied from the target's config, as nulls where it had none.
TEMPLATE: dict[str, Any] = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "attention_bias": False,
    "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "chunk_size_feed_forward": 0, "do_sample": False,
    "ep_size": None, "first_k_dense_replace": 1, "hidden_act": "silu", "id2label": None,
    "moe_intermediate_size": 2048, "n_group": 1,
    "n_routed_experts": 384, "num_experts_per_tok": 8, "num_nextn_predict_layers": 0, "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid", "temperature": None, "topk_method": "noaux_tc", "torchscript": None, "use_cache": True,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 1024, "vocab_size": 512,
    "rope_theta": 10000.0, "rope_scaling": None,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
}  # fmt: skip
EAGLE = {
    "eagle_aux_hidden_state_layer_ids": [0, 2, 4], "use_aux_hidden_state": True, "next_layer_regular": True,
    "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False,
    "parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1,
}  # fmt: skip


def written(folder: Path, config: dict[str, Any], layer: str, but: tuple[str, ...] = ()) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(AUTOMODEL / "model.safetensors")
    names = {n: n.removeprefix("model.").replace("layers.0.", f"{layer}.") for n in tensors}
    save_file({new: tensors[n] for n, new in names.items() if new not in but}, folder / "model.safetensors")
    return folder


def modelopt(folder: Path, layer: str, **config: Any) -> Path:
    """Without embedding and t2d, which its export leaves out."""
    document = {**TEMPLATE, "draft_vocab_size": 384, "eagle_config": EAGLE, **config}
    return written(folder, document, layer, but=("embed_tokens.weight", "t2d"))


def torchspec(folder: Path, **config: Any) -> Path:
    eagle = {"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "use_aux_hidden_state": True}
    document = {**TEMPLATE, "draft_vocab_size": 384, "eagle_config": eagle, **config}
    others = ("chunk_size_feed_forward", "do_sample")  # which only ModelOpt's template copies
    return written(folder, {k: v for k, v in document.items() if v is not None and k not in others}, "layers.0")


def source(form: str, folder: Path) -> Path:
    if form == "automodel":
        return AUTOMODEL
    return torchspec(folder) if form == "torchspec-mla" else modelopt(folder, form.removeprefix("modelopt "))


FORMS = ("automodel", "modelopt midlayer", "modelopt layers.0", "torchspec-mla")


@pytest.mark.parametrize("form", FORMS)
def test_it_is_read_as_what_it_is_and_nothing_goes_unexplained(form: str, tmp_path: Path) -> None:
    report = check(source(form, tmp_path / "in"), SGLANG, VLLM, **(POINTS if form == "automodel" else {}))
    assert report.outcome == "validated", [f.message for f in report.findings]
    assert report.dialect is not None and report.dialect.name == form.split()[0]
    spec = report.drafter.spec  # type: ignore[union-attr]
    assert spec.latent == LATENT and spec.head_dim == 8 and spec.capture_points == (1, 3, 5)
    assert spec.origins["latent"].how == "stated" and spec.origins["head_dim"].where == "qk_rope_head_dim"
    assert not set(codes(report)) & {"T101", "T102", "C204"}


@pytest.mark.parametrize("form", FORMS)
def test_one_output_suits_both_engines_and_is_not_called_proved(form: str, tmp_path: Path) -> None:
    options = POINTS if form == "automodel" else {}
    report = convert_for_both(source(form, tmp_path / "in"), tmp_path / "out", **options)
    assert report.outcome == "converted" and report.proof is None and "K142" in codes(report)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["Eagle3DeepseekV2ForCausalLM"] and config["model_type"] == "kimi_k2"
    assert {k: config[k] for k in vars(LATENT)} == vars(LATENT)
    assert "head_dim" not in config and config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 4]
    ours, theirs = load_file(tmp_path / "out" / "model.safetensors"), load_file(AUTOMODEL / "model.safetensors")
    names = {n.removeprefix("model.").replace("layers.0.", "midlayer."): n for n in theirs}
    assert set(ours) >= set(names) - {"embed_tokens.weight", "t2d"} and set(ours) <= set(names)
    assert all(torch.equal(t, theirs[names[n]]) for n, t in ours.items())


def test_proof_is_refused_and_said_to_be_missing(tmp_path: Path) -> None:
    report = check(AUTOMODEL, VLLM, sample=SAMPLE, **POINTS)
    assert errors(report) == ["N104"] and report.proof is not None and report.proof.level == "none"
    done = eagle3("convert", AUTOMODEL, tmp_path / "out", "--engine", VLLM, "--target", TARGET, "--aux", "1,3,5")
    assert "1 MLA layer" in done.stdout and "NOT PROVED: latent attention is not computed here." in done.stdout
    shown = eagle3("validate", AUTOMODEL, "--target", TARGET, "--aux", "1,3,5")
    assert "NOT PROVED: latent attention is not computed here" in shown.stdout


# --- engines --------------------------------------------------------------------------------------------------


def spec_of(**changes: Any) -> DrafterSpec:
    drafter = check(AUTOMODEL, VLLM, **POINTS).drafter
    assert drafter is not None
    return replace(drafter.spec, **changes)


def refused(engine: str, spec: DrafterSpec) -> list[str]:
    [release] = resolve(engine)
    findings = examine(release.serving(spec), spec, Target(architecture="LlamaForCausalLM", layers=6)).findings
    return [f.code for f in findings if f.severity == "error"]


@pytest.mark.parametrize(("engine", "since"), [("sglang", "0.5.12"), ("vllm", "0.18.0")])
def test_it_is_served_since_the_class_is_there(engine: str, since: str) -> None:
    spec = spec_of()
    for release in all_releases(engine):
        found = refused(release.requirement, spec)
        assert ("K141" in found) is (Version(release.release) < Version(since)), release
        assert not found or "K141" in found


@pytest.mark.parametrize(
    ("changes", "sglang", "vllm"),
    [
        ({"norm_before_residual": True}, ["K103"], []),
        ({"norm_before_fc": True}, ["K104"], ["K104"]),
        ({"fc_norm": True}, [], []),
        ({"norm_output": True}, [], []),
        ({"num_hidden_layers": 2, "layer_windows": (None, None)}, ["K102"], []),
        ({"layer_windows": (16,)}, ["K110"], ["K110"]),
        ({"qkv_bias": True}, ["K108"], ["K108"]),
        ({"o_bias": True}, ["K108"], ["K108"]),
        ({"mlp_bias": True}, ["K109"], ["K109"]),
        ({"latent": replace(LATENT, q_lora_rank=None)}, ["K144"], ["K144"]),
        ({"rope": Rope(10000.0, "yarn", (("factor", 4.0), ("original_max_position_embeddings", 256)))}, [], []),
        ({"rope": Rope(10000.0, "linear", (("factor", 4.0),))}, ["K112"], ["K112"]),
    ],
)
def test_what_each_class_reads(changes: dict[str, Any], sglang: list[str], vllm: list[str]) -> None:
    spec = spec_of(**changes)
    assert refused(SGLANG, spec) == sglang
    assert refused(VLLM, spec) == vllm


def test_the_first_sglang_releases_know_neither_norm() -> None:
    for release in ("0.5.12", "0.5.12.post1"):
        assert refused(f"sglang=={release}", spec_of(fc_norm=True)) == ["K105"]
        assert refused(f"sglang=={release}", spec_of(norm_output=True)) == ["K106"]
    assert refused("sglang==0.5.13", spec_of(fc_norm=True, norm_output=True)) == []


def test_refusals_say_what_would_happen_and_where_it_works() -> None:
    report = check(AUTOMODEL, "sglang==0.5.11", **POINTS)
    [finding] = [f for f in report.verdicts["sglang==0.5.11"] if f.code == "K141"]
    assert (
        finding.message.startswith("latent is q_lora_rank 24, kv_lora_rank 16") and "computes none" in finding.message
    )
    assert "does not know the class" in finding.why
    assert finding.fix[0].startswith("works in SGLang 0.5.12 to 0.5.23")
    assert finding.fix[1].startswith("works in vLLM 0.18.0 to 0.33.0")


def test_an_ordinary_drafter_is_served_by_the_same_rules_as_ever() -> None:
    spec = replace(check(DATA / "drafters" / "a_plain", VLLM).drafter.spec)  # type: ignore[union-attr]
    for engine in (SGLANG, VLLM):
        assert resolve(engine)[0].serving(spec) is resolve(engine)[0]


# --- tensors and config ---------------------------------------------------------------------------------------


def edited(folder: Path, name: str, value: torch.Tensor | None) -> Path:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value

    return changed("automodel_mla", folder, tensors=edit)


A_PROJ = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"


def test_a_lost_matrix_and_one_cut_short(tmp_path: Path) -> None:
    lost = check(edited(tmp_path / "a", A_PROJ, None), VLLM, **POINTS)
    assert errors(lost) == ["T103"]
    short = check(edited(tmp_path / "b", A_PROJ, torch.zeros(16, 128, dtype=torch.bfloat16)), VLLM, **POINTS)
    assert errors(short) == ["T104"]
    [finding] = [f for f in short.findings if f.code == "T104"]
    assert (
        finding.expected.startswith("[24, 128] = [kv rank 16 + rope 8, 2 x hidden 64 columns]")
        and finding.found == "[16, 128]"
    )


@pytest.mark.parametrize(
    ("key", "value", "code", "tensor"),
    [
        ("kv_lora_rank", 20, "T104", "kv_a_layernorm"),
        ("v_head_dim", 12, "T104", "o_proj"),
        ("q_lora_rank", None, "T105", "q_a_proj"),
        ("qk_rope_head_dim", 7, "C207", ""),
        ("kv_lora_rank", "16", "C203", "kv_lora_rank: a whole number"),
        ("v_head_dim", None, "C203", "v_head_dim: a whole number"),
    ],
)
def test_numbers_that_do_not_fit(key: str, value: Any, code: str, tensor: str, tmp_path: Path) -> None:
    report = check(changed("automodel_mla", tmp_path / "in", {key: value}), VLLM, **POINTS)
    found = [f for f in report.findings if f.code == code]
    assert found and any(tensor in f"{f.where} {f.expected}" for f in found)


def test_a_config_of_a_dense_drafter_beside_latent_tensors(tmp_path: Path) -> None:
    report = check(changed("automodel_mla", tmp_path / "in", {"kv_lora_rank": None}), VLLM, **POINTS)
    assert {"T103", "T105"} <= set(errors(report))
    [finding] = [f for f in report.findings if f.code == "T105"]
    assert "kv_lora_rank" in finding.expected


def test_an_even_number_of_rope_columns_is_asked_for(tmp_path: Path) -> None:
    report = check(changed("automodel_mla", tmp_path / "in", {"qk_rope_head_dim": 7}), VLLM, **POINTS)
    assert "C207" in errors(report)


def test_biases_of_attention_are_looked_for_where_the_config_has_them(tmp_path: Path) -> None:
    report = check(modelopt(tmp_path / "in", "layers.0", attention_bias=True), VLLM)
    missing = {f.where for f in report.findings if f.code == "T103"}
    assert missing == {f"layers.0.self_attn.{x}.bias" for x in ("q_a_proj", "kv_a_proj_with_mqa", "o_proj")}


def test_yarn_is_trained_otherwise_by_automodel(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "rope_theta": 10000.0}
    report = check(changed("automodel_mla", tmp_path / "in", {"rope_parameters": yarn}), VLLM, **POINTS)
    assert codes(report) == ["C213", "C216", "T120"]  # the target's rope is plain; its attention was never trained


def test_ids_of_a_torchspec_drafter_may_mean_either(tmp_path: Path) -> None:
    report = check(torchspec(tmp_path / "in"), VLLM)
    assert "A109" in codes(report)
    assert check(torchspec(tmp_path / "two"), VLLM, aux=(1, 3, 5)).outcome == "validated"


def test_the_spec_is_reported(tmp_path: Path) -> None:
    done = eagle3("validate", AUTOMODEL, "--target", TARGET, "--aux", "1,3,5", "--json")
    spec = json.loads(done.stdout)["spec"]
    assert spec["latent"]["value"] == vars(LATENT) and spec["mask_token_id"]["value"] is None
    run(AUTOMODEL, tmp_path / "out", VLLM, **POINTS)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["kv_lora_rank"] == 16

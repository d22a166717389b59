"""Drafters in the forms of other trainers, written by their own code (tests/data/README.md says by what).

All but those that say so carry the weights of the trained drafter a_plain, so what they compute is known.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from converter.capture.points import points_of_drafter
from converter.errors import InputError, UsageError
from converter.forward.embedding import of_checkpoint
from converter.forward.model import DraftModel
from converter.forward.sample import read_sample
from converter.forward.weights import weights_of
from converter.pipeline import Report
from converter.report import rules as rules_report
from converter.rules import loading
from converter.target import read_target
from tests.data import producer
from tests.support import DATA, DRAFTERS, SAMPLE, TARGET, check, codes, convert, eagle3, errors, quiet, request, run
from tests.teacher_forced import logits_of
from tests.test_forward import logits

PRODUCERS = DATA / "producers"
ENGINES = ("sglang==0.5.23", "vllm==0.33.0")
CPU = torch.device("cpu")

# Fixture: its dialect.
DIALECTS = {
    "specforge_sglang": "specforge",
    "specforge_hf": "specforge",
    "specforge_state": "specforge",
    "modelopt_midlayer": "modelopt",
    "modelopt_layers": "modelopt",
    "automodel": "automodel",
    "angelslim": "angelslim",
    "speculators_010": "speculators",
    "speculators_0401": "speculators",
}
LOST = "speculators_020"  # its converter lost the decoder layer, so it is no a_plain any more
# Those of other shapes, which have tests of their own (test_peagle.py, test_mla.py).
SHAPES = ("speculators_peagle", "specforge_peagle", "automodel_mla")
# What has to be said for one to be the drafter it is: ModelOpt 0.47 exports YaRN for a drafter that it trained with
# plain rope, and some trainers write no ids.
SAID: dict[str, dict[str, Any]] = {
    "modelopt_layers": {"given": {"rope_scaling": "none"}},
    "automodel": {"aux": (1, 3, 5)},
    "angelslim": {"aux": (1, 3, 5)},
    "speculators_010": {"aux": (1, 3, 5), "dtype": "bfloat16"},  # saved in fp32
    "speculators_0401": {"aux": (1, 3, 5), "dtype": "bfloat16"},  # its config says fp32
}


def changed(name: str, folder: Path, config: dict[str, Any] | None = None, tensors: Any = None) -> Path:
    """A copy of a producer's drafter with keys of its config replaced (None takes one out) and its tensors edited."""
    shutil.copytree(PRODUCERS / name, folder)
    document = json.loads((folder / "config.json").read_text())
    for key, value in (config or {}).items():
        place = document
        *parents, last = key.split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
        if value is None:
            del place[last]
    (folder / "config.json").write_text(json.dumps(document))
    if tensors is not None:
        weights = load_file(folder / "model.safetensors")
        weights = tensors(weights) or weights
        save_file(weights, folder / "model.safetensors")
    return folder


def convert_for_both(source: Path, out: Path, **options: Any) -> Report:
    options.setdefault("target", TARGET)
    return convert(request(source, out=out, engines=ENGINES, **options), quiet)


@functools.cache
def trained(name: str) -> Report:
    return check(DRAFTERS / name, *ENGINES, sample=SAMPLE)


def plain() -> Report:
    return trained("a_plain")


def finding(report: Report, code: str) -> Any:
    [found] = [f for f in report.findings if f.code == code]
    return found


def test_every_fixture_is_listed() -> None:
    assert {p.name for p in PRODUCERS.iterdir()} == {*DIALECTS, LOST, *SHAPES}


@pytest.mark.parametrize("name", DIALECTS)
def test_it_converts_for_both_engines_with_the_scores_of_the_drafter_it_is(name: str, tmp_path: Path) -> None:
    report = convert_for_both(PRODUCERS / name, tmp_path / "out", sample=SAMPLE, steps=3, **SAID.get(name, {}))
    assert report.outcome == "converted", [f.message for f in report.findings]
    assert report.dialect is not None and report.dialect.name == DIALECTS[name]
    assert report.proof is not None and report.proof.level == "anchored"
    assert report.proof.difference is not None and report.proof.difference < 1e-3
    expected = plain().proof
    assert expected is not None and report.proof.scores == expected.scores


@pytest.mark.parametrize("name", DIALECTS)
def test_its_logits_are_those_of_the_drafter_it_is(name: str) -> None:
    report = check(PRODUCERS / name, **SAID.get(name, {}))
    it = report.drafter
    assert it is not None and report.target_weights is not None and report.target_weights.embedding is not None
    model = DraftModel(it.spec, weights_of(it.spec, it.checkpoint, it.tensors, CPU))
    sequence = read_sample(SAMPLE, it.spec).sequences[0]
    table = load_file(DRAFTERS / "a_plain" / "model.safetensors")["embed_tokens.weight"].float()
    if "embed_tokens.weight" in it.tensors:
        rows = of_checkpoint(it.checkpoint, it.tensors["embed_tokens.weight"], [sequence]).rows
        assert torch.equal(rows(sequence, 0, len(sequence.tokens)), table[sequence.tokens])
    states = torch.cat([sequence.state(p) for p in it.spec.capture_points], dim=-1)
    for ours, theirs in zip(logits_of(model, table[sequence.tokens], states, 3), logits("a_plain")[0], strict=True):
        assert torch.equal(ours, theirs)


@pytest.fixture(scope="module")
def plain_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("a_plain") / "out"
    convert_for_both(DRAFTERS / "a_plain", out)
    return out


@pytest.mark.parametrize("name", DIALECTS)
def test_what_is_written_is_what_a_plain_becomes(name: str, plain_output: Path, tmp_path: Path) -> None:
    convert_for_both(PRODUCERS / name, tmp_path / "out", **SAID.get(name, {}))
    ours, plain = (load_file(f / "model.safetensors") for f in (tmp_path / "out", plain_output))
    optional = {"embed_tokens.weight", "t2d"} - ours.keys()
    assert ours.keys() == plain.keys() - optional
    assert all(torch.equal(ours[n], plain[n]) for n in ours)
    configs = [json.loads((f / "config.json").read_text()) for f in (tmp_path / "out", plain_output)]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("name", DIALECTS)
def test_nothing_in_it_goes_unexplained(name: str) -> None:
    assert not set(codes(check(PRODUCERS / name))) & {"T101", "T102", "C204"}


def test_a_script_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {path.stem for path in DATA.glob("make_*.py")} - {"make_expected"}
    assert producer.NEEDED.keys() == scripts

    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(producer, "version", nothing)
    for script, (plain, alone) in producer.NEEDED.items():
        with pytest.raises(SystemExit) as caught:
            producer._check_packages(script)
        assert all(f"'{requirement}'" in str(caught.value) for requirement in (*plain, *alone))
    monkeypatch.setattr(producer, "version", lambda name: {"specforge": "0.2.0", "transformers": "4.57.6"}[name])
    with pytest.raises(SystemExit, match="transformers>=5"):
        producer._check_packages("make_specforge")
    monkeypatch.setattr(producer, "version", lambda name: {"specforge": "0.2.0", "transformers": "5.24.0"}[name])
    producer._check_packages("make_specforge")


# --- who wrote it -------------------------------------------------------------------------------------------


def test_dialects_are_asked_in_a_written_order() -> None:
    order = [row["dialect"] for row in loading.load("", "recognition")["order"]]
    assert sorted(order) == loading.names("dialects")
    assert [d["dialect"] for d in rules_report.dialects()] == order


def test_a_dialect_can_be_forced(tmp_path: Path) -> None:
    """With a class name that nobody writes, the marks are gone."""
    source = changed("specforge_sglang", tmp_path / "in", {"architectures": ["Nobody"]})
    assert errors(check(source)) == ["F112"]
    assert "if it is a drafter of SpecForge: --dialect specforge" in finding(check(source), "F112").fix
    report = check(source, dialect="specforge")
    assert report.outcome == "validated" and report.dialect is not None and report.dialect.name == "specforge"


def test_the_command_line_forces_one_and_lists_them(tmp_path: Path) -> None:
    source = changed("specforge_sglang", tmp_path / "in", {"architectures": ["Nobody"]})
    done = eagle3("convert", source, tmp_path / "out", "--target", TARGET, "--dialect", "specforge", "--sample", SAMPLE)
    assert done.returncode == 0 and done.stdout.startswith("Converted.\nSpecForge drafter")
    assert eagle3("convert", source, tmp_path / "out2", "--dialect", "medusa").returncode == 2
    listed = eagle3("dialects").stdout
    assert "told by speculators_model_type" in listed and "perhaps id k is capture point k: the files do not" in listed


def test_forcing_a_dialect_that_there_is_not() -> None:
    with pytest.raises(UsageError, match=r"--dialect medusa: expected one of .*specforge"):
        check(PRODUCERS / "specforge_hf", dialect="medusa")


def test_an_output_is_not_read_as_a_trainer_s(tmp_path: Path) -> None:
    run(PRODUCERS / "specforge_hf", tmp_path / "out")
    report = run(tmp_path / "out", tmp_path / "again")
    assert errors(report) == ["F112"] and "output of eagle3-convert" in finding(report, "F112").message
    assert errors(check(tmp_path / "out", dialect="specforge")) == ["F112"]
    with pytest.raises(UsageError, match="its capture points cannot be read"):
        points_of_drafter(tmp_path / "out", read_target(TARGET))
    assert points_of_drafter(PRODUCERS / "specforge_hf", read_target(TARGET)) == (1, 3, 5)


@pytest.mark.parametrize(
    ("config", "tensors", "words"),
    [
        ({"architectures": ["LlamaEagle3DraftModel"], "parallel_drafting": True}, {}, "P-EAGLE"),
        ({}, {"parallel_draft_heads.0.medusa_layers.0.linear.weight": torch.ones(2, 2)}, "parallel heads"),
        ({"eagle_config.use_aux_hidden_state": False}, {}, "last state alone"),
        ({}, {"midlayer.self_attn.W_pack.weight": torch.ones(2, 2)}, "several matrices as one"),
    ],
)
def test_forms_that_are_not_converted_are_named(
    config: dict[str, Any], tensors: dict[str, Any], words: str, tmp_path: Path
) -> None:
    report = check(changed("specforge_sglang", tmp_path / "in", config, lambda t: {**t, **tensors}))
    assert errors(report) == ["F116"] and words in finding(report, "F116").message


# --- which layers its ids mean ------------------------------------------------------------------------------


def test_ids_with_two_meanings_are_said_to_have_them() -> None:
    """The ids of the fixture are nobody's default, and the target has all layers of both readings."""
    found = finding(check(PRODUCERS / "specforge_hf"), "A109")
    assert (found.found, found.expected) == ("read as layer 1, layer 3, layer 5", "perhaps embedding, layer 2, layer 4")
    assert found.fix[0] == "say which it was trained on: --aux 1,3,5  or  --aux embed,2,4"


@pytest.mark.parametrize("options", [{"aux": (1, 3, 5)}, {"sample": SAMPLE}])
def test_the_user_or_a_sample_settles_it(options: dict[str, Any]) -> None:
    assert "A109" not in codes(check(PRODUCERS / "specforge_hf", **options))


def with_layers(folder: Path, layers: int) -> Path:
    document = json.loads((TARGET / "config.json").read_text()) | {"num_hidden_layers": layers}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(
    ("ids", "layers", "says"),
    [
        ([1, 15, 28], 32, None),  # as read, the points that trainers take by default
        ([2, 16, 29], 32, "perhaps layer 2, layer 16, layer 29; these are the points that trainers take by default"),
        ([1, 46, 90], 94, None),  # lmsys/Qwen3-235B-A22B-EAGLE3
        ([1, 17, 33], 36, "perhaps layer 1, layer 17, layer 33"),
        ([24, 30, 36], 36, "perhaps layer 24, layer 30, layer 36"),  # as read, beyond the target
        ([-1, 2, 5], 36, None),  # the other reading is none
    ],
)
def test_what_the_target_s_depth_tells_of_ids(ids: list[int], layers: int, says: str | None, tmp_path: Path) -> None:
    source = changed("specforge_hf", tmp_path / "in", {"eagle_config.eagle_aux_hidden_state_layer_ids": ids})
    report = check(source, target=with_layers(tmp_path / "target", layers))
    found = [f for f in report.findings if f.code == "A109"]
    assert [f.expected for f in found] == ([] if says is None else [says])
    if max(ids) == layers:
        assert errors(report) == ["A102"] and "which the target does not have" in found[0].found


def test_the_wrong_reading_is_caught_by_a_sample_and_the_right_one_named(tmp_path: Path) -> None:
    """A drafter published with capture points for ids, which is what vLLM's own would be."""
    source = changed("specforge_hf", tmp_path / "in", {"eagle_config.eagle_aux_hidden_state_layer_ids": [1, 3, 5]})
    report = run(source, tmp_path / "out", sample=SAMPLE)
    assert report.outcome == "refused" and "A301" in errors(report)
    assert any("--aux 1,3,5" in line for line in finding(report, "A301").fix)


TOP, NESTED = "eagle_aux_hidden_state_layer_ids", "eagle_config.eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize("name", ["specforge_hf", "modelopt_midlayer"])
@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ({NESTED: [0, 2, 4], TOP: [1, 3, 5]}, set()),  # each in its own numbering: that tells which is meant
        ({NESTED: [0, 2, 4], TOP: [0, 2, 4]}, {"A109"}),
        ({NESTED: [0, 2, 4], TOP: [2, 3, 4]}, {"A109", "C226"}),
        ({NESTED: None, TOP: [1, 3, 5]}, {"A109"}),  # where vLLM reads them, as vLLM does
    ],
)
def test_ids_under_two_keys(name: str, ids: dict[str, Any], found: set[str], tmp_path: Path) -> None:
    report = check(changed(name, tmp_path / "in", ids))
    assert report.drafter is not None and report.drafter.spec.capture_points == (1, 3, 5)
    assert {"A109", "C204", "C226"} & set(codes(report)) == found
    if ids[NESTED] is None:
        assert finding(report, "A109").expected == "perhaps layer 2, layer 4, layer 6"
    if "C226" in found:
        said = finding(report, "C226")
        assert (said.where, said.found, said.expected) == (TOP, "[2, 3, 4]", "[0, 2, 4]")
        assert "C226" not in codes(check(tmp_path / "in", aux=(1, 3, 5)))


def test_ids_that_agree_hide_nothing_else(tmp_path: Path) -> None:
    config = {NESTED: [0, 2, 4], TOP: [1, 3, 5], "torch_dtype": "float32"}
    assert finding(check(changed("specforge_hf", tmp_path / "in", config)), "C226").where == "torch_dtype"


def test_a_flag_under_two_keys(tmp_path: Path) -> None:
    config = {"eagle_config.norm_before_fc": False, "norm_before_fc": True}
    report = check(changed("modelopt_midlayer", tmp_path / "in", config))
    assert finding(report, "C226").fix == ("say which is right: --set norm_before_fc=VALUE",)
    assert "C226" not in codes(check(tmp_path / "in", given={"norm_before_fc": False}))


def test_without_ids_the_default_is_assumed_and_said(tmp_path: Path) -> None:
    source = changed("specforge_hf", tmp_path / "in", {"eagle_config": None})
    report = check(source, target=with_layers(tmp_path / "target", 32))
    assert report.drafter is not None and report.drafter.spec.capture_points == (2, 16, 29)
    assert "A105" in codes(report) and "A109" not in codes(report)


# --- SpecForge ----------------------------------------------------------------------------------------------


def test_a_script_s_prefix_is_cut_off(tmp_path: Path) -> None:
    def prefixed(tensors: dict[str, Any]) -> dict[str, Any]:
        return {f"draft_model.{n}": t for n, t in tensors.items()}

    report = run(changed("specforge_sglang", tmp_path / "in", tensors=prefixed), tmp_path / "out", sample=SAMPLE)
    assert report.outcome == "converted" and "T108" in codes(report)


def test_a_training_state_with_its_optimizer_and_no_config(tmp_path: Path) -> None:
    source = changed("specforge_state", tmp_path / "in")
    state = torch.load(source / "training_state.pt", weights_only=True)
    moments = {0: {"exp_avg": torch.ones(3), "step": torch.tensor(5.0)}}
    state["replicated_optimizer_state"] = {"state": moments, "param_groups": [{"lr": 1e-4, "params": [0]}]}
    torch.save(state, source / "training_state.pt")
    report = run(source, tmp_path / "out", sample=SAMPLE)
    assert report.outcome == "converted" and report.proof is not None and report.proof.level == "anchored"
    (source / "config.json").unlink()
    with pytest.raises(InputError) as caught:
        check(source)
    assert caught.value.finding.code == "F111"


@pytest.mark.parametrize("value", [True, False])
def test_norm_output_changed_its_meaning(value: bool, tmp_path: Path) -> None:
    source = changed("specforge_hf", tmp_path / "in", {"norm_output": value})
    found = finding(check(source), "C215")
    assert f"norm_output: {str(value).lower()} means another computation" in found.message
    assert any("--set norm_output=false" in line for line in found.fix)
    assert "C215" not in codes(check(source, given={"norm_output": False}))


def test_an_older_norm_output_is_caught_by_a_sample(tmp_path: Path) -> None:
    """a_plain feeds the raw state back, which is what a SpecForge before 2026-09-15 trained under `true`."""
    source = changed("specforge_hf", tmp_path / "in", {"norm_output": True})
    report = run(source, tmp_path / "out", sample=SAMPLE)
    assert "A301" in errors(report)
    assert any("--set norm_output=false" in line for line in finding(report, "A301").fix)
    report = run(source, tmp_path / "out", sample=SAMPLE, given={"norm_output": False})
    assert report.outcome == "converted" and report.proof is not None and report.proof.level == "anchored"


def test_a_rope_base_that_may_not_have_been_used(tmp_path: Path) -> None:
    """Written by transformers 4, as a SpecForge before 2025-10-30 did; later ones have rope_parameters too."""
    source = changed("specforge_hf", tmp_path / "in", {"rope_theta": 1e6, "rope_parameters": None})
    found = finding(check(source), "C215")
    assert "rope_theta was not used in training" in found.message and "--set rope_theta=10000" in found.fix[0]
    assert "C215" not in codes(check(source, given={"rope_theta": 10000.0}))
    newer = changed("specforge_hf", tmp_path / "new", {"rope_theta": 1e6, "rope_parameters.rope_theta": 1e6})
    assert "C215" not in codes(check(newer))


def test_fc_norm_and_a_wider_target_are_read(tmp_path: Path) -> None:
    def normed(tensors: dict[str, Any]) -> dict[str, Any]:
        return {**tensors, **{f"fc_norm.{j}.weight": torch.ones(96, dtype=torch.bfloat16) for j in range(3)},
                "fc.weight": torch.cat([fc := tensors["fc.weight"], fc[:, :96].flip(0)], 1)}  # fmt: skip

    source = changed("specforge_hf", tmp_path / "in", {"fc_norm": True, "target_hidden_size": 96}, normed)
    report = check(source, target=None)
    assert errors(report) == [] and report.drafter is not None
    assert report.drafter.spec.fc_norm and report.drafter.spec.target_hidden_size == 96


def test_a_map_that_was_never_filled(tmp_path: Path) -> None:
    """Older SpecForge registered t2d as zeros, newer ones as ones; d2t as zeros (llama3_eagle.py:1695-1699)."""
    for marks in (torch.ones(512, dtype=torch.bool), torch.zeros(512, dtype=torch.bool)):
        source = changed("specforge_hf", tmp_path / f"in{int(marks[0])}", None,
                         lambda t, m=marks: {**t, "d2t": torch.zeros(384, dtype=torch.int64), "t2d": m})  # fmt: skip
        assert errors(check(source, target=None)) in (["V203"], ["V208"])


def test_a_full_vocabulary_whose_map_is_the_identity(tmp_path: Path) -> None:
    def full(tensors: dict[str, Any]) -> dict[str, Any]:
        return {**tensors, "d2t": torch.zeros(512, dtype=torch.int64), "t2d": torch.ones(512, dtype=torch.bool),
                "lm_head.weight": torch.randn(512, 64).bfloat16()}  # fmt: skip

    source = changed("specforge_hf", tmp_path / "in", {"draft_vocab_size": None}, full)
    report = run(source, tmp_path / "out", "vllm==0.33.0")
    assert report.outcome == "converted"
    assert not {"d2t", "t2d"} & load_file(tmp_path / "out" / "model.safetensors").keys()


# --- ModelOpt -----------------------------------------------------------------------------------------------


def modelopt_of(name: str, folder: Path, rename: dict[str, str], config: dict[str, Any]) -> Path:
    """A bundled drafter with other names and the config that ModelOpt's exports write."""
    folder.mkdir()
    weights = load_file(DRAFTERS / name / "model.safetensors")
    del weights["embed_tokens.weight"]
    weights.pop("t2d", None)
    for theirs, ours in rename.items():
        weights = {n.replace(theirs, ours): t for n, t in weights.items()}
    save_file(weights, folder / "model.safetensors")
    own = json.loads((DRAFTERS / name / "config.json").read_text())
    document = json.loads((PRODUCERS / "modelopt_midlayer" / "config.json").read_text())
    document["num_hidden_layers"] = own["transformer_layer_config"]["num_hidden_layers"]
    document["draft_vocab_size"] = own["draft_vocab_size"]
    (folder / "config.json").write_text(json.dumps(document | config))
    return folder


def test_megatron_s_deep_form(tmp_path: Path) -> None:
    """Imitated: the names of its eagle3_deep_llama_causal_lm_export, where a later layer's norm is a hidden_norm."""
    rename = {"layers.1.input_layernorm": "midlayer.1.hidden_norm", "layers.": "midlayer."}
    source = modelopt_of("e_2layers", tmp_path / "in", rename, {"architectures": ["LlamaForCausalLMEagle3Deep"]})
    report = convert_for_both(source, tmp_path / "out", sample=SAMPLE)
    expected = convert_for_both(DRAFTERS / "e_2layers", tmp_path / "plain", sample=SAMPLE)
    assert report.proof is not None and expected.proof is not None
    assert report.outcome == expected.outcome == "converted"
    assert report.proof.scores == expected.proof.scores and report.proof.level == "anchored"
    assert not set(codes(report)) & {"T101", "T102", "C204", "C216"}


def test_the_target_s_head_is_copied_in_for_a_full_vocabulary(tmp_path: Path) -> None:
    source = modelopt_of("h_fullvocab", tmp_path / "in", {"layers.0.": "midlayer."}, {})
    report = convert_for_both(source, tmp_path / "out", sample=SAMPLE)
    expected = convert_for_both(DRAFTERS / "h_fullvocab", tmp_path / "plain", sample=SAMPLE)
    assert report.outcome == "converted" and report.proof is not None and expected.proof is not None
    assert report.proof.scores == expected.proof.scores


def test_a_full_head_beside_a_smaller_draft_vocabulary_is_refused(tmp_path: Path) -> None:
    source = changed("modelopt_midlayer", tmp_path / "in", None, lambda t: {**t, "lm_head.weight": torch.ones(512, 64)})
    assert "T104" in errors(check(source))


def test_a_map_that_the_export_lost(tmp_path: Path) -> None:
    source = changed("modelopt_midlayer", tmp_path / "in", None, lambda t: {n: v for n, v in t.items() if n != "d2t"})
    found = finding(check(source, target=None), "V204")
    assert found.severity == "error" and "attribute `dt2`" in found.fix[-1]


def test_states_are_in_layer_order_whatever_the_order_of_the_ids(tmp_path: Path) -> None:
    """list(set([1, 15, 28])) is [1, 28, 15] in Python; the hooks fire in the order of the layers."""
    source = changed("modelopt_midlayer", tmp_path / "in", {"eagle_config.eagle_aux_hidden_state_layer_ids": [4, 0, 2]})
    report = convert_for_both(source, tmp_path / "out", sample=SAMPLE)
    assert report.outcome == "converted" and report.drafter is not None
    assert report.drafter.spec.capture_points == (1, 3, 5)
    found = finding(check(source), "A109")
    assert found.expected == "perhaps embedding, layer 2, layer 4" and "dumped through vLLM" in found.why


def test_states_dumped_through_vllm(tmp_path: Path) -> None:
    source = changed("modelopt_layers", tmp_path / "in", {"eagle_config.eagle_aux_hidden_state_layer_ids": [5, 1, 3]})
    report = run(source, tmp_path / "out", sample=SAMPLE, **SAID["modelopt_layers"])
    assert "A301" in errors(report) and any("--aux 1,3,5" in line for line in finding(report, "A301").fix)
    report = run(source, tmp_path / "out", sample=SAMPLE, **SAID["modelopt_layers"], aux=(1, 3, 5))
    assert report.outcome == "converted" and report.proof is not None and report.proof.level == "anchored"


@pytest.mark.parametrize("name", ["modelopt_layers", "modelopt_midlayer"])
def test_its_training_s_own_logits_are_those_with_the_state_normed_twice(name: str) -> None:
    """Recorded by make_modelopt.py from the model of 0.47.0 and 0.42.0."""
    it = check(PRODUCERS / name, **SAID.get(name, {})).drafter
    assert it is not None
    weights = weights_of(it.spec, it.checkpoint, it.tensors, CPU)
    sequence = read_sample(SAMPLE, it.spec).sequences[0]
    embeds = load_file(DRAFTERS / "a_plain" / "model.safetensors")["embed_tokens.weight"].float()[sequence.tokens]
    states = torch.cat([sequence.state(p) for p in it.spec.capture_points], dim=-1)
    recorded = load_file(DATA / "expected" / f"{name}.safetensors")["s0.draft_logits_step0"]
    for twice, close in ((True, True), (False, False)):
        [ours] = logits_of(DraftModel(it.spec, weights, state_normed_twice=twice), embeds, states, 1)
        assert (float((ours[::4] - recorded).abs().max()) < 1e-4) is close


def trained_twice_normed(folder: Path) -> Path:
    """A drafter that fits its sample with the state normed twice: a_plain with unlike weights in its first norm, taken
    out again where the embedding enters (q, k and v) and in hidden_norm.
    """

    def tensors(weights: dict[str, Any]) -> None:
        more = torch.exp(0.3 * torch.randn(64, generator=torch.Generator().manual_seed(0)))
        first = weights["layers.0.input_layernorm.weight"].float() * more
        for part in "qkv":
            name = f"layers.0.self_attn.{part}_proj.weight"
            weights[name] = torch.cat([weights[name][:, :64] / more, weights[name][:, 64:]], dim=1).bfloat16()
        weights["layers.0.input_layernorm.weight"] = first.bfloat16()
        own = weights["layers.0.hidden_norm.weight"].float()
        weights["layers.0.hidden_norm.weight"] = (own / first * first.pow(2).mean().sqrt()).bfloat16()

    return changed("modelopt_layers", folder, None, tensors)


def test_a_sample_shows_what_training_otherwise_costs(tmp_path: Path) -> None:
    source = trained_twice_normed(tmp_path / "in")
    report = run(source, tmp_path / "out", sample=SAMPLE, **SAID["modelopt_layers"])
    found = finding(report, "C216")
    assert found.severity == "warning" and "C227" not in codes(report)
    said = re.search(r"step-0 accuracy ([\d.]+) -> ([\d.]+) %.* \(z = ([\d.]+)", found.found)
    assert said is not None and float(said[1]) > float(said[2]) + 3 and float(said[3]) > 4
    assert report.outcome == "converted"  # as NVIDIA's own engines would serve it
    assert report.proof is not None and report.proof.level == "agreement"


@pytest.mark.parametrize("name", ["modelopt_layers", "modelopt_midlayer"])
def test_a_sample_shows_where_it_costs_nothing(name: str) -> None:
    report = check(PRODUCERS / name, sample=SAMPLE, **SAID.get(name, {}))
    assert "C216" not in codes(report)
    found = finding(report, "C227")
    assert found.severity == "note" and found.message.endswith("that makes no difference to this drafter")


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    source = changed("modelopt_midlayer", tmp_path / "in", {"hidden_act": "swish_like_nothing"})
    report = check(source, sample=SAMPLE)
    assert {"C216", "N104"} <= set(codes(report))


def test_what_its_training_computed_otherwise_is_said() -> None:
    """Run by make_modelopt.py: 0.48 in the logits of step 0 with a_plain's weights."""
    assert "ModelOpt since 0.41" in finding(check(PRODUCERS / "modelopt_layers"), "C216").message
    assert "ModelOpt 0.41 and 0.42" in finding(check(PRODUCERS / "modelopt_midlayer"), "C216").message


def test_yarn_over_plain_rope() -> None:
    report = check(PRODUCERS / "modelopt_layers")
    assert report.drafter is not None and report.drafter.spec.rope.kind == "yarn"
    assert "--set rope_scaling=none" in finding(report, "C215").fix[0]
    for word, kind in (("none", "default"), ("config", "yarn")):
        report = check(PRODUCERS / "modelopt_layers", given={"rope_scaling": word})
        assert report.drafter is not None and report.drafter.spec.rope.kind == kind
        assert "C215" not in codes(report)
    done = eagle3("validate", PRODUCERS / "modelopt_layers", "--target", TARGET, "--set", "rope_scaling=none")
    assert done.returncode == 0 and "C215" not in done.stdout
    assert " ".join(done.stdout.split()).count("reads rope as theta 10000, yarn factor 32.0") >= 1
    assert eagle3("validate", PRODUCERS / "modelopt_layers", "--set", "rope_scaling=5").returncode == 2


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"architectures": ["LlamaForCausalLMEagle"]}, "EAGLE-1"),
        ({"eagle_config.use_mtp_layernorm": True}, "MTP"),
        ({"eagle_config.next_layer_regular": False}, "embedding again"),
    ],
)
def test_its_other_heads_are_refused(config: dict[str, Any], why: str, tmp_path: Path) -> None:
    found = finding(check(changed("modelopt_midlayer", tmp_path / "in", config)), "F112")
    assert why in found.message


# --- early speculators ---------------------------------------------------------------------------------------


def test_a_converter_that_lost_the_decoder_layer_is_told_of_and_a_sample_shows_it(tmp_path: Path) -> None:
    """speculators 0.2.0's own, run on specforge_sglang: what was named midlayer.* is as it was initialised."""
    source, lost = (load_file(PRODUCERS / name / "model.safetensors") for name in ("specforge_sglang", LOST))
    kept = {name for name in lost if name in source and torch.equal(lost[name], source[name])}
    assert kept == {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    assert torch.equal(lost["layers.0.hidden_norm.weight"], torch.ones(64, dtype=torch.bfloat16))
    assert "loses a decoder layer named midlayer" in finding(check(PRODUCERS / LOST), "C206").message
    assert "C206" not in codes(check(PRODUCERS / "speculators_010", aux=(1, 3, 5)))
    assert "all 7 matrices are at their random start" in finding(check(PRODUCERS / LOST), "T119").found
    report = run(PRODUCERS / LOST, tmp_path / "out", sample=SAMPLE, aux=(1, 3, 5), allow=("T119",))
    assert report.outcome == "refused" and "N106" in errors(report) and not (tmp_path / "out").exists()


def test_ids_that_the_converter_was_given_may_be_the_source_s(tmp_path: Path) -> None:
    """speculators 0.2.0 wrote SpecForge's 0, 2, 4 as they came."""
    found = finding(check(PRODUCERS / LOST), "A109")
    assert (found.found, found.expected) == ("read as embedding, layer 2, layer 4", "perhaps layer 1, layer 3, layer 5")
    trained = changed("speculators_0401", tmp_path / "in", {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]})
    assert "A109" not in codes(check(trained))


@pytest.mark.parametrize(
    ("release", "by", "points"),
    [
        ("0.1.0", "Eagle3Speculator", (2, 16, 29)),
        ("0.4.0.1", "Eagle3Speculator", (2, 16, 29)),  # converted: the default is the source's
        ("0.3.0", "Eagle3DraftModel", (3, 17, 30)),  # trained: states are those after the layers that are named
        ("0.4.0.1", "Eagle3DraftModel", (3, 17, 30)),
        ("0.5.0", "Eagle3DraftModel", (2, 16, 29)),
    ],
)
def test_points_that_early_speculators_does_not_write(
    release: str, by: str, points: tuple[int, ...], tmp_path: Path
) -> None:
    config = {"speculators_version": release, "architectures": [by]}
    report = check(changed("speculators_0401", tmp_path / "in", config), target=with_layers(tmp_path / "target", 32))
    assert report.drafter is not None and report.drafter.spec.capture_points == points
    assert "A105" in codes(report)


# --- AngelSlim, EAGLE, NeMo AutoModel, TorchSpec ------------------------------------------------------------


def test_a_rope_base_that_training_did_not_read() -> None:
    """The fixture states a million, and its own model computes with 10000 (make_angelslim.py)."""
    report = check(PRODUCERS / "angelslim", aux=(1, 3, 5))
    assert report.drafter is not None and report.drafter.spec.rope.theta == 10000
    found = finding(report, "C215")
    assert found.where == "rope_parameters.rope_theta" and "10000, is taken" in found.message
    report = check(PRODUCERS / "angelslim", aux=(1, 3, 5), given={"rope_theta": 1e6})
    assert report.drafter is not None and report.drafter.spec.rope.theta == 1e6 and "C215" not in codes(report)


def test_a_search_on_a_sample_tells_the_rope_base(tmp_path: Path) -> None:
    """SpecForge's rules take the config at its word; the drafter was trained with 10000."""
    source = changed("specforge_hf", tmp_path / "in", {"rope_theta": 1e6, "rope_parameters": None})
    report = check(source, sample=SAMPLE, find_wiring=True)
    assert report.proof is not None and report.proof.judgement is not None
    assert report.proof.judgement.of.rope_theta == 10000


def test_published_under_another_class_an_angelslim_drafter_is_told_of(tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLMEagle3"], "rope_theta": 1e6, "rope_parameters": None}
    report = check(changed("angelslim", tmp_path / "in", config), aux=(1, 3, 5))
    assert report.dialect is not None and report.dialect.name == "specforge"
    assert "nor by AngelSlim" in finding(report, "C215").message


@pytest.mark.parametrize("name", ["automodel", "angelslim"])
def test_without_ids_and_a_target_they_have_to_be_named(name: str) -> None:
    assert errors(check(PRODUCERS / name, target=None)) == ["A104"]
    assert "A101" in errors(check(PRODUCERS / name))  # six layers are too few for the default 2, L//2, L-3


def test_the_number_of_layers_in_automodel_s_config_is_the_target_s() -> None:
    config = json.loads((PRODUCERS / "automodel" / "config.json").read_text())
    report = check(PRODUCERS / "automodel", aux=(1, 3, 5))
    assert config["num_hidden_layers"] == 6 and report.drafter is not None
    assert report.drafter.spec.num_hidden_layers == 1


def test_automodel_s_full_vocabulary_and_norms(tmp_path: Path) -> None:
    def normed(tensors: dict[str, Any]) -> dict[str, Any]:
        norms = {f"model.fc_norm.{j}.weight": torch.ones(64, dtype=torch.bfloat16) for j in range(3)}
        return {**{n: t for n, t in tensors.items() if n not in ("d2t", "t2d")}, **norms,
                "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}  # fmt: skip

    config = {"draft_vocab_size": 512, "fc_norm": True, "norm_output": True}
    report = run(changed("automodel", tmp_path / "in", config, normed), tmp_path / "out", aux=(1, 3, 5))
    assert report.outcome == "converted" and report.drafter is not None
    assert report.drafter.spec.fc_norm and report.drafter.spec.norm_output


def eagle_of(folder: Path, config: dict[str, Any]) -> Path:
    """Imitated: what SafeAILab's training leaves, with the keys of its traineagle3/config.json."""
    folder.mkdir()
    tensors = load_file(PRODUCERS / "specforge_sglang" / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    shape = {k: v for k, v in json.loads((PRODUCERS / "specforge_sglang" / "config.json").read_text()).items()
             if k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
                      "draft_vocab_size", "rms_norm_eps", "hidden_act", "max_position_embeddings")}  # fmt: skip
    document = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1, "bos_token_id": 1,
                "eos_token_id": 2, "initializer_range": 0.02, "pad_token_id": 0, "tie_word_embeddings": False,
                "torch_dtype": "float16", "transformers_version": "4.46.0", "use_cache": True}  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**document, **shape, "torch_dtype": "bfloat16", **config}))
    return folder


@pytest.mark.parametrize(
    ("config", "found"),
    [({}, set()), ({"num_hidden_layers": 40, "bias": False}, set()), ({"rope_theta": 500000}, {"C215"})],
)
def test_an_eagle_drafter(config: dict[str, Any], found: set[str], tmp_path: Path) -> None:
    report = convert_for_both(eagle_of(tmp_path / "in", config), tmp_path / "out", sample=SAMPLE, aux=(1, 3, 5))
    assert report.dialect is not None and report.dialect.name == "eagle"
    assert report.outcome == "converted" and report.proof is not None and report.proof.level == "anchored"
    assert plain().proof is not None and report.proof.scores == plain().proof.scores  # type: ignore[union-attr]
    assert {"C204", "C215", "T101"} & set(codes(report)) == found
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["num_hidden_layers"] == 1 and written["rope_theta"] == 10000


def test_rope_of_a_kind_that_eagle_does_not_know_is_taken_as_it_stands(tmp_path: Path) -> None:
    """As of the drafter in TensorRT-LLM#6158: the class of the target, llama3 rope."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}  # fmt: skip
    report = check(eagle_of(tmp_path / "in", {"rope_theta": 500000.0, "rope_scaling": scaling}), aux=(1, 3, 5))
    assert report.drafter is not None and "C215" not in codes(report)
    assert (report.drafter.spec.rope.kind, report.drafter.spec.rope.theta) == ("llama3", 500000.0)


def torchspec_of(folder: Path, layer: str) -> Path:
    """Imitated: d_fcnorm_normout with the names that SGLang reads beside fc_norm."""
    folder.mkdir()
    tensors = load_file(DRAFTERS / "d_fcnorm_normout" / "model.safetensors")
    for j, name in enumerate(("low", "mid", "high")):
        tensors[f"aux_norm_{name}.weight"] = tensors.pop(f"fc_norm.{j}.weight")
    save_file({n.replace("layers.0", layer): t for n, t in tensors.items()}, folder / "model.safetensors")
    document = json.loads((PRODUCERS / "specforge_hf" / "config.json").read_text())
    own = json.loads((DRAFTERS / "d_fcnorm_normout" / "config.json").read_text())
    ids = [p - 1 for p in own["eagle_aux_hidden_state_layer_ids"]]
    document |= {"use_aux_norm": True, "norm_output": True, "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}
    (folder / "config.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize("layer", ["midlayer", "layers.0"])
def test_aux_norms(layer: str, tmp_path: Path) -> None:
    source = torchspec_of(tmp_path / "in", layer)
    report = convert_for_both(source, tmp_path / "out", sample=SAMPLE)
    expected = trained("d_fcnorm_normout")
    assert report.dialect is not None and report.dialect.name == "torchspec"
    assert report.outcome == "converted" and report.proof is not None and expected.proof is not None
    assert report.proof.scores == expected.proof.scores and report.proof.level == "anchored"
    assert "C204" not in codes(report) and "A109" in codes(check(source))


def test_states_that_the_ids_named_do_not_say_what_the_ids_mean(tmp_path: Path) -> None:
    """A trainer's folder is labelled by the drafter's own ids, whichever way these are read."""
    from tests.test_wiring import trainers_folder

    folder = trainers_folder(tmp_path, (1, 3, 5, 6))
    source = PRODUCERS / "specforge_hf"
    assert "A109" in codes(check(source, "sglang", sample=folder))
    assert "A109" not in codes(check(source, "sglang", sample=folder, sample_points=(1, 3, 5, 6)))
    assert "A109" not in codes(check(source, "sglang", sample=SAMPLE))


def test_a_tensor_under_two_names_is_there_twice(tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(PRODUCERS / "specforge_hf", source)
    tensors = load_file(source / "model.safetensors")
    tensors["layers.0.hidden_norm.weight"] = tensors["midlayer.hidden_norm.weight"].clone()
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    [twice] = [f for f in check(source).findings if f.code == "T102"]
    named = ("midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight")
    assert twice.severity == "error" and twice.where in named
    assert twice.message.endswith("are the same tensor under two names") and all(n in twice.message for n in named)

"""`eagle3 diff`: what differs between two drafters, exactly, whatever their forms."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from converter.checkpoint.reader import open_checkpoint
from converter.look.diff import Difference, diff
from converter.look.inspect import inspect
from converter.look.subject import Asked
from converter.look.values import Stored, compare_tensors
from converter.report.differing import as_json
from converter.report.inspected import as_json as inspected_json
from tests.support import DRAFTERS, NAMES, PRODUCERS, TARGET, Config, Tensors, copy_of, eagle3, errors, run
from tests.test_cli import imported
from tests.test_forms import to as written
from tests.test_fused import fuse
from tests.test_inspect import on_a_terminal, without_styles
from tests.test_producers import DIALECTS

PLAIN = DRAFTERS / "a_plain"
# What each engine refuses, as docs/engines.md has it.
REFUSED = {
    "sglang==0.5.23": {"b_nbr", "f_qwen3", "j_attnbias", "l_defaults"},
    "vllm==0.33.0": set[str](),
}


def compared(a: Path, b: Path, **options: Any) -> dict[str, Any]:
    found = as_json(diff(str(a), str(b), Asked(**{"target": TARGET, **options})))
    return json.loads(json.dumps(found, allow_nan=False))  # type: ignore[no-any-return]


def field(found: dict[str, Any], name: str) -> dict[str, Any]:
    [row] = [row for row in (*found["wiring"]["fields"], *found["spec"]) if row["field"] == name]
    return dict(row)


def tensor(found: dict[str, Any], name: str) -> dict[str, Any]:
    [row] = [row for row in found["tensors"] if row["name"] == name]
    return dict(row)


def unlike(found: dict[str, Any]) -> list[str]:
    """Everything that differs, by name."""
    rows = [*found["wiring"]["fields"], *found["spec"]]
    names = [row["field"] for row in rows if row["same"] is False]
    names += [] if found["wiring"]["map"]["same"] else ["map"]
    names += [row["name"] for row in found["tensors"] if not row["same"]]
    return names + [row["key"] for row in found["config"] if row["meaning"] in ("unknown", "carried")]


# --- a drafter and its own conversion -----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", REFUSED)
@pytest.mark.parametrize("name", NAMES)
def test_a_drafter_and_its_own_conversion_are_the_same(name: str, engine: str, tmp_path: Path) -> None:
    report = run(DRAFTERS / name, tmp_path / "out", engine)
    assert (report.outcome == "refused") == (name in REFUSED[engine])
    if report.outcome == "refused":
        assert not (tmp_path / "out").exists()
        return
    found = compared(DRAFTERS / name, tmp_path / "out")
    assert found["same"] and unlike(found) == []
    assert found["a"]["dialect"] == "speculators" and found["b"]["read_as"] == engine
    by_relation = {row["relation"] for row in found["tensors"] if not row["meaning"]}
    assert by_relation == {"equal"}
    stored = load_file(DRAFTERS / name / "model.safetensors").keys() - {"d2t", "t2d"}
    assert {row["a"] for row in found["tensors"] if not row["meaning"]} == stored


# Drafters whose points follow from the target's depth alone: 2, 5 and 7 of a target of 10 layers.
WITHOUT_IDS = ("angelslim", "automodel", "automodel_mla", "speculators_010", "speculators_0401")
# Drafter and engine: the codes that stop the conversion. Where it goes through, the output is the same drafter.
STOPPED = {
    ("automodel_mla", "llama.cpp"): ["K141"],
    ("automodel_mla", "tensorrt-llm"): ["K141"],
    ("specforge_peagle", "llama.cpp"): ["K102", "K140"],
    ("specforge_peagle", "sglang"): ["K140"],
    ("specforge_peagle", "tensorrt-llm"): ["K102", "K140"],
    ("speculators_020", "tensorrt-llm"): ["K121"],
    ("speculators_peagle", "llama.cpp"): ["K102", "K140"],
    ("speculators_peagle", "sglang"): ["K140"],
    ("speculators_peagle", "tensorrt-llm"): ["K102", "K140"],
}


def target_of(name: str, folder: Path) -> Path:
    """The drafters' target, or its config with 10 layers."""
    if name not in WITHOUT_IDS:
        return TARGET
    document = json.loads((TARGET / "config.json").read_text())
    (folder / "target.json").write_text(json.dumps({**document, "num_hidden_layers": 10}))
    return folder / "target.json"


@pytest.mark.parametrize("engine", ["sglang", "vllm", "llama.cpp", "tensorrt-llm"])
@pytest.mark.parametrize("name", sorted(p.name for p in PRODUCERS.iterdir()))
def test_every_producer_s_drafter_is_its_own_conversion_and_the_engine_sees_it_so(
    name: str, engine: str, tmp_path: Path
) -> None:
    source, out, target = PRODUCERS / name, tmp_path / "out", target_of(name, tmp_path)
    said = {"mask_token_id": 3} if name == "specforge_peagle" else {}  # which SpecForge writes nowhere
    report = run(
        source, out, engine, target=target, given=said, allow=("T119",)
    )  # speculators_020's layer is untrained
    assert errors(report) == STOPPED.get((name, engine), [])
    if report.outcome != "converted":
        return
    found = compared(source, out, target=target)
    assert unlike(found) == list(said) and found["same"] == (not said) and found["wiring"]["same"]
    look = inspected_json(inspect(str(out), Asked((engine,), target)))
    [seen] = json.loads(json.dumps(look, allow_nan=False))["engines"]
    assert (seen["unreadable"], seen["stops"], seen["differs"], seen["missing"], seen["ignored"]) == (
        "",
        "",
        [],
        [],
        [],
    )
    if engine == "tensorrt-llm":
        assert (seen["points"], seen["as_trained"]) == (None, None) and "where it is launched" in seen["unknown"]
        assert look["points"]["trained"] is None and look["unsaid"].keys() == {"capture_points"}
    else:
        assert seen["as_trained"] is True


def test_an_output_that_names_no_points_has_its_blocks_in_layer_order(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", lambda c: c.update(eagle_aux_hidden_state_layer_ids=[5, 1, 3]))
    run(source, tmp_path / "out", "tensorrt-llm")
    for a, b, order in ((source, tmp_path / "out", [1, 2, 0]), (tmp_path / "out", source, [2, 0, 1])):
        found = compared(a, b)
        assert found["same"] and field(found, "capture_points")["same"] is None
        assert (tensor(found, "fc.weight")["relation"], tensor(found, "fc.weight")["order"]) == ("permuted", order)
    weights = load_file(tmp_path / "out" / "model.safetensors")
    source_fc = load_file(source / "model.safetensors")["fc.weight"]
    save_file({**weights, "fc.weight": source_fc}, tmp_path / "out" / "model.safetensors")
    assert unlike(compared(source, tmp_path / "out")) == ["fc.weight"]


def test_fused_tensors_are_held_against_their_parts(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", tensors=fuse)
    run(source, tmp_path / "out")
    for other in (tmp_path / "out", PLAIN):
        found = compared(source, other)
        assert found["same"] and unlike(found) == []
        assert {row["relation"] for row in found["tensors"] if not row["meaning"]} == {"equal"}
    q = tensor(found, "layers.0.self_attn.q_proj.weight")
    assert (q["a"], q["b"]) == ("layers.0.self_attn.qkv_proj.weight[0:64]", "layers.0.self_attn.q_proj.weight")


def test_mask_hidden_moves_with_the_blocks_of_fc(tmp_path: Path) -> None:
    shutil.copytree(PRODUCERS / "speculators_peagle", tmp_path / "in")
    config = json.loads((tmp_path / "in" / "config.json").read_text())
    config["eagle_aux_hidden_state_layer_ids"] = [5, 1, 3]
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    run(tmp_path / "in", tmp_path / "out", "vllm")
    found = compared(tmp_path / "in", tmp_path / "out")
    assert found["same"]
    for name in ("fc.weight", "mask_hidden"):
        assert (tensor(found, name)["relation"], tensor(found, name)["order"]) == ("permuted", [1, 2, 0])


@pytest.mark.parametrize("form", ["specforge", "modelopt", "speculators"])
def test_a_form_written_for_a_trainer_is_the_same_drafter(form: str, tmp_path: Path) -> None:
    written(PLAIN, tmp_path / "out", form)
    found = compared(PLAIN, tmp_path / "out")
    assert found["same"] and unlike(found) == []
    assert (found["b"]["dialect"], found["b"]["read_as"]) == (form, "")
    assert "written by this tool" in " ".join(
        eagle3("diff", PLAIN, tmp_path / "out", "--target", TARGET).stdout.split()
    )


@pytest.mark.parametrize("points", [[5, 1, 3], [3, 1, 5], [5, 3, 1]])
@pytest.mark.parametrize("name", ["a_plain", "d_fcnorm_normout", "c_nbfc"])
def test_ids_out_of_order_move_the_blocks_of_fc_and_diff_says_how(name: str, points: list[int], tmp_path: Path) -> None:
    def unsorted(config: Config) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = points

    source = copy_of(name, tmp_path / "in", unsorted)
    run(source, tmp_path / "out")
    found = compared(source, tmp_path / "out")
    order = [points.index(p) for p in (1, 3, 5)]
    assert found["same"] and found["wiring"]["order"] == order
    assert (field(found, "capture_points")["a"], field(found, "capture_points")["b"]) == (points, [1, 3, 5])
    fc = tensor(found, "fc.weight")
    assert (fc["relation"], fc["order"], fc["expected_order"]) == ("permuted", order, order)
    if name == "d_fcnorm_normout":
        assert [tensor(found, f"fc_norm.{i}.weight")["a"] for i in range(3)] == [f"fc_norm.{j}.weight" for j in order]
    if name == "c_nbfc":
        assert tensor(found, "input_norm.weight")["order"] == order
    done = eagle3("diff", source, tmp_path / "out")
    assert done.returncode == 0
    assert done.stdout.startswith("The same drafter, its blocks of fc in another order, as its capture points are.\n")
    back = compared(tmp_path / "out", source)
    assert back["same"] and tensor(back, "fc.weight")["order"] == [order.index(i) for i in range(3)]


def test_points_in_another_order_over_the_same_fc_are_another_drafter(tmp_path: Path) -> None:
    def unsorted(config: Config) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = [5, 1, 3]

    found = compared(PLAIN, copy_of("a_plain", tmp_path / "b", unsorted))
    fc = tensor(found, "fc.weight")
    assert not found["same"] and unlike(found) == ["fc.weight"]
    assert (fc["relation"], fc["order"], fc["expected_order"]) == ("equal", [], [2, 0, 1])


def test_blocks_that_moved_while_the_points_stayed_are_found(tmp_path: Path) -> None:
    def swap(tensors: Tensors) -> None:
        first, second, third = tensors["fc.weight"].chunk(3, dim=1)
        tensors["fc.weight"] = torch.cat([third, second, first], dim=1).contiguous()

    b = copy_of("a_plain", tmp_path / "b", tensors=swap)
    found = compared(PLAIN, b)
    assert unlike(found) == ["fc.weight"]
    assert (tensor(found, "fc.weight")["relation"], tensor(found, "fc.weight")["order"]) == ("permuted", [2, 1, 0])
    done = eagle3("diff", PLAIN, b)
    assert done.returncode == 1 and done.stdout.startswith("They differ: fc.weight.\n")
    told = " ".join(done.stdout.split())
    assert "with a's blocks in the order 3, 2, 1, though the capture points ask for them in the order of a" in told


@pytest.mark.parametrize("name", [n for n in DIALECTS if n != "modelopt_layers"])
def test_the_same_drafter_in_another_trainer_s_form_is_the_same(name: str) -> None:
    """All of them carry the weights of a_plain. Some write no ids, and their default is not what it was trained on;
    early releases of speculators write fp32, in the config or in the weights too.
    """
    found = compared(PLAIN, PRODUCERS / name)
    expected = {
        "automodel": ["capture_points"], "angelslim": ["capture_points"],
        "speculators_010": ["capture_points", "dtype"], "speculators_0401": ["capture_points", "dtype"],
    }.get(name, [])  # fmt: skip
    assert unlike(found) == expected and found["same"] == (not expected)
    rows = [row for row in found["tensors"] if not row["meaning"]]
    relation = "equal values" if name == "speculators_010" else "equal"
    assert len(rows) >= 13 and all(row["relation"] == relation for row in rows)


def test_modelopt_s_yarn_is_the_one_difference() -> None:
    found = compared(PLAIN, PRODUCERS / "modelopt_layers")
    assert unlike(found) == ["rope"]
    assert field(found, "rope")["b"] == {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 32.0, "original_max_position_embeddings": 2048,
    }  # fmt: skip
    assert field(found, "embedding") == {
        "field": "embedding", "a": "own, the target's rows", "b": "none of its own, so the target's", "same": True,
        "words": "",
    }  # fmt: skip
    blind = compared(PLAIN, PRODUCERS / "modelopt_layers", target=None)
    assert unlike(blind) == ["rope", "embedding", "embed_tokens.weight"]  # without the target nobody knows


def test_points_that_nobody_knows_are_the_same_where_the_default_is(tmp_path: Path) -> None:
    shutil.copytree(PRODUCERS / "angelslim", tmp_path / "copy")
    same = compared(PRODUCERS / "angelslim", tmp_path / "copy", target=None)
    assert same["same"] and field(same, "capture_points")["a"] == "2, L//2, L-3 of the target's L layers"
    assert "capture_points" in unlike(compared(PLAIN, PRODUCERS / "angelslim", target=None))


# --- what differs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"norm_output": True}, ["norm_output"]),
        ({"norm_before_residual": True}, ["norm_before_residual"]),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, ["capture_points"]),
        ({"something": 1}, ["something"]),
        ({"transformers_version": "4.57.0", "embed_requires_grad": True}, []),
        ({"quantization_config": {"quant_method": "fp8"}}, ["quantization_config.quant_method"]),
    ],
)
def test_what_a_config_key_changes(edit: Config, expected: list[str], tmp_path: Path) -> None:
    found = compared(PLAIN, copy_of("a_plain", tmp_path / "b", lambda config: config.update(edit)))
    assert unlike(found) == expected and found["same"] == (not expected)
    assert {row["key"].partition(".")[0] for row in found["config"]} == set(edit)


def test_other_spec_fields_and_rope(tmp_path: Path) -> None:
    def change(config: Config) -> None:
        layer = config["transformer_layer_config"]
        layer["rms_norm_eps"] = 1e-6
        layer["rope_parameters"]["rope_theta"] = 500000.0

    found = compared(PLAIN, copy_of("a_plain", tmp_path / "b", change))
    assert unlike(found) == ["rope", "rms_norm_eps"]
    assert (field(found, "rms_norm_eps")["a"], field(found, "rms_norm_eps")["b"]) == (1e-5, 1e-6)
    assert {row["meaning"] for row in found["config"]} == {"read"}


def test_maps_by_target_ids_whatever_their_form(tmp_path: Path) -> None:
    ids = load_file(PLAIN / "model.safetensors")["d2t"] + torch.arange(384)

    def absolute(tensors: Tensors) -> None:
        tensors["d2t"] = ids.clone()

    same = compared(PLAIN, copy_of("a_plain", tmp_path / "same", tensors=absolute))
    assert same["same"] and same["wiring"]["map"]["differing"] == 0

    def exchange(tensors: Tensors) -> None:
        tensors["d2t"][10], tensors["d2t"][20] = ids[20] - 10, ids[10] - 20

    moved = compared(PLAIN, copy_of("a_plain", tmp_path / "moved", tensors=exchange))
    assert unlike(moved) == ["map", "d2t"]  # not t2d, whose bytes are the same
    assert moved["wiring"]["map"] == {
        "same": False, "size_a": 384, "size_b": 384, "stored_a": "offsets", "stored_b": "offsets", "differing": 2,
        "same_ids": True,
        "first": [
            {"draft": 10, "a": int(ids[10]), "b": int(ids[20])}, {"draft": 20, "a": int(ids[20]), "b": int(ids[10])},
        ],
    }  # fmt: skip
    text = eagle3("diff", PLAIN, tmp_path / "moved").stdout
    assert "2 of 384 entries differ, the same target ids in another order" in text
    assert f"draft id 10 -> target id {ids[10]} in a, {ids[20]} in b" in text


def test_maps_of_other_sizes_and_none(tmp_path: Path) -> None:
    found = compared(PLAIN, DRAFTERS / "h_fullvocab")
    assert (found["wiring"]["map"]["size_a"], found["wiring"]["map"]["size_b"]) == (384, 512)
    assert "draft_vocab_size" in unlike(found) and tensor(found, "lm_head.weight")["relation"] == "shape"

    def lose(tensors: Tensors) -> None:
        del tensors["d2t"], tensors["t2d"]

    lost = copy_of("a_plain", tmp_path / "lost", tensors=lose)
    found = compared(PLAIN, lost, target=None)
    assert unlike(found) == ["map", "d2t", "t2d"] and found["wiring"]["map"]["size_b"] is None
    shutil.copytree(lost, tmp_path / "copy")
    both = compared(lost, tmp_path / "copy", target=None)  # nothing to read on either side, nothing differs
    assert both["same"] and both["wiring"]["same"] and both["wiring"]["map"]["same"]
    recovered = compared(PLAIN, lost)  # the trainer froze the head, whose rows give the map back
    assert recovered["same"] and recovered["wiring"]["map"]["stored_b"] == "head"
    assert "in b recovered from the head's rows" in eagle3("diff", PLAIN, lost, "--target", TARGET).stdout


def test_a_vocabulary_that_no_file_could_hold_takes_no_time(tmp_path: Path) -> None:
    def vast(config: Config) -> None:
        config["draft_vocab_size"] = config["transformer_layer_config"]["vocab_size"] = 2**40

    found = compared(DRAFTERS / "h_fullvocab", copy_of("h_fullvocab", tmp_path / "b", vast))
    sizes = found["wiring"]["map"]
    assert (sizes["size_a"], sizes["size_b"]) in ((512, 2**40), (512, None)) and not found["same"]
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    assert compared(tmp_path / "b", tmp_path / "c")["same"]


def test_how_far_values_are_apart(tmp_path: Path) -> None:
    """Against numpy in float64, and a fault in one value alone."""
    before = load_file(PLAIN / "model.safetensors")["lm_head.weight"]

    def disturb(tensors: Tensors) -> None:
        generator = torch.Generator().manual_seed(7)
        head = tensors["lm_head.weight"].float()
        tensors["lm_head.weight"] = (head + 0.01 * torch.randn(head.shape, generator=generator)).bfloat16()
        tensors["norm.weight"][3] += 1

    b = copy_of("a_plain", tmp_path / "b", tensors=disturb)
    found = compared(PLAIN, b)
    assert unlike(found) == ["lm_head.weight", "norm.weight"]
    x = before.double().numpy()
    y = load_file(b / "model.safetensors")["lm_head.weight"].double().numpy()
    m = tensor(found, "lm_head.weight")["measures"]
    assert (m["elements"], m["differing"], m["not_finite"]) == (24576, int((x != y).sum()), 0)
    assert m["max_abs"] == np.abs(y - x).max()
    assert m["relative"] == pytest.approx(np.linalg.norm(y - x) / np.linalg.norm(x), rel=1e-12)
    assert m["cosine"] == pytest.approx((x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y), rel=1e-12)
    assert tensor(found, "norm.weight")["measures"]["differing"] == 1


def test_values_that_are_no_numbers_are_counted_apart(tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors["norm.weight"][:2] = torch.tensor([float("nan"), float("inf")], dtype=torch.bfloat16)

    b = copy_of("a_plain", tmp_path / "b", tensors=spoil)
    m = tensor(compared(PLAIN, b), "norm.weight")["measures"]
    assert (m["differing"], m["not_finite"], m["max_abs"], m["relative"]) == (2, 2, 0.0, 0.0)
    assert compared(b, b)["same"]  # equal bytes are equal, whatever they hold


def test_a_cast_is_told_from_another_training(tmp_path: Path) -> None:
    def widen(tensors: Tensors) -> None:
        for name in tensors:
            if name not in ("d2t", "t2d"):
                tensors[name] = tensors[name].float()

    wide = copy_of("a_plain", tmp_path / "wide", lambda config: config.update(dtype="float32"), widen)
    found = compared(PLAIN, wide)
    assert unlike(found) == ["dtype"]
    assert {row["relation"] for row in found["tensors"] if not row["meaning"]} == {"equal values"}

    def nudge(tensors: Tensors) -> None:
        for name in ("fc.weight", "norm.weight"):
            tensors[name] = tensors[name].float() * (1 + 2**-12)  # less than half a step of bf16

    found = compared(PLAIN, copy_of("a_plain", tmp_path / "nudged", tensors=nudge))
    assert unlike(found) == ["fc.weight", "norm.weight"]
    assert {tensor(found, n)["relation"] for n in unlike(found)} == {"equal when rounded"}


def test_missing_surplus_and_misshapen_tensors(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        del tensors["layers.0.mlp.up_proj.weight"]
        tensors["adapter.weight"] = torch.zeros(2)
        tensors["verifier_norm.weight"] = torch.ones(64)
        tensors["norm.weight"] = torch.ones(32, dtype=torch.bfloat16)

    b = copy_of("a_plain", tmp_path / "b", tensors=change)
    found = compared(PLAIN, b)
    assert unlike(found) == ["layers.0.mlp.up_proj.weight", "norm.weight", "adapter.weight"]
    assert tensor(found, "layers.0.mlp.up_proj.weight")["relation"] == "only in a"
    assert tensor(found, "adapter.weight")["relation"] == "only in b"
    assert tensor(found, "verifier_norm.weight")["meaning"] == "the target's final norm, used only in training"
    text = " ".join(eagle3("diff", PLAIN, b).stdout.split())
    assert "norm.weight: of different shapes: a BF16 [64]; b BF16 [32]" in text
    assert "layers.0.mlp.up_proj.weight (only in a)" in text


def test_quantised_weights_are_not_held_against_plain_ones(tmp_path: Path) -> None:
    def quantise(tensors: Tensors) -> None:
        name = "layers.0.mlp.up_proj"
        tensors[f"{name}.weight"] = (tensors[f"{name}.weight"].float() * 100).to(torch.float8_e4m3fn)
        tensors[f"{name}.weight_scale"] = torch.tensor([0.01])

    def declare(config: Config) -> None:
        config["quantization_config"] = {"quant_method": "fp8"}

    b = copy_of("a_plain", tmp_path / "b", declare, quantise)
    found = compared(PLAIN, b)
    name = "layers.0.mlp.up_proj.weight"
    assert unlike(found) == [name, f"{name}_scale", "quantization_config.quant_method"]
    assert tensor(found, name)["relation"] == "not compared"
    run(b, tmp_path / "out")
    assert compared(b, tmp_path / "out")["same"]


def test_both_names_of_a_tensor_are_compared(tmp_path: Path) -> None:
    """An output for both engines holds a later layer's norm under two names."""
    from converter.pipeline import convert
    from tests.support import quiet, request

    source = DRAFTERS / "e_2layers"
    convert(request(source, out=tmp_path / "out", engines=tuple(REFUSED), target=TARGET), quiet)
    found = compared(source, tmp_path / "out")
    twins = [row for row in found["tensors"] if row["name"] == "layers.1.input_layernorm.weight"]
    assert {row["b"] for row in twins} == {"layers.1.hidden_norm.weight", "layers.1.input_layernorm.weight"}
    assert found["same"]
    weights = load_file(tmp_path / "out" / "model.safetensors")
    weights["layers.1.input_layernorm.weight"][0] += 1
    save_file(weights, tmp_path / "out" / "model.safetensors")
    assert unlike(compared(source, tmp_path / "out")) == ["layers.1.input_layernorm.weight"]


def test_what_an_output_leaves_to_the_launch_command_is_said_and_not_judged(tmp_path: Path) -> None:
    def narrow(config: Config) -> None:
        config["transformer_layer_config"] |= {"layer_types": ["sliding_attention"], "sliding_window": 64}

    source = copy_of("a_plain", tmp_path / "in", narrow)
    run(source, tmp_path / "out")
    found = compared(source, tmp_path / "out")
    windows = field(found, "layer_windows")
    assert (windows["a"], windows["b"], windows["same"]) == ([64], [None], None)
    assert "--speculative-draft-window-size" in windows["words"] and found["same"]
    assert "--speculative-draft-window-size" in eagle3("diff", source, tmp_path / "out").stdout


def test_a_changed_output_is_found_out(tmp_path: Path) -> None:
    run(PLAIN, tmp_path / "out")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    weights["midlayer.mlp.up_proj.weight"][5, 5] *= 2
    save_file(weights, tmp_path / "out" / "model.safetensors")
    file = tmp_path / "out" / "config.json"
    config = json.loads(file.read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 2, 3]
    file.write_text(json.dumps({**config, "mine": 1}))
    found = compared(PLAIN, tmp_path / "out")
    assert unlike(found) == ["capture_points", "layers.0.mlp.up_proj.weight", "mine"]
    assert tensor(found, "layers.0.mlp.up_proj.weight")["measures"]["differing"] == 1


# --- tensors, streamed ----------------------------------------------------------------------------------------------


def stored(folder: Path, values: torch.Tensor) -> Stored:
    folder.mkdir(parents=True)
    save_file({"x": values.contiguous()}, folder / "model.safetensors")
    return Stored(open_checkpoint(folder), "x")


def test_large_tensors_are_read_in_parts_and_compared_to_the_end(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(3000, 3 * 1024, generator=generator)  # 37 MB: several parts
    b = torch.cat([a[:, 2048:], a[:, :1024], a[:, 1024:2048]], dim=1)
    one, other = stored(tmp_path / "a", a), stored(tmp_path / "b", b)
    assert compare_tensors(one, other, (2, 0, 1), 3).relation == "permuted"
    assert compare_tensors(one, other, (), 3).order == (2, 0, 1)
    b[-1, -1] += 1
    last = compare_tensors(one, stored(tmp_path / "c", b), (2, 0, 1), 3)
    assert last.relation == "differs" and last.measures is not None
    assert last.measures.differing == 1 and last.measures.max_abs == pytest.approx(1)
    alone = compare_tensors(one, stored(tmp_path / "d", b))
    assert alone.measures is not None and alone.measures.cosine == pytest.approx(0, abs=0.01)


def test_equal_blocks_stay_where_they_are(tmp_path: Path) -> None:
    block = torch.arange(12.0).reshape(3, 4)
    a = torch.cat([block, block, block + 1, block + 1], dim=1)
    b = torch.cat([block + 1, block, block, block + 1], dim=1)
    found = compare_tensors(stored(tmp_path / "a", a), stored(tmp_path / "b", b), (), 4)
    assert found.relation == "permuted" and found.order == (2, 1, 0, 3)
    c = torch.cat([block, block, block, block + 1], dim=1)  # one of a's blocks twice, another not at all
    assert compare_tensors(stored(tmp_path / "c", a), stored(tmp_path / "e", c), (), 4).relation == "differs"


@pytest.mark.parametrize(
    ("a", "b", "relation", "differing"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int32), "equal values", None),
        (torch.tensor([1, 2]), torch.tensor([1, 3], dtype=torch.int32), "differs", 1),
        (torch.tensor([True, False]), torch.tensor([True, True]), "differs", 1),
        (torch.tensor([0.0]), torch.tensor([-0.0]), "equal values", None),
        (torch.tensor(2.0), torch.tensor(2.0), "equal", None),
        (torch.zeros(0, 3), torch.zeros(0, 3), "equal", None),
        (torch.tensor([1.0, 3.0]).double(), torch.tensor([1.0, 3.0 + 1e-9], dtype=torch.float64), "differs", 1),
        (torch.tensor([1]), torch.tensor([1.0]), "not compared", None),
        (torch.zeros(2), torch.ones(2), "differs", 2),
    ],
)  # fmt: skip
def test_kinds_of_values(
    a: torch.Tensor, b: torch.Tensor, relation: str, differing: int | None, tmp_path: Path
) -> None:
    found = compare_tensors(stored(tmp_path / "a", a), stored(tmp_path / "b", b))
    assert found.relation == relation
    assert (found.measures.differing if found.measures is not None else None) == differing
    assert found.measures is None or found.measures.relative is None or found.measures.relative > 0


def test_measures_of_values_whose_squares_go_beyond_64_bits(tmp_path: Path) -> None:
    """So small that they vanish, or so large that they overflow: what cannot be said is None, and no error."""
    ones = torch.ones(4, dtype=torch.float64)
    for name, size, cosine in (("small", 1e-120, 1.0), ("tiny", 1e-170, None), ("large", 1e200, None)):
        found = compare_tensors(
            stored(tmp_path / f"a_{name}", size * ones), stored(tmp_path / f"b_{name}", 2 * size * ones)
        )
        m = found.measures
        assert m is not None and (m.differing, m.max_abs) == (4, pytest.approx(size))
        assert (m.cosine, m.relative) == (cosine and pytest.approx(cosine), cosine and pytest.approx(1.0))
    found = compare_tensors(stored(tmp_path / "a", 1.5e308 * ones), stored(tmp_path / "b", -1.5e308 * ones))
    assert found.measures is not None and found.measures.max_abs is None


# --- on the terminal ------------------------------------------------------------------------------------------------


def test_exit_codes(tmp_path: Path) -> None:
    assert eagle3("diff", PLAIN, PLAIN).returncode == 0
    assert eagle3("diff", PLAIN, DRAFTERS / "b_nbr").returncode == 1
    assert eagle3("diff", PLAIN).returncode == 2
    for unreadable in (TARGET, tmp_path / "nothing"):
        done = eagle3("diff", PLAIN, unreadable)
        assert done.returncode == 3 and done.stdout == "" and str(unreadable) in done.stderr

    def wrong(config: Config) -> None:
        config["transformer_layer_config"]["hidden_size"] = "wide"

    done = eagle3("diff", copy_of("a_plain", tmp_path / "in", wrong), PLAIN)
    assert done.returncode == 3 and "error C203" in done.stderr


def test_the_same_drafter_is_said_in_the_first_line_and_on_one_screen() -> None:
    done = eagle3("diff", PLAIN, PRODUCERS / "specforge_hf")
    lines = done.stdout.splitlines()
    assert lines[0] == "The same drafter." and len(lines) <= 15
    assert "14 are equal, byte for byte, 10 under another name" in done.stdout


def test_it_fits_a_narrow_terminal() -> None:
    lines = [without_styles(line) for line in on_a_terminal(60, "diff", PLAIN, DRAFTERS / "c_nbfc")]
    short = [line for line in lines if "tests/data" not in line and not line.startswith("They differ")]
    assert short and all(len(line) <= 60 for line in short)
    assert "fc.weight: differ in" in " ".join(" ".join(lines).split())


def test_verbose_shows_every_key_and_tensor() -> None:
    shown = " ".join(eagle3("diff", PLAIN, PRODUCERS / "specforge_hf", "-v").stdout.split())
    assert "layers.0.mlp.up_proj.weight / midlayer.mlp.up_proj.weight: equal" in shown
    assert "speculators_version = '0.9.0', only in a (means nothing)" in shown
    assert "head_dim the same: 16" in shown


def test_hostile_keys_are_escaped(tmp_path: Path) -> None:
    b = copy_of("a_plain", tmp_path / "b", lambda config: config.update({"k\x1b[2J": "v\u202e"}))
    done = eagle3("diff", PLAIN, b)
    assert "\x1b" not in done.stdout and "\u202e" not in done.stdout and "k\\u001b[2J" in done.stdout


def test_it_imports_no_torch() -> None:
    modules = imported("diff", PLAIN, PRODUCERS / "specforge_hf")
    assert not modules & {"torch", "transformers", "safetensors", "jsonschema", "huggingface_hub"}


def test_a_difference_knows_its_sides() -> None:
    found: Difference = diff(str(PLAIN), str(PRODUCERS / "specforge_hf"), Asked(target=TARGET))
    assert found.a.dialect is not None and found.b.dialect is not None
    assert (found.a.dialect.name, found.b.dialect.name) == ("speculators", "specforge")

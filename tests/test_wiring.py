"""A wrong wiring is seen on a sample, a right one is not accused, and a search finds what was trained."""

from __future__ import annotations

import functools
import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from converter.drafter.spec import NORM_FLAGS
from converter.errors import InputError
from converter.forward.contrast import Contrast
from converter.forward.wiring import Wiring, neighbours
from converter.pipeline import Report
from tests.support import (
    DATA,
    DRAFTERS,
    NAMES,
    SAMPLE,
    Config,
    Tensors,
    check,
    codes,
    copy_of,
    errors,
    run,
    sample_without_point_0,
)

# A release that serves each whole; a_plain and most others are served by several.
ENGINE = {
    name: "sglang==0.5.23" if name in "a_plain c_nbfc d_fcnorm_normout g_aux024" else "vllm==0.33.0" for name in NAMES
}


def cut(tmp_path: Path, tokens: int, source: Path = SAMPLE, keep: tuple[str, ...] = ("s0",)) -> Path:
    """Some sequences of a sample, their masks zero after the first `tokens` tokens that count."""
    tensors = {k: v for k, v in load_file(source).items() if k.split(".")[0] in keep}
    for name in keep:
        mask = tensors[f"{name}.loss_mask"]
        mask[mask.cumsum(0) > tokens] = 0
    file = tmp_path / f"cut-{tokens}.safetensors"
    save_file(tensors, file)
    return file


# --- convert: neighbours of the declared wiring ---------------------------------------------------------------


@functools.cache
def healthy(name: str) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        return run(DRAFTERS / name, Path(folder) / "out", ENGINE[name], sample=SAMPLE)


@pytest.mark.parametrize("name", NAMES)
def test_no_healthy_drafter_is_accused(name: str) -> None:
    report = healthy(name)
    assert report.outcome == "converted"
    assert report.proof is not None and report.proof.level == "anchored"
    assert not {"A301", "N106", "N107", "N108"} & set(codes(report))
    assert report.proof.judgement is not None
    assert report.proof.judgement.those("better", "undecided") == []
    assert len(report.proof.judgement.others) >= 15


# Permutations, shifts and other sets; on 24 sequences they cost 3 to 40 points of an accuracy of 59 %.
WRONG_POINTS = [
    *[(1, 5, 3), (3, 1, 5), (3, 5, 1), (5, 1, 3), (5, 3, 1)],
    *[(0, 2, 4), (2, 4, 6), (0, 1, 2), (1, 3, 4), (1, 3, 6), (4, 5, 6)],
]


@pytest.mark.parametrize("points", WRONG_POINTS)
def test_wrong_points_are_caught_and_nothing_is_written(points: tuple[int, ...], tmp_path: Path) -> None:
    def declare(config: Config) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = list(points)

    report = run(copy_of("a_plain", tmp_path / "in", declare), tmp_path / "out", sample=SAMPLE)
    last = ["K122"] if 6 in points else []  # which SGLang cannot hand out besides
    assert errors(report) == ["A301", *last]
    assert not (tmp_path / "out").exists()
    [finding] = [f for f in report.findings if f.code == "A301"]
    assert finding.fix and "--aux" in finding.fix[0]


def test_the_better_neighbour_is_the_trained_one_where_it_is_a_neighbour(tmp_path: Path) -> None:
    def declare(config: Config) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = [2, 4, 6]

    report = run(copy_of("a_plain", tmp_path / "in", declare), tmp_path / "out", sample=SAMPLE)
    [finding] = [f for f in report.findings if f.code == "A301"]
    assert finding.fix[0] == "if that is how it was trained, say so: --aux 1,3,5"
    assert finding.fix[1].endswith("--find-wiring")


def flip(flag: str) -> Callable[[Config], None]:
    def edit(config: Config) -> None:
        config[flag] = not config.get(flag, False)

    return edit


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("a_plain", "norm_before_residual"),
        ("b_nbr", "norm_before_residual"),
        ("a_plain", "norm_output"),
        ("d_fcnorm_normout", "norm_output"),
        ("l_defaults", "norm_before_residual"),
    ],
)
def test_a_flipped_flag_is_caught(name: str, flag: str, tmp_path: Path) -> None:
    report = run(copy_of(name, tmp_path / "in", flip(flag)), tmp_path / "out", "vllm==0.33.0", sample=SAMPLE)
    assert errors(report) == ["A301"]
    assert not (tmp_path / "out").exists()
    trained = bool(json.loads((DRAFTERS / name / "config.json").read_text()).get(flag, False))
    [finding] = [f for f in report.findings if f.code == "A301"]
    assert finding.fix[0] == f"if that is how it was trained, say so: --set {flag}={str(trained).lower()}"


def test_the_target_s_rope_base_is_tried_where_the_drafter_s_is_another(tmp_path: Path) -> None:
    def lose(config: Config) -> None:
        config["transformer_layer_config"]["rope_parameters"]["rope_theta"] = 1e6

    report = run(copy_of("g_aux024", tmp_path / "in", lose), tmp_path / "out", "vllm==0.33.0", sample=SAMPLE)
    [finding] = [f for f in report.findings if f.code == "A301"]
    assert "--set rope_theta=10000" in finding.fix[0]
    trained = healthy("i_rope_headdim")  # with another than the target's
    assert trained.proof is not None and trained.proof.judgement is not None and trained.proof.level == "anchored"
    [tried] = [r for r in trained.proof.judgement.others if r.wiring.rope_theta == 1e4]
    assert tried.contrast.mean < 0


def test_what_the_finding_says_to_type_mends_it(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", flip("norm_output"))
    report = run(source, tmp_path / "out", "vllm==0.33.0", sample=SAMPLE, given={"norm_output": False})
    assert report.outcome == "converted"
    assert report.proof is not None and report.proof.level == "anchored"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["norm_output"] is False


def at_random(name: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        generator = torch.Generator().manual_seed(1)
        for key in [k for k in tensors if k.startswith(name) and tensors[k].dim() == 2]:
            values = torch.randn(tensors[key].shape, generator=generator) * 0.02
            tensors[key] = values.to(tensors[key].dtype)

    return edit


def test_a_layer_that_was_never_loaded_is_caught(tmp_path: Path) -> None:
    """Some converters of trainers lose a layer and save what it was initialised with."""
    source = copy_of("a_plain", tmp_path / "in", tensors=at_random("layers.0."))
    assert errors(run(source, tmp_path / "out", sample=SAMPLE)) == ["T119"]
    assert "N106" in errors(run(source, tmp_path / "out", sample=SAMPLE, allow=("T119",)))
    assert not (tmp_path / "out").exists()


def exchange(first: str, second: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        a, b = f"layers.0.{first}.weight", f"layers.0.{second}.weight"
        tensors[a], tensors[b] = tensors[b], tensors[a]

    return edit


def interleave(tensors: Tensors) -> None:
    """What a converter to the other layout of rotary embedding does to q and k, once too often."""
    for name in ("q_proj", "k_proj"):
        rows = tensors[f"layers.0.self_attn.{name}.weight"]
        pairs = rows.view(-1, 2, 8, rows.shape[1]).transpose(1, 2)  # head_dim 16
        tensors[f"layers.0.self_attn.{name}.weight"] = pairs.reshape(rows.shape).contiguous()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (exchange("mlp.gate_proj", "mlp.up_proj"), "mlp gate and up exchanged"),
        (exchange("input_layernorm", "hidden_norm"), "layer 0 input_layernorm and hidden_norm exchanged"),
        (interleave, "rows of q and k de-interleaved"),
    ],
    ids=["gate_up", "norms", "rope"],
)
def test_exchanged_tensors_are_caught(damage: Callable[[Tensors], None], words: str, tmp_path: Path) -> None:
    report = run(copy_of("c_nbfc", tmp_path / "in", tensors=damage), tmp_path / "out", sample=SAMPLE)
    assert errors(report) == ["A301"]
    [finding] = [f for f in report.findings if f.code == "A301"]
    assert words in finding.message
    assert not (tmp_path / "out").exists()


def test_states_of_the_token_before_are_caught(tmp_path: Path) -> None:
    tensors = load_file(SAMPLE)
    for name in [n for n in tensors if n.endswith("hidden_states")]:
        tensors[name] = tensors[name].roll(1, 1)
    save_file(tensors, tmp_path / "late.safetensors")
    report = run(DRAFTERS / "a_plain", tmp_path / "out", sample=tmp_path / "late.safetensors", target=None,
                 target_arch="LlamaForCausalLM", allow=("N102",))  # fmt: skip
    [finding] = [f for f in report.findings if f.code == "A301"]
    assert "states of the token after" in finding.message


def test_pieces_of_a_few_tokens_accuse_nobody(tmp_path: Path) -> None:
    """Whose first rows have nothing to attend to: no drafter is at home there."""
    tensors, pieces = load_file(SAMPLE), {}
    for k in range(4):
        for at in range(0, 180, 5):
            for part in ("input_ids", "loss_mask", "target_greedy_next"):
                pieces[f"s{k * 1000 + at}.{part}"] = tensors[f"s{k}.{part}"][at : at + 5].clone()
            pieces[f"s{k * 1000 + at}.hidden_states"] = tensors[f"s{k}.hidden_states"][:, at : at + 5].clone()
    save_file(pieces, tmp_path / "s.safetensors")
    for name in ("f_qwen3", "a_plain"):
        report = run(DRAFTERS / name, tmp_path / name, "vllm==0.33.0", sample=tmp_path / "s.safetensors")
        assert errors(report) == []
        assert report.proof is not None and report.proof.level == "agreement"


def test_many_steps_accuse_nobody(tmp_path: Path) -> None:
    """A wiring is judged by the steps that drafters are trained on, whatever is scored."""
    report = run(DRAFTERS / "a_plain", tmp_path / "out", sample=DATA / "samples" / "greedy.safetensors", steps=16)
    assert report.outcome == "converted" and errors(report) == []
    assert report.proof is not None and report.proof.scores is not None and len(report.proof.scores.accuracy) == 16


def test_a_map_that_is_ignored_is_far_worse() -> None:
    """The file case (d2t all zeros) is V203; here: what a map read otherwise would cost."""
    report = healthy("a_plain")
    assert report.proof is not None and report.proof.judgement is not None
    maps = {r.wiring.map: r.contrast for r in report.proof.judgement.others if r.wiring.map}
    assert set(maps) == {"ignored", "read as ids"}
    assert all(c.verdict == "worse" and c.mean < -5 for c in maps.values())


def test_a_short_sample_stops_at_agreement(tmp_path: Path) -> None:
    report = run(DRAFTERS / "a_plain", tmp_path / "out", sample=cut(tmp_path, 60))
    assert report.outcome == "converted"
    assert "N108" in codes(report)
    assert report.proof is not None and report.proof.level == "agreement"
    [finding] = [f for f in report.findings if f.code == "N108"]
    assert finding.found.startswith("60 positions") and "positions would tell" in finding.expected
    strict = run(DRAFTERS / "a_plain", tmp_path / "out2", sample=cut(tmp_path, 60), strict=True)
    assert errors(strict) == ["N108"]


def test_windows_that_move_with_the_steps_are_no_disagreement(tmp_path: Path) -> None:
    """Engines count a window from the drafted token, the trainer from the chain's first row."""

    def narrow(config: Config) -> None:
        config["transformer_layer_config"] |= {"sliding_window": 16, "use_sliding_window": True}

    report = run(copy_of("l_defaults", tmp_path / "in", narrow), tmp_path / "out", "vllm==0.33.0", sample=SAMPLE)
    assert report.outcome == "converted" and "N109" in codes(report)
    assert report.proof is not None and report.proof.level == "anchored"
    assert report.proof.difference is not None and report.proof.difference > 0.01
    wide = healthy("l_defaults")  # 2,048
    assert "N109" not in codes(wide) and wide.proof is not None and wide.proof.difference == 0


# --- labels ---------------------------------------------------------------------------------------------------


def test_labels_shifted_like_the_drafters_pass_as_sample_and_are_not_anchored(tmp_path: Path) -> None:
    """The engine would feed points 0, 2, 4, and the sample cannot show that 1, 3, 5 were trained."""

    def shift(config: Config) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = [0, 2, 4]

    source = copy_of("a_plain", tmp_path / "in", shift)
    sample = sample_without_point_0(tmp_path, "0 1 2 3 4 5")  # of somebody who calls layer k layer k-1
    report = run(source, tmp_path / "out", "sglang==0.5.23", sample=sample)
    assert report.outcome == "converted", errors(report)
    assert report.proof is not None and report.proof.level == "sample"
    anchors = report.proof.anchors
    assert anchors is not None and not anchors.anchored
    assert (anchors.embedding, anchors.last) == ("differs", "absent")
    assert any("layer" in words for words in anchors.words)


def test_a_sample_that_calls_the_embedding_a_layer_is_refused(tmp_path: Path) -> None:
    """A trainer's folder of a drafter that was trained on embedding, 2, 4, read by one that declares 1, 3, 5."""
    tensors = load_file(SAMPLE)
    for name in [n for n in tensors if n.endswith("hidden_states")]:
        tensors[name] = tensors[name][[0, 2, 4, 6]].contiguous()
    save_file(tensors, tmp_path / "s.safetensors", {"capture_points": "1 3 5 6"})
    report = run(DRAFTERS / "a_plain", tmp_path / "out", sample=tmp_path / "s.safetensors")
    assert "A302" in errors(report)
    assert not (tmp_path / "out").exists()


def test_words_say_what_differs_whichever_of_the_two_it_is() -> None:
    plain = Wiring((1, 3, 5), (False,) * 4, 10000.0)
    others = (
        (Wiring((1, 3, 5), (False,) * 4, 10000.0, map="ignored"), "vocabulary map ignored", "vocabulary map as read"),
        (replace(plain, damage="mlp gate and up exchanged"), "mlp gate and up exchanged", "weights as they are"),
        (replace(plain, shift=1), "states of the token before", "states of the token itself"),
        (plain.flipped("norm_output"), "norm_output true", "norm_output false"),
        (replace(plain, rope_theta=207112184.0), "rope theta 207112184", "rope theta 10000"),
    )
    for other, there, back in others:
        assert (other.words(plain), plain.words(other), other.words(other)) == (there, back, "as declared")
    two = replace(others[1][0], points=(1, 3, 6))
    assert two.words(others[1][0]) == "layer 6 for layer 5"  # the damage is that of both
    assert others[-1][0].options(plain) == ["--set", "rope_theta=207112184"]


# --- the search -----------------------------------------------------------------------------------------------

LOST = ("eagle_aux_hidden_state_layer_ids", *NORM_FLAGS)


def lose(config: Config) -> None:
    for key in LOST:
        config.pop(key, None)


@pytest.mark.parametrize("name", NAMES)
def test_the_search_finds_what_was_trained(name: str, tmp_path: Path) -> None:
    """With ids and flags taken out of the config."""
    trained = json.loads((DRAFTERS / name / "config.json").read_text())
    report = check(copy_of(name, tmp_path / "in", lose), "vllm==0.33.0", sample=SAMPLE, find_wiring=True)
    assert report.proof is not None and report.proof.searched
    search = report.proof.judgement
    assert search is not None
    assert list(search.of.points) == trained["eagle_aux_hidden_state_layer_ids"]
    assert dict(zip(NORM_FLAGS, search.of.flags, strict=True)) == {flag: bool(trained[flag]) for flag in NORM_FLAGS}
    assert search.those("better", "undecided") == []
    [unknown] = [f for f in report.findings if f.code == "A104"]
    assert unknown.fix == (f"say so: --aux {','.join('embed' if p == 0 else str(p) for p in search.of.points)}",)


@pytest.mark.parametrize(("kept", "declared"), [([0, 2, 4, 6], True), ([0, 2], False)])
def test_a_search_on_too_few_states_says_so(kept: list[int], declared: bool, tmp_path: Path) -> None:
    """The states of the points that the config names, or as many as the drafter takes."""
    tensors = load_file(SAMPLE)
    for name in [n for n in tensors if n.endswith("hidden_states")]:
        tensors[name] = tensors[name][kept].contiguous()
    save_file(tensors, tmp_path / "s.safetensors", {"capture_points": " ".join(map(str, kept))})
    source = DRAFTERS / "a_plain" if declared else copy_of("a_plain", tmp_path / "in", lose)
    with pytest.raises(InputError) as caught:
        check(source, "vllm==0.33.0", sample=tmp_path / "s.safetensors", find_wiring=True)
    assert caught.value.finding.code == "F122"
    assert ("no states of layer 1" in caught.value.finding.message) is declared


def trainers_folder(tmp_path: Path, points: tuple[int, ...]) -> Path:
    """The sample as speculators keeps it: states without labels."""
    folder = tmp_path / "hidden_states"
    folder.mkdir()
    tensors = load_file(SAMPLE)
    for k in range(4):
        states = tensors[f"s{k}.hidden_states"][list(points)].transpose(0, 1).contiguous()
        save_file({"token_ids": tensors[f"s{k}.input_ids"], "hidden_states": states}, folder / f"hs_{k}.safetensors")
    return folder


def test_unlabelled_states_do_not_name_themselves(tmp_path: Path) -> None:
    """Neither config nor sample says which points they are: a search would find whatever they were called."""
    source, folder = copy_of("l_defaults", tmp_path / "in", lose), trainers_folder(tmp_path, (1, 3, 5, 6))
    with pytest.raises(InputError) as caught:
        check(source, "vllm==0.33.0", sample=folder, find_wiring=True)
    assert caught.value.finding.code == "F125" and "--sample-points" in caught.value.finding.fix[0]
    report = check(source, "vllm==0.33.0", sample=folder, sample_points=(1, 3, 5, 6), find_wiring=True)
    assert report.search is not None and report.search.of.points == (1, 3, 5)
    assert report.drafter is not None and report.drafter.spec.capture_points == (1, 3, 5)


def test_what_is_proved_is_what_was_found(tmp_path: Path) -> None:
    report = check(copy_of("g_aux024", tmp_path / "in", lose), "sglang==0.5.23", sample=SAMPLE, find_wiring=True)
    assert errors(report) == ["A104"]
    assert report.proof is not None and report.proof.scores is not None
    assert report.proof.scores.right[0] == 337  # as with the trained wiring
    assert [f.code for f in report.verdicts["sglang==0.5.23"] if f.severity == "error"] == []


def test_a_search_does_not_fail_a_drafter_for_one_engine_of_two() -> None:
    report = check(DRAFTERS / "b_nbr", "sglang==0.5.23", "vllm==0.33.0", sample=SAMPLE, find_wiring=True)
    assert report.outcome == "validated" and report.proof is not None and report.proof.level == "anchored"


def test_the_search_accuses_a_wrong_declaration_with_the_right_one() -> None:
    report = check(DRAFTERS / "g_aux024", "sglang==0.5.23", aux=(1, 3, 5), sample=SAMPLE, find_wiring=True)
    assert errors(report) == ["A301"]
    [finding] = [f for f in report.findings if f.code == "A301"]
    assert finding.fix[0].endswith("--aux embed,2,4")


def test_the_search_confirms_a_right_declaration() -> None:
    report = check(DRAFTERS / "a_plain", "sglang==0.5.23", sample=SAMPLE, find_wiring=True)
    assert report.outcome == "validated"
    assert report.proof is not None and report.proof.level == "anchored"


def test_the_search_says_when_it_cannot_tell(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", lose)
    report = check(source, "sglang==0.5.23", sample=cut(tmp_path, 80), find_wiring=True)
    assert report.proof is not None and report.proof.judgement is not None
    search = report.proof.judgement
    undecided = search.those("undecided")
    assert undecided and "N108" in codes(report)
    assert search.needed > search.positions
    # What was trained is not ruled out.
    fitting = {r.wiring.points for r in search.those("equal", "undecided")} | {search.of.points}
    assert (1, 3, 5) in fitting


# --- parts ----------------------------------------------------------------------------------------------------


def test_neighbours_of_the_story() -> None:
    """Declared layers 3, 31, 59 of 60 where the embedding, layer 3 and layer 31 were trained."""
    declared = Wiring((3, 31, 59), (False,) * 4, 1e4)
    found = {w.points for w in neighbours(declared, range(61), (), (), ())}
    assert (0, 3, 31) in found
    assert {(2, 31, 59), (4, 31, 59), (3, 31, 60), (2, 30, 58), (31, 3, 59), (59, 31, 3)} <= found
    back = {w.points for w in neighbours(Wiring((0, 3, 31), (False,) * 4, 1e4), range(61), (), (), ())}
    assert {(3, 31, 58), (3, 31, 59), (3, 31, 60)} <= back


def test_neighbours_take_only_states_that_the_sample_has() -> None:
    found = {w.points for w in neighbours(Wiring((1, 3, 5), (False,) * 4, 1e4), (1, 3, 5, 6), (), (), ())}
    assert found == {(1, 3, 6), (1, 5, 3), (3, 1, 5), (3, 5, 1), (5, 1, 3), (5, 3, 1)}


def contrast_of(values: torch.Tensor) -> Contrast:
    contrast = Contrast()
    contrast.add(values, torch.zeros(len(values)))
    return contrast


def test_contrast_by_hand() -> None:
    """Clusters of eight: two sums of 8 and 24, so a mean of 2 and a standard error of 16 / sqrt(2) * sqrt(2) / 16."""
    contrast = contrast_of(torch.tensor([1.0] * 8 + [3.0] * 8))
    assert (contrast.positions, contrast.mean, contrast.error) == (16, 2.0, 1.0)
    assert contrast.verdict == "undecided"  # two clusters say nothing


@pytest.mark.parametrize(
    ("mean", "spread", "count", "verdict"),
    [
        (-1.0, 1.0, 400, "worse"),
        (1.0, 1.0, 400, "better"),
        (0.0, 0.1, 400, "equal"),
        (0.02, 0.02, 4000, "equal"),  # certain, and too small to matter
        (0.0, 3.0, 400, "undecided"),
        (0.3, 3.0, 400, "undecided"),
    ],
)
def test_a_verdict_by_mean_spread_and_count(mean: float, spread: float, count: int, verdict: str) -> None:
    values = mean + spread * torch.randn(count, generator=torch.Generator().manual_seed(3))
    assert contrast_of(values).verdict == verdict
    mirror = {"worse": "better", "better": "worse"}
    if verdict in mirror:
        assert contrast_of(values).mirrored.verdict == mirror[verdict]


def test_positions_needed() -> None:
    """By what the difference is: 0.2 +- 0.1 on 512 positions is shown to be better at z = 4 on four times as many."""
    values = torch.randn(512, generator=torch.Generator().manual_seed(1))
    contrast = contrast_of(0.2 + 2.26 * (values - values.mean()) / values.std())
    assert contrast.mean == pytest.approx(0.2, abs=1e-5) and contrast.error == pytest.approx(0.1, rel=0.1)
    assert contrast.needed == pytest.approx(512 * (4 * contrast.error / 0.2) ** 2, rel=0.01)
    negative = contrast_of(-0.2 + 2.26 * (values - values.mean()) / values.std())
    assert negative.needed == pytest.approx(512 * (3 * negative.error / 0.25) ** 2, rel=0.01)


def test_noise_is_seldom_called_better() -> None:
    """Thirty neighbours of equal worth, on few positions: none stands out in 2,000 tries."""
    generator = torch.Generator().manual_seed(5)
    tries = [contrast_of(torch.randn(128, generator=generator)) for _ in range(2000)]
    assert sum(t.verdict == "better" for t in tries) <= 2
    assert sum(t.verdict == "worse" for t in tries) <= 20


def test_z_follows_students_t() -> None:
    """t = 3.5 with 7 degrees of freedom has the tail probability 0.0050 of z = 2.58 (tables of Student's t)."""
    contrast = Contrast([1.0] * 8, [8] * 8)
    contrast.sums = [1.0 + x for x in (-1, -1, -1, -1, 1, 1, 1, 1)]
    t = contrast.mean / contrast.error
    scaled = Contrast([s + (3.499 / t - 1) * 1.0 for s in contrast.sums], contrast.counts)
    assert scaled.mean / scaled.error == pytest.approx(3.499, rel=1e-3)
    assert scaled.z == pytest.approx(2.576, rel=0.01)
    assert math.isinf(Contrast([1.0] * 8, [8] * 8).z)

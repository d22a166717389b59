"""What a proof is asked for, how far it reaches, and what it says where an engine cannot serve a drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from converter.errors import UsageError
from converter.forward.states import random_states
from tests.support import DRAFTERS, SAMPLE, TARGET, Tensors, check, codes, copy_of, eagle3, errors, request, run


@pytest.mark.parametrize("name", ["a_plain", "l_defaults", "f_qwen3", "e_2layers"])
def test_random_states_show_agreement_and_no_more(name: str, tmp_path: Path) -> None:
    report = run(DRAFTERS / name, tmp_path / "out", "vllm==0.33.0", prove=True)
    assert report.outcome == "converted"
    assert report.proof is not None and report.proof.level == "agreement"
    assert report.proof.difference is not None and report.proof.difference < 1e-3
    assert report.proof.scores is None and report.proof.judgement is None


def test_random_states_show_a_disagreement_too(tmp_path: Path) -> None:
    report = run(DRAFTERS / "b_nbr", tmp_path / "out", allow=("K103",), prove=True)
    assert report.proof is not None and report.proof.level == "none"
    [finding] = [f for f in report.findings if f.code == "N102"]
    assert finding.caused_by == "K103" and finding.allowed
    assert "norm_before_residual is true in training, false in sglang 0.5.23" in finding.message


def test_random_states_need_no_embedding(tmp_path: Path) -> None:
    def drop(tensors: Tensors) -> None:
        del tensors["embed_tokens.weight"]

    report = run(copy_of("a_plain", tmp_path / "in", tensors=drop), tmp_path / "out", prove=True, target=None,
                 target_arch="LlamaForCausalLM")  # fmt: skip
    assert report.proof is not None and report.proof.level == "agreement"


@pytest.mark.parametrize("target", [None, TARGET / "config.json"])
def test_random_states_are_nobodys_embedding(target: Path | None, tmp_path: Path) -> None:
    """SGLang takes the target's, which is not at hand: what it would be is no matter of random states."""
    report = run(DRAFTERS / "a_plain", tmp_path / "out", prove=True, target=target, target_arch="LlamaForCausalLM")
    assert report.outcome == "converted"
    assert report.proof is not None and report.proof.level == "agreement"


@pytest.mark.parametrize("factor", [1.0, 8.0])
def test_an_embedding_kept_in_another_dtype_or_scaled_is_the_same(factor: float, tmp_path: Path) -> None:
    """Point 0 of a target in fp32 beside a drafter in bf16; some targets scale what they look up."""
    tensors = load_file(SAMPLE)
    noise = torch.Generator().manual_seed(0)
    for name in [n for n in tensors if n.endswith("hidden_states")]:
        states = tensors[name].clone()
        states[0] *= factor * (1 + torch.rand(states[0].shape, generator=noise) / 512)
        tensors[name] = states
    save_file(tensors, tmp_path / "s.safetensors")
    report = run(
        DRAFTERS / "a_plain", tmp_path / "out", sample=tmp_path / "s.safetensors", target=TARGET / "config.json"
    )
    assert report.outcome == "converted" and errors(report) == []


def test_random_states_are_the_same_whenever_they_are_asked_for() -> None:
    [sequence] = random_states((1, 9), 8, 100, (20,))
    assert sequence.points == (1, 9)
    assert torch.equal(sequence.state(9)[4:7], sequence.state(9, 4, 7))
    assert not torch.equal(sequence.state(1), sequence.state(9))


def test_a_refusal_says_what_serving_it_would_cost(tmp_path: Path) -> None:
    """The forward that SGLang's own class computes (tests/engines/test_engine_forward.py), scored."""
    report = run(DRAFTERS / "b_nbr", tmp_path / "out", sample=SAMPLE)
    assert errors(report) == ["K103", "N102"]
    [cost] = [f for f in report.findings if f.code == "N102"]
    assert cost.why.startswith("step-0 accuracy 52.1 -> 47.3 %, step-1 52.1 -> 36.1 %, step-2 48.1 -> 20.2 %")
    text = eagle3("convert", DRAFTERS / "b_nbr", tmp_path / "out", "--target", TARGET, "--sample", SAMPLE).stdout
    assert text.startswith("Not converted: sglang 0.5.23 cannot compute this drafter.")


def test_several_rules_are_named_and_each_costed(tmp_path: Path) -> None:
    report = run(DRAFTERS / "d_fcnorm_normout", tmp_path / "out", "sglang==0.5.9", sample=SAMPLE)
    [cost] = [f for f in report.findings if f.code == "N102"]
    assert "fc_norm is true in training, false in sglang 0.5.9" in cost.message
    assert "norm_output is true in training, false in sglang 0.5.9" in cost.message
    assert "fc_norm alone: step-0 accuracy" in cost.why and "norm_output alone: step-0 accuracy 5" in cost.why


def test_a_bias_that_an_engine_leaves_out_is_named(tmp_path: Path) -> None:
    report = run(DRAFTERS / "j_attnbias", tmp_path / "out", sample=SAMPLE)
    [cost] = [f for f in report.findings if f.code == "N102"]
    assert cost.caused_by == "K108" and "qkv_bias is true in training, false in sglang 0.5.23" in cost.message
    allowed = run(DRAFTERS / "j_attnbias", tmp_path / "out", sample=SAMPLE, allow=("K108",))
    assert allowed.outcome == "converted"


def test_scores_in_bf16_and_agreement_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CUDA device does; 0.4 in the logits, which rounding to bf16 could hide, is a disagreement."""
    from converter.forward import prove

    monkeypatch.setattr(prove, "dtype_for", lambda device: torch.bfloat16)
    right = run(DRAFTERS / "a_plain", tmp_path / "out", sample=SAMPLE)
    assert right.proof is not None and right.proof.level == "anchored" and right.proof.difference == 0
    assert right.proof.scores is not None and abs(right.proof.scores.right[0] - 380) <= 13  # near-ties
    wrong = run(DRAFTERS / "b_nbr", tmp_path / "out2", sample=SAMPLE, allow=("K103",))
    assert "N102" in codes(wrong) and wrong.proof is not None and wrong.proof.level == "none"


def test_a_refused_engine_leaves_the_others_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it would compute, numbers or not."""
    from converter.forward import prove

    def spoil(sides: Any, *rest: Any) -> Any:
        results = real(sides, *rest)
        for side, result in zip(sides, results, strict=True):
            result.finite = not side.label.startswith("sglang")
        return results

    real = prove.evaluate
    monkeypatch.setattr(prove, "evaluate", spoil)
    report = check(DRAFTERS / "b_nbr", "sglang==0.5.23", "vllm==0.33.0", sample=SAMPLE)
    assert report.proof is not None and report.proof.level == "anchored"
    assert "N103" not in codes(report)


def weak(tensors: Tensors) -> None:
    """Noise on the head: some twenty per cent are right still."""
    head = tensors["lm_head.weight"].float()
    noise = torch.randn(head.shape, generator=torch.manual_seed(0)) * head.std()
    tensors["lm_head.weight"] = (head + noise).to(tensors["lm_head.weight"].dtype)


def test_a_weak_drafter_on_few_positions_is_no_drafter_that_knows_nothing(tmp_path: Path) -> None:
    from tests.test_wiring import cut

    sample = cut(tmp_path, 104)
    report = run(copy_of("a_plain", tmp_path / "in", tensors=weak), tmp_path / "out", sample=sample, target=None,
                 target_arch="LlamaForCausalLM")  # fmt: skip
    assert report.proof is not None and report.proof.scores is not None
    assert 0.05 < report.proof.scores.accuracy[0] < 0.4
    assert not {"N105", "N106", "N107"} & set(codes(report))


def test_accuracy_as_the_trainer_logs_it() -> None:
    """Against the target's choice among the draft vocabulary, which the fixtures' record has."""
    report = check(DRAFTERS / "a_plain", "sglang", sample=SAMPLE)
    assert report.proof is not None and report.proof.scores is not None
    scores = report.proof.scores
    # All of the target's choices on this sample are in the draft vocabulary, so both say the same.
    assert scores.coverage.hits == scores.coverage.rows
    assert [s and s.hits for s in scores.draft_vocabulary] == list(scores.right)
    bare = check(DRAFTERS / "a_plain", "sglang", sample=SAMPLE, target=TARGET / "config.json")
    assert bare.proof is not None and bare.proof.scores is not None and bare.proof.scores.draft_vocabulary == ()


def test_a_smaller_draft_vocabulary_covers_less_and_is_scored_both_ways(tmp_path: Path) -> None:
    """Half of the draft tokens taken out of head and map."""

    def halve(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"][::2].contiguous()
        ids = (torch.arange(384) + tensors["d2t"])[::2]
        tensors["d2t"] = ids - torch.arange(192)
        tensors["t2d"] = torch.zeros(512, dtype=torch.bool).index_fill(0, ids, True)

    source = copy_of("a_plain", tmp_path / "in", lambda c: c.update(draft_vocab_size=192), halve)
    report = check(source, "sglang", sample=SAMPLE)
    assert report.proof is not None and report.proof.scores is not None
    scores = report.proof.scores
    assert 0.1 < scores.coverage.value < 0.9
    logged, covered = scores.draft_vocabulary[0], scores.in_vocabulary[0]
    assert logged is not None and covered is not None
    # Where the choice is in the draft vocabulary both labels agree; elsewhere only the trainer's can be right.
    assert covered.hits == scores.right[0] < logged.hits
    assert logged.rows == scores.rows[0]


def test_releases_that_compute_the_same_are_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from converter.forward import prove

    runs = []
    real = prove.evaluate
    monkeypatch.setattr(prove, "evaluate", lambda sides, *rest: runs.append(len(sides)) or real(sides, *rest))
    options: dict[str, Any] = {"target": TARGET, "sample": SAMPLE, "out": tmp_path / "out"}
    from converter.pipeline import convert
    from tests.support import quiet

    report = convert(request(DRAFTERS / "a_plain", engines=("sglang>=0.5.21", "vllm>=0.32"), **options), quiet)
    assert report.outcome == "converted"
    assert report.proof is not None
    assert [a.engine for a in report.proof.agreements] == [
        *(f"sglang 0.5.{n}" for n in (21, 22, 23)),
        *(f"vllm 0.{n}.0" for n in (32, 33)),
    ]
    assert runs == [3]  # the trainer's, SGLang's (the target's embedding), vLLM's (its own)


def test_validate_keeps_what_an_engine_costs_with_that_engine() -> None:
    report = check(DRAFTERS / "b_nbr", "sglang==0.5.23", "vllm==0.33.0", sample=SAMPLE)
    assert report.outcome == "validated"
    assert {f.code for f in report.verdicts["sglang==0.5.23"]} >= {"K103", "N102"}
    assert not {"K103", "N102"} & set(codes(report))
    assert report.proof is not None and report.proof.level == "anchored"
    assert [a.engine for a in report.proof.agreements] == ["vllm 0.33.0"]


def test_steps_are_what_was_asked_for_or_the_trainer_recommends(tmp_path: Path) -> None:
    five = check(DRAFTERS / "a_plain", "sglang", sample=SAMPLE, steps=5)
    assert five.proof is not None and five.proof.scores is not None
    assert len(five.proof.scores.accuracy) == 5 and len(five.proof.scores.acceptance) == 5

    def recommend(config: dict[str, Any]) -> None:
        config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 4

    four = check(copy_of("a_plain", tmp_path / "in", recommend), "sglang", sample=SAMPLE)
    assert four.proof is not None and four.proof.scores is not None and len(four.proof.scores.accuracy) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"find_wiring": True},
        {"min_accuracy": 0.5},
        {"sample_points": (1, 2)},
        {"positions": 10},
        {"sample": SAMPLE, "positions": -1},
        {"prove": True, "steps": 0},
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        check(DRAFTERS / "a_plain", "sglang", **options)


@pytest.mark.parametrize(
    "word", ["norm_output", "norm_output=maybe", "rope_theta=-1", "rope_theta=nan", "hidden_size=3"]
)
def test_fields_that_cannot_be_set(word: str) -> None:
    done = eagle3("validate", DRAFTERS / "a_plain", "--set", word)
    assert done.returncode == 2 and f"--set {word}" in done.stderr


def test_a_rope_theta_given_by_the_user_is_what_is_written(tmp_path: Path) -> None:
    report = run(DRAFTERS / "a_plain", tmp_path / "out", given={"rope_theta": 5e5})
    assert report.plan is not None and report.plan.spec.rope.theta == 5e5
    assert report.plan.spec.origins["rope"].how == "given"


def test_a_text_that_is_all_that_is_known_is_no_greedy_text(tmp_path: Path) -> None:
    """Without the target's choices the labels are the text, which then looks greedy throughout."""
    from tests.test_wiring import trainers_folder

    folder = trainers_folder(tmp_path, (1, 3, 5, 6))
    report = check(DRAFTERS / "a_plain", "sglang", sample=folder, target=TARGET / "config.json")
    assert report.sample is not None and report.sample.labels == "text" and "F128" in codes(report)
    assert report.proof is not None and report.proof.scores is not None
    assert [a.exact for a in report.proof.scores.acceptance] == [False] * 3

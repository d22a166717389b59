"""P-EAGLE drafters, which draft all tokens in one pass: written by speculators' and SpecForge's own code."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from safetensors.torch import load_file

from converter.checks.engine import examine
from converter.drafter.target import Target
from converter.rules.releases import all_releases, resolve
from tests.support import DATA, SAMPLE, TARGET, Tensors, check, codes, eagle3, errors, run
from tests.test_producers import changed

SPECULATORS, SPECFORGE = DATA / "producers" / "speculators_peagle", DATA / "producers" / "specforge_peagle"
SAID: dict[str, Any] = {"given": {"mask_token_id": 3}}  # SpecForge writes it nowhere
VLLM = "vllm==0.33.0"
LLAMA = Target(architecture="LlamaForCausalLM", layers=6, where="here")


@pytest.mark.parametrize(("source", "said"), [(SPECULATORS, {}), (SPECFORGE, SAID)], ids=["speculators", "specforge"])
def test_it_converts_for_vllm_whole_and_is_not_called_proved(
    source: Path, said: dict[str, Any], tmp_path: Path
) -> None:
    report = run(source, tmp_path / "out", VLLM, **said)
    assert report.outcome == "converted", [f.message for f in report.findings]
    assert errors(report) == [] and "K142" in codes(report) and report.proof is None
    ours, theirs = load_file(tmp_path / "out" / "model.safetensors"), load_file(source / "model.safetensors")
    assert {n.replace("midlayer.", "layers.0.") for n in ours} == set(theirs)
    assert all(torch.equal(t, theirs[n.replace("midlayer.", "layers.0.")]) for n, t in ours.items())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["pard_token"] == 3 and "mask_token_id" not in config
    assert config["num_hidden_layers"] == 2 and config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]


def test_nothing_in_either_goes_unexplained() -> None:
    """The second layer of both is as it was initialised (tests/data/README.md)."""
    assert codes(check(SPECULATORS, VLLM)) == ["T120"]
    assert codes(check(SPECFORGE, VLLM, **SAID)) == ["A109", "T120"]  # what its ids mean


def test_the_launch_line_drafts_in_parallel_and_the_last_word_is_not_proved(tmp_path: Path) -> None:
    done = eagle3("convert", SPECULATORS, tmp_path / "out", "--engine", VLLM, "--target", TARGET)
    assert done.returncode == 0
    assert '"num_speculative_tokens": 8, "parallel_drafting": true}' in done.stdout
    assert done.stdout.rstrip().endswith(
        "NOT PROVED: parallel drafting is not computed here. Compare the served acceptance length with training."
    )
    plain = eagle3("convert", DATA / "drafters" / "a_plain", tmp_path / "plain", "--engine", VLLM, "--target", TARGET)
    assert "parallel" not in plain.stdout


def test_a_sample_proves_nothing_and_says_so(tmp_path: Path) -> None:
    report = run(SPECULATORS, tmp_path / "out", VLLM, sample=SAMPLE)
    assert report.outcome == "refused" and errors(report) == ["N104"]
    assert report.proof is not None and report.proof.level == "none" and not report.proof.agreements
    assert "parallel drafting" in next(f.message for f in report.findings if f.code == "N104")
    assert errors(check(SPECULATORS, VLLM, prove=True)) == ["N104"]


def served(engine: str) -> dict[str, set[str]]:
    """Codes of the errors of each release for the drafter as it is."""
    spec = check(SPECULATORS, VLLM).drafter.spec  # type: ignore[union-attr]
    found = {}
    for release in all_releases(engine):
        findings = examine(release.serving(spec), spec, LLAMA).findings
        found[release.release] = {f.code for f in findings if f.severity == "error"}
    return found


def test_vllm_serves_it_from_the_release_on_that_has_the_pass() -> None:
    found = served("vllm")
    able = [r for r in found if Version(r) >= Version("0.16")]
    assert [r for r, c in found.items() if not c] == able
    assert all("K140" in c for r, c in found.items() if r not in able)


def test_no_release_of_sglang_serves_it_and_the_finding_says_what_it_would_do() -> None:
    assert all("K140" in found for found in served("sglang").values())
    report = check(SPECULATORS, "sglang==0.5.23")
    assert report.outcome == "refused"
    [finding] = [f for f in report.verdicts["sglang==0.5.23"] if f.code == "K140"]
    assert finding.message == "mask_token_id is 3; sglang 0.5.23 computes none"
    assert "drop mask_hidden without a word" in finding.why
    command = shlex.join(["eagle3-convert", str(SPECULATORS), "OUT", "--target", str(TARGET)])
    assert finding.fix == (f"works in vLLM 0.16.0 to 0.33.0:  {command} --engine vllm",)


def test_a_target_of_another_width_needs_a_newer_vllm() -> None:
    """Before 0.22 its mask_hidden is three times the drafter's width."""
    spec = replace(check(SPECULATORS, VLLM).drafter.spec, target_hidden_size=96)  # type: ignore[union-attr]
    for release, expected in (("0.21.0", ["K143"]), ("0.22.0", [])):
        engine = resolve(f"vllm=={release}")[0].serving(spec)
        assert [f.code for f in examine(engine, spec, LLAMA).findings] == expected


def test_mixed_windows_stop_the_runner_that_drafts_in_parallel() -> None:
    parallel = replace(check(SPECULATORS, VLLM).drafter.spec, layer_windows=(16, None))  # type: ignore[union-attr]
    for spec, expected in ((parallel, ["K110"]), (replace(parallel, mask_token_id=None), [])):
        assert [f.code for f in examine(resolve(VLLM)[0].serving(spec), spec, LLAMA).findings] == expected


# --- mask token and mask_hidden -------------------------------------------------------------------------------


def test_a_token_that_nobody_named_is_asked_for() -> None:
    report = check(SPECFORGE, VLLM)
    assert errors(report) == ["C217"]
    [finding] = [f for f in report.findings if f.code == "C217"]
    assert "--set mask_token_id=N" in finding.fix[0]


def test_it_is_given_on_the_command_line(tmp_path: Path) -> None:
    done = eagle3(
        "convert", SPECFORGE, tmp_path / "out", "--engine", VLLM, "--target", TARGET, "--set", "mask_token_id=7"
    )
    assert done.returncode == 0, done.stdout
    assert json.loads((tmp_path / "out" / "config.json").read_text())["pard_token"] == 7
    wrong = eagle3("convert", SPECFORGE, tmp_path / "o2", "--engine", VLLM, "--set", "mask_token_id=-1")
    assert wrong.returncode == 2 and "mask_token_id=NUMBER" in wrong.stdout + wrong.stderr


@pytest.mark.parametrize("token", [512, 10**9])
def test_a_token_outside_the_vocabulary(token: int, tmp_path: Path) -> None:
    assert errors(check(SPECFORGE, VLLM, given={"mask_token_id": token})) == ["C218"]
    assert errors(check(changed("speculators_peagle", tmp_path / "in", {"mask_token_id": token}), VLLM)) == ["C218"]


@pytest.mark.parametrize("token", [-1, "3", True, 2.5])
def test_a_token_that_is_no_token(token: Any, tmp_path: Path) -> None:
    assert errors(check(changed("speculators_peagle", tmp_path / "in", {"mask_token_id": token}), VLLM)) == ["C203"]


def test_a_lost_token_is_not_taken_for_an_ordinary_drafter(tmp_path: Path) -> None:
    assert errors(check(changed("speculators_peagle", tmp_path / "in", {"mask_token_id": None}), VLLM)) == ["C217"]


def edited(name: str, value: torch.Tensor | None) -> Any:
    def edit(tensors: Tensors) -> None:
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value

    return edit


def test_lost_and_misshapen_states(tmp_path: Path) -> None:
    lost = check(changed("speculators_peagle", tmp_path / "a", tensors=edited("mask_hidden", None)), VLLM)
    assert errors(lost) == ["T103"]
    [finding] = [f for f in lost.findings if f.code == "T103"]
    assert "the config says mask_token_id" in finding.why
    short = torch.zeros(1, 1, 64, dtype=torch.bfloat16)
    report = check(changed("speculators_peagle", tmp_path / "b", tensors=edited("mask_hidden", short)), VLLM)
    assert errors(report) == ["T104"]
    [finding] = [f for f in report.findings if f.code == "T104"]
    assert finding.expected == "[1, 1, 192] = [1, 1, 3 capture points x target hidden 64]"


def test_its_blocks_follow_the_capture_points(tmp_path: Path) -> None:
    """Points out of order are put in order; what stands for their states must be as well."""
    source = changed("speculators_peagle", tmp_path / "in", {"eagle_aux_hidden_state_layer_ids": [5, 1, 3]})
    run(source, tmp_path / "out", VLLM)
    ours, theirs = (load_file(f / "model.safetensors")["mask_hidden"] for f in (tmp_path / "out", source))
    assert torch.equal(ours, torch.cat([theirs[..., 64:128], theirs[..., 128:], theirs[..., :64]], dim=-1))


def test_rope_scaling_is_not_what_specforge_trains_it_with(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    source = changed("specforge_peagle", tmp_path / "in", {"rope_parameters": scaling})
    drafter = check(source, VLLM, **SAID).drafter
    assert drafter is not None and drafter.spec.rope.kind == "default" and drafter.spec.rope.theta == 10000.0

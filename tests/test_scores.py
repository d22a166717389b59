"""Scores, intervals and acceptance: by hand, against truth in simulations, and against true speculative runs."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from converter.forward.acceptance import _estimated, acceptance, greedy_share, walk
from converter.forward.intervals import Share, share, student, wilson
from converter.forward.outcomes import Outcome
from converter.forward.scores import as_json, score
from converter.pipeline import Request, validate
from tests.outcomes import outcomes_of
from tests.speculative import Drafter, Target, speculate
from tests.support import DATA, DRAFTERS, SAMPLE, TARGET

GREEDY = DATA / "samples" / "greedy.safetensors"
CHAINS = (1, 3, 5)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These models are so small that a second thread costs more than it does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def outcome(
    choices: list[list[int]],
    counts: str = "001111",
    tokens: list[int] | None = None,
    after: list[int] | None = None,
    likelihood: list[list[float]] | None = None,
) -> Outcome:
    """Tokens 10, 11, 12, .. that are all the target's choices, unless said otherwise."""
    length = len(counts)
    chosen = torch.tensor(choices)
    return Outcome(
        torch.tensor(tokens or list(range(10, 10 + length))),
        torch.tensor([c == "1" for c in counts]),
        torch.tensor(after or list(range(11, 11 + length))),
        chosen,
        torch.full(chosen.shape, float("nan")) if likelihood is None else torch.tensor(likelihood),
    )


# Rows 0..4. Labels of step 0: 12 13 14 15 16, the first of which does not count; of step 1: 13 14 15 16.
SMALL = outcome([[12, 13, 0, 15, 16], [13, 0, 15, 0, -1]])


def counts_of(shares: tuple[Share | None, ...]) -> list[tuple[int, int] | None]:
    return [None if s is None else (s.hits, s.rows) for s in shares]


# --- definitions --------------------------------------------------------------------------------------------


def test_right_at_all_steps_so_far_over_rows_that_count_at_this_step() -> None:
    scores = score([SMALL])
    assert (scores.right, scores.rows) == ((3, 1), (4, 4))  # step 1: row 0 alone; row 2 was wrong before
    assert scores.accuracy == (0.75, 0.25)
    assert counts_of(scores.conditional) == [(3, 4), (1, 3)]


def test_the_draft_vocabulary_is_the_ceiling() -> None:
    inside = torch.ones(20, dtype=torch.bool)
    inside[14] = False
    scores = score([SMALL], in_draft=inside)
    assert counts_of((scores.coverage,)) == [(3, 4)]
    assert counts_of(scores.in_vocabulary) == [(3, 3), (1, 2)]  # step 1: rows 0 and 3 never meet token 14
    assert counts_of(score([SMALL]).in_vocabulary) == [(3, 4), (1, 4)]


def test_sequences_are_pooled_and_ones_too_short_add_nothing() -> None:
    two_tokens = outcome([[12], [-1]], "01")
    one_token = outcome([[], []], "1")
    scores = score([SMALL, SMALL, two_tokens, one_token])
    assert (scores.right, scores.rows) == ((7, 2), (9, 8))
    alone = score([two_tokens])
    assert (alone.right, alone.rows, alone.accuracy) == ((1, 0), (1, 0), (1.0,))
    assert counts_of(alone.conditional) == [(1, 1), None]
    assert alone.acceptance == ()


def test_likelihood_is_averaged_where_it_is_known() -> None:
    nan = float("nan")
    it = outcome([[0] * 5] * 2, likelihood=[[-9.0, -1.0, -2.0, nan, -3.0], [nan] * 5])
    assert score([it]).log_likelihood == (-2.0, None)


def test_positions_are_reported_in_doubling_buckets() -> None:
    """Right up to position 2047 and never after: what a context limit looks like."""
    length = 2600
    labels = torch.arange(12, 11 + length)
    choices = torch.where(torch.arange(length - 1) < 2048, labels, 0)
    scores = score([outcome([choices.tolist()], "0" * 300 + "1" * (length - 300))])
    assert [(b.first, b.last) for b in scores.by_position] == [(256, 511), (512, 1023), (1024, 2047), (2048, 4095)]
    assert counts_of(tuple(b.accuracy for b in scores.by_position)) == [(213, 213), (512, 512), (1024, 1024), (0, 551)]
    assert scores.by_position[-1].accuracy.high < 0.02 and scores.by_position[0].accuracy.low > 0.97
    assert sum(b.accuracy.rows for b in scores.by_position) == scores.rows[0]


@pytest.mark.parametrize("counts", ["000000", "100000"])
def test_nothing_that_counts_is_no_score(counts: str) -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        score([replace(SMALL, counts=torch.tensor([c == "1" for c in counts]))])


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(ValueError, match="do not belong"):
        replace(SMALL, counts=torch.ones(5, dtype=torch.bool))
    with pytest.raises(ValueError, match="does not belong"):
        replace(SMALL, likelihood=torch.zeros(1, 5))
    for nothing in ([], [outcome([[0] * 5]), SMALL]):
        with pytest.raises(ValueError, match="same number of steps"):
            score(nothing)


def test_scores_as_json() -> None:
    document = as_json(score([SMALL, outcome([[12], [-1]], "01")]))
    assert document == json.loads(json.dumps(document, allow_nan=False))
    assert (document["right"], document["rows"], document["accuracy"]) == ([4, 1], [5, 4], [0.8, 0.25])
    assert document["coverage"]["share"] == 1.0
    assert {a["chain"]: a["exact"] for a in document["acceptance"]} == {1: True, 2: True}


# --- the walk -----------------------------------------------------------------------------------------------


def test_the_walk_begins_at_the_last_row_of_the_prompt() -> None:
    assert walk(SMALL, 1).positions == (1, 3)
    assert walk(SMALL, 1).accepted == (1, 1)


def test_a_chain_that_runs_past_the_text_counts_only_if_it_was_rejected() -> None:
    assert (walk(SMALL, 2).positions, walk(SMALL, 2).accepted) == ((1,), (1,))
    wrong = outcome([[12, 13, 0, 0, 16], [13, 0, 15, 0, -1]])
    assert (walk(wrong, 2).positions, walk(wrong, 2).accepted) == ((1, 3), (1, 0))


def test_a_chain_right_to_the_end_of_the_text_counts_if_it_ends_there_too() -> None:
    it = outcome([[0, 13, 0, 15, 0], [0, 14, 0, 0, 0], [0, 15, 0, 0, 0]])
    assert walk(it, 3) == walk(it, 3).__class__((1,), (3,))
    assert walk(it, 2).accepted == (2,)


def test_every_turn_is_walked_by_itself() -> None:
    """Turns x_1..x_3 and x_6..x_8; the first ends at its end-of-sequence token x_3."""
    everything = [list(range(12, 20))]
    it = outcome(everything, "011100111")
    assert walk(it, 1).positions == (0, 5)
    assert walk(outcome(everything, "111111111"), 1).positions == (0, 2, 4, 6)  # no prompt: row 0 is the first


def test_a_chain_has_a_length() -> None:
    for chain in (0, 3):
        with pytest.raises(ValueError, match="a chain of"):
            walk(SMALL, chain)


def test_acceptance_on_a_greedy_text_is_replayed() -> None:
    measured = acceptance([SMALL], 1)
    assert measured is not None
    assert (measured.exact, measured.length, measured.accepted, measured.steps) == (True, 2.0, 2, 2)
    assert 1 <= measured.low < 2 and measured.high == pytest.approx(2)


def test_acceptance_on_another_text_is_estimated() -> None:
    """Token 14 is not the target's choice after 13: step 1 is judged on the rows that do not feed it."""
    it = replace(SMALL, target_next=torch.tensor([11, 12, 13, 77, 15, 16]))  # labels of step 0: 12 13 77 15 16
    greedy = greedy_share([it])
    assert greedy is not None and (greedy.hits, greedy.rows) == (3, 4)
    measured = acceptance([it], 2)
    assert measured is not None and not measured.exact
    # Step 0: rows 1..4, of which 1, 3, 4 are right. Step 1: of rows 1, 2, 3 row 2 feeds x_4 = 14; none is right.
    assert measured.rows == (4, 2)
    assert measured.per_position == (3 / 4, 0 / 2)
    assert measured.length == pytest.approx(1 + 3 / 4)
    assert (measured.accepted, measured.steps) == (None, None)
    assert 1 <= measured.low <= measured.length <= measured.high <= 3


# --- intervals ----------------------------------------------------------------------------------------------


def simulated(generator: torch.Generator, sequences: int, between: float, sticky: float) -> tuple[bool, bool]:
    """Whether the interval, and the binomial one, hold the truth of 0.6.

    between: standard deviation of the sequences' own rates; sticky: how often a row repeats the row before it.
    """
    rates = 0.6 + between * (torch.rand(sequences, generator=generator) - 0.5) * 12**0.5
    rows = torch.rand(sequences, 100, generator=generator) < rates[:, None]
    repeats = torch.rand(sequences, 100, generator=generator) < sticky
    for i in range(1, 100):
        rows[:, i] = torch.where(repeats[:, i], rows[:, i - 1], rows[:, i])
    measured = share(list(rows), [torch.ones(100, dtype=torch.bool)] * sequences)
    assert measured is not None
    low, high = wilson(measured.value, measured.rows, 0.0, 10**6)
    return measured.low <= 0.6 <= measured.high, low <= 0.6 <= high


@pytest.mark.parametrize(
    ("sequences", "between", "sticky"), [(12, 0.15, 0.3), (30, 0.15, 0.3), (4, 0.0, 0.6), (2, 0.0, 0.5)]
)
def test_intervals_hold_the_truth_though_rows_hang_together(sequences: int, between: float, sticky: float) -> None:
    generator = torch.Generator().manual_seed(7)
    results = [simulated(generator, sequences, between, sticky) for _ in range(300)]
    assert 0.90 <= sum(ours for ours, _ in results) / 300 <= 0.98
    assert sum(binomial for _, binomial in results) / 300 < 0.85


def test_all_and_nothing_have_an_interval_too() -> None:
    counted = [torch.ones(100, dtype=torch.bool)] * 12
    none = share([torch.zeros(100, dtype=torch.bool)] * 12, counted)
    everything = share(counted, counted)
    assert none is not None and everything is not None
    assert none.low == 0 and 0 < none.high < 0.01
    assert everything.high == 1 and 0.99 < everything.low < 1
    one = share([torch.tensor([True])], [torch.tensor([True])])
    assert one is not None and one.low < 0.05 and one.high == 1
    assert share([torch.tensor([True])], [torch.tensor([False])]) is None


def test_rows_as_like_as_one_are_worth_one() -> None:
    """Twelve sequences, each all right or all wrong: 1,200 rows say no more than twelve."""
    counted = [torch.ones(100, dtype=torch.bool)] * 12
    measured = share([torch.full((100,), s < 6) for s in range(12)], counted)
    assert measured is not None
    low, high = wilson(0.5, 11, 0.0, 12)
    assert (measured.low, measured.high) == (pytest.approx(low), pytest.approx(high))


def test_quantiles_of_student_s_distribution() -> None:
    """Tables: 2.262 for 9 degrees of freedom, 2.093 for 19, 1.980 for 120."""
    assert [student(n) for n in (1, 9, 19, 120)] == pytest.approx([12.706, 2.262, 2.093, 1.980], abs=1e-3)
    assert student(3) == pytest.approx(3.182, rel=0.01)


# --- against true speculative runs --------------------------------------------------------------------------


@functools.cache
def drafter(name: str) -> Drafter:
    spec = validate(Request(source=str(DRAFTERS / name), target=TARGET)).drafter
    assert spec is not None
    return Drafter.read(DRAFTERS / name, spec.spec)


@functools.cache
def greedy_outcomes(name: str) -> list[Outcome]:
    return outcomes_of(drafter(name), GREEDY, max(CHAINS))


def test_the_plain_target_computes_the_sample_s_states() -> None:
    target, sample = Target.read(TARGET), load_file(GREEDY)
    for k in range(4):
        target.forget()
        tokens = sample[f"s{k}.input_ids"].tolist()
        parts = [target.feed(tokens[:50]), target.feed(tokens[50:])]
        states = torch.cat([s for s, _ in parts], dim=1)
        torch.testing.assert_close(states, sample[f"s{k}.hidden_states"], atol=1e-4, rtol=0)
        assert torch.equal(torch.cat([c for _, c in parts]), sample[f"s{k}.target_greedy_next"])


@pytest.mark.parametrize("name", ["a_plain", "d_fcnorm_normout", "g_aux024"])
def test_the_walk_is_that_of_a_true_speculative_run(name: str) -> None:
    """Text, places and counts of every verification step; the run's last step may draft past the sample's end."""
    target = Target.read(TARGET)
    for it in greedy_outcomes(name):
        tokens = it.tokens.tolist()
        prompt = tokens[: int((~it.counts).sum())]
        for chain in reversed(CHAINS):  # what was drafted for a longer one begins with what is for a shorter
            true, ours = speculate(target, drafter(name), prompt, len(tokens), chain), walk(it, chain)
            assert true.tokens == tokens
            assert (true.positions[: len(ours.accepted)], true.accepted[: len(ours.accepted)]) == (
                list(ours.positions),
                list(ours.accepted),
            )
            left_out = list(zip(true.positions, true.accepted, strict=True))[len(ours.accepted) :]
            assert len(left_out) <= 1
            assert all(row + 2 + count >= len(tokens) and count for row, count in left_out)


def test_acceptance_lengths_of_docs_metrics() -> None:
    outcomes = greedy_outcomes("a_plain")
    measured = [acceptance(outcomes, chain) for chain in CHAINS]
    assert [(a.accepted, a.steps) for a in measured if a and a.exact] == [(259, 379), (374, 264), (395, 237)]
    assert [f"{a.length:.2f}" for a in measured if a] == ["1.68", "2.42", "2.67"]
    assert all(a.low < a.length < a.high for a in measured if a)
    rates = [[f"{rate:.3f}" for rate in a.per_position] for a in measured if a]
    assert rates[1] == ["0.655", "0.439", "0.322"]
    assert all(a.length == pytest.approx(1 + sum(a.per_position)) for a in measured if a)
    # Summed over rows instead of walked: rows in easy stretches weigh more than a server's steps, which skip them.
    summed = [_estimated(outcomes, chain) for chain in CHAINS]
    assert [f"{a.length:.2f}" for a in summed if a] == ["1.67", "2.48", "2.93"]


def test_a_sampled_text_gives_an_estimate() -> None:
    outcomes = outcomes_of(drafter("a_plain"), SAMPLE, 3)
    measured, greedy = acceptance(outcomes, 3), greedy_share(outcomes)
    assert measured is not None and greedy is not None
    assert not measured.exact and measured.rows == (672, 379, 223)
    assert f"{measured.length:.2f}" == "2.21" and measured.low < 2.21 < measured.high


# --- against what the trainer logs --------------------------------------------------------------------------


def trainer_s(name: str) -> tuple[list[int], list[int], list[int]]:
    """Of steps 0..2: right, rows, rows right before; by the rules of speculators 0.9.0, on its own choices.

    models/metrics.py:52-63 and models/eagle3/core.py:261-265: rows start out as "right so far" where their label of
    step 0 counts, and the mask of step k is laid on the numerator and on the total of full_acc only.
    """
    sample, recorded = load_file(SAMPLE), load_file(DATA / "expected" / f"{name}.safetensors")
    right, rows, before = [0] * 3, [0] * 3, [0] * 3
    for k in range(4):
        mask, labels = sample[f"s{k}.loss_mask"].bool(), sample[f"s{k}.target_greedy_next"]
        so_far = mask[1:].clone()
        for step in range(3):
            choice = drafter(name).ids[recorded[f"s{k}.draft_argmax_step{step}"]]
            so_far = so_far[: len(choice)]
            before[step] += int(so_far.sum())
            so_far = so_far & (choice == labels[1 + step :])
            right[step] += int((so_far & mask[1 + step :]).sum())
            rows[step] += int(mask[1 + step :].sum())
    return right, rows, before


@pytest.mark.parametrize("name", ["a_plain", "d_fcnorm_normout", "g_aux024"])
def test_accuracies_are_the_trainer_s_but_for_rows_that_begin_in_the_prompt(name: str) -> None:
    """The trainer counts them as wrong from step 1 on: up to k rows a sequence."""
    scores = score(outcomes_of(drafter(name), SAMPLE, 3))
    right, rows, before = trainer_s(name)
    assert list(scores.rows) == rows
    assert scores.right[0] == right[0]
    assert next(s.rows for s in scores.conditional if s) == before[0]
    for k in (1, 2):
        assert 0 <= scores.right[k] - right[k] <= 4 * k
        conditional = scores.conditional[k]
        assert conditional is not None and 0 <= conditional.rows - before[k] <= 4 * k
    if name == "d_fcnorm_normout":  # the numbers of docs/metrics.md
        assert (scores.right, right) == ((390, 228, 123), [390, 227, 123])
        assert ([s.rows for s in scores.conditional if s], before) == ([672, 391, 229], [672, 388, 226])

"""The forward pass against what speculators' own model computed for the same weights and states."""

from __future__ import annotations

import functools
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from converter.drafter.drafter import Drafter
from converter.drafter.spec import Rope
from converter.errors import InputError, UsageError
from converter.forward.device import choose_device
from converter.forward.embedding import of_checkpoint
from converter.forward.evaluate import BLOCK, Side, evaluate
from converter.forward.model import DraftModel, History, Piece, after_lead
from converter.forward.rope import NotComputable, frequencies
from converter.forward.sample import read_sample
from converter.forward.scores import score
from converter.forward.sides import Surroundings, reference
from converter.forward.states import RandomStates, random_states
from converter.forward.weights import weights_of
from converter.pipeline import Request, validate
from tests.support import DATA, DRAFTERS, NAMES, SAMPLE, TARGET, copy_of, errors, run
from tests.teacher_forced import logits_of

CPU = torch.device("cpu")


@functools.cache
def drafter(name: str) -> Drafter:
    report = validate(Request(source=str(DRAFTERS / name), target=TARGET))
    assert report.drafter is not None
    return report.drafter


@functools.cache
def logits(name: str) -> list[list[torch.Tensor]]:
    """Of every sequence of the sample, steps 0 to 2."""
    it = drafter(name)
    weights = weights_of(it.spec, it.checkpoint, it.tensors, CPU)
    model = DraftModel(it.spec, weights)
    result = []
    sequences = read_sample(SAMPLE, it.spec).sequences
    rows = of_checkpoint(it.checkpoint, it.tensors["embed_tokens.weight"], sequences).rows
    for sequence in sequences:
        embeds = rows(sequence, 0, len(sequence.tokens))
        states = torch.cat([sequence.state(p) for p in it.spec.capture_points], dim=-1)
        result.append(logits_of(model, embeds, states, 3))
    return result


@functools.cache
def recorded(name: str) -> dict[str, torch.Tensor]:
    return load_file(DATA / "expected" / f"{name}.safetensors")


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_the_trainer_s(name: str) -> None:
    for step, ours in enumerate(logits(name)[0]):
        theirs = recorded(name)[f"s0.draft_logits_step{step}"]
        ours = ours if step == 0 else ours[::4]
        assert ours.shape == theirs.shape
        assert float((ours - theirs).abs().max()) < 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_choices_are_the_trainer_s_at_every_position(name: str) -> None:
    for k, steps in enumerate(logits(name)):
        for step, ours in enumerate(steps):
            assert torch.equal(ours.argmax(-1), recorded(name)[f"s{k}.draft_argmax_step{step}"])


def accuracy_of_record(name: str) -> list[float]:
    """What follows from the recorded choices, computed apart from the code under test."""
    sample = load_file(SAMPLE)
    d2t = load_file(DRAFTERS / name / "model.safetensors").get("d2t", torch.zeros(512, dtype=torch.int64))
    right, rows = [0, 0, 0], [0, 0, 0]
    for k in range(4):
        ok = None
        for step in range(3):
            choice = recorded(name)[f"s{k}.draft_argmax_step{step}"]
            hit = choice + d2t[choice] == sample[f"s{k}.target_greedy_next"][1 + step :]
            ok = hit if ok is None else ok[: len(hit)] & hit
            mask = sample[f"s{k}.loss_mask"][1 + step :].bool()
            right[step] += int((ok & mask).sum())
            rows[step] += int(mask.sum())
    return [a / b for a, b in zip(right, rows, strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_accuracy_follows_from_the_trainer_s_choices(name: str) -> None:
    it = drafter(name)
    sequences = read_sample(SAMPLE, it.spec).sequences
    [trained] = evaluate([reference(it, Surroundings(sequences, None, CPU, torch.float32))], sequences, 3)
    scores = score(trained.outcomes)
    assert scores.rows[0] == 672
    assert list(scores.accuracy) == accuracy_of_record(name)


@pytest.mark.parametrize("limit", ["tests.teacher_forced.PIECE", "converter.forward.model._SCORES"])
def test_pieces_of_a_sequence_change_nothing(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logits("e_2layers")[0]
    monkeypatch.setattr(limit, 7)
    logits.cache_clear()
    for a, b in zip(logits("e_2layers")[0], expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=0)
    logits.cache_clear()


@pytest.mark.parametrize("name", ["a_plain", "e_2layers"])
def test_rows_that_lead_a_piece_are_attended_to_and_left_out(name: str) -> None:
    it = drafter(name)
    model = DraftModel(it.spec, weights_of(it.spec, it.checkpoint, it.tensors, CPU))
    combined, *tokens = torch.randn(4, 30, it.spec.hidden_size, generator=torch.Generator().manual_seed(0))
    led = [Piece(0, 20, lead=7), Piece(0, 10)]
    kept = after_lead(led)
    assert int(kept.sum()) == 23
    whole = model.steps(combined, tokens, [Piece(0, 20), Piece(0, 10)])
    for expected, ours in zip(whole, model.steps(combined, tokens, led), strict=True):
        torch.testing.assert_close(ours, expected[kept], atol=1e-5, rtol=0)


def on_random_states(
    name: str, lengths: tuple[int, ...], windows_move: bool = False
) -> tuple[Side, list[RandomStates]]:
    """A drafter's reference, its windows (where it has any) of 16 rows, and sequences for it."""
    spec = drafter(name).spec
    sequences = random_states(spec.capture_points, spec.target_hidden_size, spec.vocab_size, lengths)
    side = reference(drafter(name), Surroundings(sequences, None, CPU, torch.float32))
    windows = tuple(window and 16 for window in spec.layer_windows)
    model = DraftModel(replace(spec, layer_windows=windows), side.model.weights, windows_move)
    return replace(side, model=model), sequences


@pytest.mark.parametrize("block", [1, 7, 64])
@pytest.mark.parametrize(("name", "windows_move"), [("e_2layers", False), ("l_defaults", False), ("l_defaults", True)])
def test_blocks_of_a_sample_change_nothing(
    name: str, windows_move: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block may end within a sequence and hold several; some sequences are shorter than the chain of steps."""
    side, sequences = on_random_states(name, (40, 9, 2, 150, 1, 3, 64), windows_move)
    assert (name == "l_defaults") is (16 in side.model.spec.layer_windows)
    [whole] = evaluate([side], sequences, 3)
    monkeypatch.setitem(BLOCK, "cpu", block)
    [cut] = evaluate([side], sequences, 3)
    for a, b in zip(cut.outcomes, whole.outcomes, strict=True):
        assert torch.equal(a.choices, b.choices)
        torch.testing.assert_close(a.likelihood, b.likelihood, atol=1e-4, rtol=0, equal_nan=True)


def test_keys_of_a_sequence_are_let_go_with_its_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[History]] = []

    class Watched(History):
        def __init__(self) -> None:
            super().__init__()
            made.append(weakref.ref(self))

    monkeypatch.setattr("converter.forward.evaluate.History", Watched)
    monkeypatch.setitem(BLOCK, "cpu", 16)
    side, sequences = on_random_states("e_2layers", (11,) * 12)
    alive: list[int] = []
    evaluate([side], sequences, 3, lambda rows: alive.append(sum(ref() is not None for ref in made)))
    # Sequences of 10 rows in blocks of 16: a block has rows of two or three of them, the last block too.
    assert len(alive) == 8 and max(alive) <= 3
    assert len(made) >= len(sequences)


def test_a_window_hides_what_lies_before_it() -> None:
    """A window as long as the text changes nothing; with a window of 1, a row sees itself alone."""
    it = drafter("a_plain")
    weights = weights_of(it.spec, it.checkpoint, it.tensors, CPU)
    sequence = read_sample(SAMPLE, it.spec).sequences[0]
    table = of_checkpoint(it.checkpoint, it.tensors["embed_tokens.weight"], [sequence])
    embeds = table.rows(sequence, 0, 12)
    states = torch.cat([sequence.state(p) for p in it.spec.capture_points], dim=-1)[:12]

    def run_with(window: int | None, start: int = 0) -> torch.Tensor:
        model = DraftModel(replace(it.spec, layer_windows=(window,)), weights)
        return logits_of(model, embeds[start:], states[start:], 1)[0]

    torch.testing.assert_close(run_with(None), run_with(11))
    alone = run_with(1)
    assert not torch.allclose(alone, run_with(None))
    # Rope is relative, so a row that sees itself alone does not know where it stands.
    torch.testing.assert_close(alone[5:], run_with(1, start=5), atol=1e-5, rtol=0)


# --- the story in small: trained on the embedding, layer 2 and layer 4, ids lost --------------------------


def without_ids(tmp_path: Path) -> Path:
    return copy_of("g_aux024", tmp_path / "in", lambda config: config.pop("eagle_aux_hidden_state_layer_ids"))


def test_the_trained_wiring_scores_what_it_was_trained_to(tmp_path: Path) -> None:
    report = run(without_ids(tmp_path), tmp_path / "out", aux=(0, 2, 4), sample=SAMPLE)
    assert report.outcome == "converted"
    assert report.proof is not None and report.proof.scores is not None
    assert report.proof.scores.right[0] == 337  # of 672: 50.1 %
    assert report.proof.level == "anchored"


def test_another_wiring_scores_less_and_min_accuracy_stops_it(tmp_path: Path) -> None:
    report = run(without_ids(tmp_path), tmp_path / "out", aux=(1, 3, 5), sample=SAMPLE, min_accuracy=0.48)
    assert errors(report) == ["A301", "N101"]
    assert report.proof is not None and report.proof.scores is not None
    assert round(report.proof.scores.accuracy[0], 3) == 0.455
    assert not (tmp_path / "out").exists()
    options = {"aux": (1, 3, 5), "sample": SAMPLE, "min_accuracy": 0.45, "allow": ("A301",)}
    passed = run(without_ids(tmp_path / "b"), tmp_path / "out", **options)
    assert passed.outcome == "converted"
    assert passed.proof is not None and passed.proof.level == "agreement"


def test_lost_ids_on_a_shallow_target_are_not_guessed(tmp_path: Path) -> None:
    """The default 2, L//2, L-3 repeats on 6 layers; without the target it is not even known."""
    source = without_ids(tmp_path)
    assert errors(run(source, tmp_path / "out")) == ["A101"]
    assert errors(run(source, tmp_path / "out", target=None, target_arch="LlamaForCausalLM")) == ["A104"]


def test_points_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    """Points 5, 1, 3 with fc's blocks in that order are the same drafter; engines capture in layer order."""

    def shuffle(tensors: dict) -> None:  # type: ignore[type-arg]
        for name in ("fc.weight", "input_norm.weight"):
            if name in tensors:
                a, b, c = tensors[name].chunk(3, dim=-1)
                tensors[name] = torch.cat([c, a, b], dim=-1).contiguous()

    def reorder(config: dict) -> None:  # type: ignore[type-arg]
        config["eagle_aux_hidden_state_layer_ids"] = [5, 1, 3]

    report = run(copy_of("c_nbfc", tmp_path / "in", reorder, shuffle), tmp_path / "out", sample=SAMPLE)
    assert report.outcome == "converted"
    assert report.plan is not None and report.plan.layer_ids == {"sglang==0.5.23": (0, 2, 4)}
    assert {t.name for t in report.plan.changed} == {"fc.weight", "input_norm.weight"}
    written, trained = (
        load_file(tmp_path / "out" / "model.safetensors"),
        load_file(DRAFTERS / "c_nbfc" / "model.safetensors"),
    )
    for name in ("fc.weight", "input_norm.weight"):
        assert torch.equal(written[name], trained[name])


def test_norms_of_states_follow_their_points(tmp_path: Path) -> None:
    def shuffle(tensors: dict) -> None:  # type: ignore[type-arg]
        a, b, c = tensors["fc.weight"].chunk(3, dim=-1)
        tensors["fc.weight"] = torch.cat([c, a, b], dim=-1).contiguous()
        norms = [tensors[f"fc_norm.{j}.weight"] for j in (2, 0, 1)]
        tensors |= {f"fc_norm.{j}.weight": norm.clone() for j, norm in enumerate(norms)}

    def reorder(config: dict) -> None:  # type: ignore[type-arg]
        config["eagle_aux_hidden_state_layer_ids"] = [5, 1, 3]

    report = run(copy_of("d_fcnorm_normout", tmp_path / "in", reorder, shuffle), tmp_path / "out", sample=SAMPLE)
    assert report.outcome == "converted"
    written = load_file(tmp_path / "out" / "model.safetensors")
    trained = load_file(DRAFTERS / "d_fcnorm_normout" / "model.safetensors")
    for name in ("fc.weight", "fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"):
        assert torch.equal(written[name], trained[name])


def test_an_embedding_trained_further_is_seen_on_the_sample(tmp_path: Path) -> None:
    """SGLang replaces it by the target's; point 0 of the sample shows that they differ."""

    def train(tensors: dict) -> None:  # type: ignore[type-arg]
        tensors["embed_tokens.weight"] = (
            tensors["embed_tokens.weight"].float() * torch.linspace(0.5, 1.5, 64)
        ).bfloat16()

    report = run(copy_of("a_plain", tmp_path / "in", tensors=train), tmp_path / "out", sample=SAMPLE)
    # Changed by hand, not by training, it fits the sample less than the target's: A301 says so too.
    assert errors(report) == ["A301", "K131", "N102"]
    [cost] = [f for f in report.findings if f.code == "N102"]
    assert cost.caused_by == "K131" and "step-0 accuracy" in cost.why
    bare = run(tmp_path / "in", tmp_path / "out", sample=SAMPLE, target=TARGET / "config.json")
    assert errors(bare) == ["A301", "N102"]
    [seen] = [f for f in bare.findings if f.code == "N102"]
    assert "embed_tokens.weight is the drafter's own in training, the target's in sglang" in seen.message


def test_a_drafter_without_embedding_is_run_on_point_0(tmp_path: Path) -> None:
    def drop(tensors: dict) -> None:  # type: ignore[type-arg]
        del tensors["embed_tokens.weight"]

    report = run(copy_of("a_plain", tmp_path / "in", tensors=drop), tmp_path / "out", sample=SAMPLE)
    assert report.outcome == "converted"
    assert report.proof is not None and report.proof.scores is not None
    assert list(report.proof.scores.accuracy) == accuracy_of_record("a_plain")


def test_values_that_are_no_numbers_are_no_proof(tmp_path: Path) -> None:
    """Weights that overflow give NaN, which compares as neither more nor less than any tolerance."""

    def spoil(tensors: dict) -> None:  # type: ignore[type-arg]
        tensors["norm.weight"][3] = 3e38
        tensors["lm_head.weight"][:, 3] = 3e38

    report = run(
        copy_of("a_plain", tmp_path / "in", tensors=spoil),
        tmp_path / "out",
        sample=SAMPLE,
        target=TARGET / "config.json",
    )
    assert errors(report) == ["N103"]
    assert report.proof is not None and report.proof.level == "none"
    assert not (tmp_path / "out").exists()


# --- samples that do not fit --------------------------------------------------------------------------------


def refused_sample(tmp_path: Path, edit, metadata=None) -> str:  # type: ignore[no-untyped-def]
    from safetensors.torch import save_file

    tensors = {k: v for k, v in load_file(SAMPLE).items() if k.startswith("s0.")}
    edit(tensors)
    save_file(tensors, tmp_path / "s.safetensors", metadata)
    with pytest.raises(InputError) as caught:
        run(DRAFTERS / "a_plain", tmp_path / "out", sample=tmp_path / "s.safetensors")
    assert not (tmp_path / "out").exists()
    return caught.value.finding.code


def test_no_sample(tmp_path: Path) -> None:
    assert refused_sample(tmp_path, lambda t: t.pop("s0.hidden_states")) == "F120"
    assert refused_sample(tmp_path, lambda t: t.pop("s0.loss_mask")) == "F120"
    assert refused_sample(tmp_path, lambda t: t.update({"s0.loss_mask": t["s0.loss_mask"][:-1].clone()})) == "F120"
    assert refused_sample(tmp_path, lambda t: None, {"capture_points": "0 1"}) == "F120"


def test_a_sample_of_another_target(tmp_path: Path) -> None:
    narrow = lambda t: t.update({"s0.hidden_states": t["s0.hidden_states"][..., :32].contiguous()})  # noqa: E731
    assert refused_sample(tmp_path, narrow) == "F121"
    assert refused_sample(tmp_path, lambda t: t["s0.input_ids"].fill_(600)) == "F121"


def test_a_sample_without_a_point_of_the_drafter(tmp_path: Path) -> None:
    some = lambda t: t.update({"s0.hidden_states": t["s0.hidden_states"][:4].clone()})  # noqa: E731
    assert refused_sample(tmp_path, some, {"capture_points": "0 1 2 4"}) == "F122"


def test_nothing_to_score_is_no_pass(tmp_path: Path) -> None:
    assert refused_sample(tmp_path, lambda t: t["s0.loss_mask"].fill_(0)) == "F123"


# --- rope and device ------------------------------------------------------------------------------------------

YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(("kind", "parameters"), [("linear", {"factor": 2.0}), ("llama3", LLAMA3), ("yarn", YARN)])
def test_scaled_rope(kind: str, parameters: dict[str, float]) -> None:
    """Landmarks of each kind: fast dimensions are kept, slow ones stretched by the factor (linear: all)."""
    plain, _ = frequencies(Rope(10000.0), 64)
    scaled, factor = frequencies(Rope(10000.0, kind, tuple(parameters.items())), 64)
    stretch = plain / scaled
    assert stretch[-1] == pytest.approx(parameters["factor"], rel=1e-5)
    assert stretch[0] == pytest.approx(2.0 if kind == "linear" else 1.0, rel=1e-5)
    assert bool((stretch[1:] >= stretch[:-1] - 1e-5).all())
    assert factor == pytest.approx(1.1386294 if kind == "yarn" else 1.0)


def test_rope_that_is_not_known_is_not_proved(tmp_path: Path) -> None:
    with pytest.raises(NotComputable):
        frequencies(Rope(1e4, "longrope"), 64)
    trained = ("original_max_position_embeddings", 64)
    for rope in (Rope(1.0, "yarn", (("factor", 2.0), trained)), Rope(1e4, "linear", (("factor", (2.0, 3.0)),))):
        with pytest.raises(NotComputable):
            frequencies(rope, 64)

    def dynamic(config: dict) -> None:  # type: ignore[type-arg]
        config["transformer_layer_config"]["rope_parameters"] |= {"rope_type": "dynamic", "factor": 2.0}

    source = copy_of("a_plain", tmp_path / "in", dynamic)
    assert errors(run(source, tmp_path / "out", "vllm==0.33.0", sample=SAMPLE)) == ["N104"]
    assert run(source, tmp_path / "out", "vllm==0.33.0").outcome == "converted"


def test_a_device_is_named_or_chosen() -> None:
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(UsageError):
        choose_device("abacus")

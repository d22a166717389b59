"""Where the checks of values and rows draw their lines: just within, and just beyond."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from converter.checkpoint.reader import Checkpoint, open_checkpoint
from converter.checks import fresh, likeness, values
from converter.checks.precision import check_precision
from converter.checks.rows import Likeness, check_embedding, recover_map
from converter.checks.suits import with_fixes
from converter.drafter.quantised import quantised_weights
from converter.drafter.spec import Rope, exact
from converter.drafter.target import Target
from converter.findings import error
from converter.rules.behaviours import READERS
from converter.rules.dialect import _speculative_tokens
from converter.target_weights import RowTable
from tests.support import check, codes, copy_of
from tests.test_forward import drafter
from tests.test_values import BARE, ENGINE, LAYER, change, filled, found


def stored(folder: Path, **tensors: torch.Tensor) -> Checkpoint:
    folder.mkdir()
    save_file({name: t.clone() for name, t in tensors.items()}, folder / "model.safetensors")
    return open_checkpoint(folder)


# --- random starts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spread", "alike"), [(1.44, True), (1.46, False)])
def test_rows_differ_in_size_by_no_more_than_chance(spread: float, alike: bool) -> None:
    """200 means of squares, of 8 values each: chance lets them spread 1 + 4.5 sqrt(2 / 200) = 1.45 times 2/8."""
    means = np.where(np.arange(201) % 2, 1.0, -1.0) * np.linspace(0, 1, 201)
    means = 10 + means * math.sqrt(spread * 2 / 8 / means.var(ddof=1))
    assert fresh._alike(np.tile(np.sqrt(means), (8, 1)), 0) is alike


# --- parts that are zero, and numbers without a scale -------------------------------------------------------


@pytest.mark.parametrize(("zeros", "said"), [(31, []), (32, ["T117"])])
def test_half_of_a_norm(zeros: int, said: list[str], tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", tensors=change("norm.weight", lambda t: filled(t, slice(0, zeros), 0)))
    report = check(source, ENGINE, **BARE)
    assert [c for c in codes(report) if c == "T117"] == said
    if said:
        part = found(report, "T117")
        assert part.where == "norm.weight" and part.found == f"{zeros} of 64 values"


def test_ordinals() -> None:
    assert [values._ordinal(i) for i in range(5)] == ["1st", "2nd", "3rd", "4th", "5th"]


@pytest.mark.parametrize(("edit", "words"), [
    (lambda t: t.clamp(-1, 1).mul(100).round(), "whole numbers up to"),
    (lambda t: filled(torch.exp2(torch.arange(t.numel()).reshape(t.shape) % 8) * 1.75, (0, 0), 448), "fp8 numbers"),
    (lambda t: filled(torch.exp2(torch.arange(t.numel()).reshape(t.shape) % 8) * 1.7, (0, 0), 448), ""),
])  # fmt: skip
def test_quantised_numbers(edit: Any, words: str, tmp_path: Path) -> None:
    report = check(copy_of("a_plain", tmp_path / "in", tensors=change(LAYER + "mlp.up_proj.weight", lambda t: edit(
        t.float()).to(torch.bfloat16))), ENGINE, **BARE)  # fmt: skip
    assert [f.found.startswith(words) for f in report.findings if f.code == "T122"] == ([True] if words else [])


@pytest.mark.parametrize(("lost", "said"), [(10, []), (12, ["N111"])])
def test_what_float16_rounds_to_nothing(lost: int, said: list[str], tmp_path: Path) -> None:
    tensor = torch.ones(1000)
    tensor[:lost] = 1e-9
    checkpoint = stored(tmp_path / "in", a=tensor)
    assert [f.code for f in check_precision(checkpoint, ["a"], "float16", frozenset())] == said


# --- rows of the target's table -----------------------------------------------------------------------------


def near(rows: torch.Tensor, cosine: float) -> torch.Tensor:
    """Each row turned away from itself by that cosine."""
    away = torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
    away -= (away * rows).sum(1, keepdim=True) / rows.square().sum(1, keepdim=True) * rows
    unit = away / away.norm(dim=1, keepdim=True) * rows.norm(dim=1, keepdim=True)
    return cosine * rows + math.sqrt(1 - cosine**2) * unit


TABLE = torch.randn((300, 64), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("cosine", "there"), [(0.96, True), (0.94, False)])
def test_rows_elsewhere_in_the_table(cosine: float, there: bool, tmp_path: Path) -> None:
    checkpoint = stored(tmp_path / "in", a=near(TABLE, cosine).roll(5, 0), target=TABLE)
    table = RowTable(checkpoint, "target")
    where = likeness.elsewhere(checkpoint, "a", None, table)
    assert (where is not None) is there
    if where is not None:  # the first rows went round
        assert (where.found, where.looked, where.shift) == (64, 64, -5)
        assert str(where) == "64 of 64 rows are the target's of ids -5 away from their own"
    assert likeness.elsewhere(checkpoint, "target", None, table) is None  # all are at home


def test_rows_some_ids_away(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path / "in", eight=TABLE[8:], nine=TABLE[9:], target=TABLE)
    table = RowTable(checkpoint, "target")
    assert likeness.nearby(checkpoint, "eight", None, table) == likeness.Elsewhere(16, 16, 8)
    assert likeness.nearby(checkpoint, "nine", None, table) is None
    own = likeness.nearby(checkpoint, "eight", np.arange(8, 300), table)
    assert own is None  # they are where the map says
    other = likeness.nearby(checkpoint, "target", np.arange(300)[::-1], table)
    assert other == likeness.Elsewhere(16, 16, None, "that there are without the map")
    shifts = [shift for _, shift, _ in likeness._candidates(np.arange(3), np.arange(3), mapped=True)]
    assert shifts == [sign * n for n in range(1, 9) for sign in (1, -1)]


@pytest.mark.parametrize(("cosine", "verdict"), [(0.52, "trained"), (0.48, "unrelated")])
def test_an_embedding_that_was_trained_further(cosine: float, verdict: str, tmp_path: Path) -> None:
    checkpoint = stored(tmp_path / "in", a=near(TABLE, cosine), target=TABLE)
    assert check_embedding(checkpoint, "a", RowTable(checkpoint, "target"))[0] == verdict


def test_rows_of_one_direction_are_closer_by_a_quarter_of_the_way() -> None:
    assert Likeness(0, 1, 0.86, 0.8).by_token and not Likeness(0, 1, 0.84, 0.8).by_token


def test_no_token_is_past_the_vocabulary(tmp_path: Path) -> None:
    """A row of the head that is only in the padding of the target's table has no token."""
    spec = drafter("a_plain").spec
    table = torch.randn((spec.vocab_size + 2, 64), generator=torch.Generator().manual_seed(0))
    head = torch.cat([table[: spec.draft_vocab_size - 1], table[spec.vocab_size :][:1]])
    checkpoint = stored(tmp_path / "in", head=head, whole=table[5:][: spec.draft_vocab_size], target=table)
    target = RowTable(checkpoint, "target")
    assert recover_map(spec, checkpoint, {"lm_head.weight": "head"}, target) is None
    vocab = recover_map(spec, checkpoint, {"lm_head.weight": "whole"}, target)
    assert vocab is not None and vocab.ids.tolist() == list(range(5, 5 + spec.draft_vocab_size))
    assert recover_map(spec, checkpoint, {}, target) is None


# --- what configs hold --------------------------------------------------------------------------------------


def test_qwen3_slides_from_its_28th_layer_on() -> None:
    config = {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 8}
    read = READERS["windows_by_layer_types"]("layer_windows", config, {"num_hidden_layers": 29})
    assert read == (None,) * 28 + (8,)


@pytest.mark.parametrize(("tokens", "read"), [(0, None), (1, 1), (999, 999), (1000, None), (True, None), ("3", None)])
def test_draft_steps_that_a_trainer_recommends(tokens: object, read: int | None) -> None:
    assert _speculative_tokens([{"speculative_tokens": tokens}]) == read


@pytest.mark.parametrize("code", ["K103", "K121", "K122", "K123", "K124", "K127", "K131", "K164", "K190"])
def test_what_an_engine_cannot_do_says_where_it_works(code: str) -> None:
    spec, target = drafter("a_plain").spec, Target(architecture="LlamaForCausalLM", layers=6)
    [mended] = with_fixes([error(code, "what", fix=())], spec, target, "unknown")
    assert mended.fix and all(line.startswith("works in ") for line in mended.fix)
    own = error(code, "what", fix=("do this",))
    assert with_fixes([own, error("C203", "what")], spec, target, "unknown") == [own, error("C203", "what")]


def test_matrices_of_whole_numbers_are_quantised(tmp_path: Path) -> None:
    numbers = torch.ones((2, 2), dtype=torch.int8)
    checkpoint = stored(tmp_path / "in", a=numbers, b=numbers[0], c=numbers[None], d=numbers.float())
    tensors = {"q.weight": "a", "norm.weight": "b", "odd.weight": "c", "k.weight": "d", "v.weight_scale": "d"}
    assert quantised_weights(checkpoint, tensors) == {"q.weight", "v.weight"}


def test_a_matrix_that_repeats_both_ways_is_said_once(tmp_path: Path) -> None:
    name = LAYER + "mlp.up_proj.weight"
    report = check(copy_of("a_plain", tmp_path / "in", tensors=change(name, lambda t: t[:96, :32].tile(2, 2))), ENGINE,
                   **BARE)  # fmt: skip
    assert [(f.where, f.found) for f in report.findings if f.code == "T118"] == [
        (name, "the second half of its rows is the first")
    ]


@pytest.mark.parametrize(("name", "width", "words"), [
    ("fc.weight", 64, "block 1 of 3 of its columns, one for each captured state, is there again as 3"),
    (LAYER + "mlp.up_proj.weight", 32, "block 1 of 2 of its columns is there again as 2"),
])  # fmt: skip
def test_a_block_that_is_there_again(name: str, width: int, words: str, tmp_path: Path) -> None:
    edit = change(name, lambda t: torch.cat([t[:, :-width], t[:, :width]], dim=1))
    report = check(copy_of("a_plain", tmp_path / "in", tensors=edit), ENGINE, **BARE)
    assert [(f.where, f.found) for f in report.findings if f.code == "T118"] == [(name, words)]


def test_ropes_in_words() -> None:
    assert str(Rope(10000.0)) == "theta 10000"
    assert str(Rope(10000.0, "yarn", (("factor", 32.0),))) == "theta 10000, yarn factor 32.0"
    assert str(Rope(5.0, "default", (("mrope_section", (1, 2)),))) == "theta 5, default mrope_section (1, 2)"
    assert str(Rope(5.0, "linear")) == "theta 5, linear"
    # Two bases of published models that six digits would not tell from others.
    assert str(Rope(207112184.0)) == "theta 207112184" and str(Rope(3580165449.0)) == "theta 3580165449"
    for theta in (1e6, 500042.5, 0.1, 1e17, 2.0**60 + 512):
        assert float(exact(theta)) == theta
    assert exact(1e6) == "1000000"

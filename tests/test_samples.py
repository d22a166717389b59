"""Samples of every form against the project's own, what is refused and why, and the pins at both ends."""

from __future__ import annotations

import functools
import gzip
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from converter.checkpoint.reader import Checkpoint
from converter.drafter.spec import DrafterSpec, Rope
from converter.errors import InputError
from converter.forward import sample_masks
from converter.forward.anchor import Anchors, anchor
from converter.forward.sample import Sample, read_sample, spread
from converter.forward.target_head import TargetHead
from converter.target import read_target
from converter.target_weights import RowTable, read_target_weights
from tests.support import SAMPLE, TARGET

FP8 = SAMPLE.parent / "hs_0_fp8.safetensors"
WIDTH, VOCABULARY, LAYERS = 64, 512, 6
POINTS = (1, 3, 5)

Files = Mapping[str, Any]


def spec(points: tuple[int, ...] = POINTS, width: int = WIDTH, vocabulary: int = VOCABULARY) -> DrafterSpec:
    """What of a drafter a sample is held against; the rest is of no matter here."""
    return DrafterSpec(
        hidden_size=width, target_hidden_size=width, intermediate_size=192, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=vocabulary, draft_vocab_size=256, hidden_act="silu",
        rms_norm_eps=1e-5, max_position_embeddings=1024, rope=Rope(10000.0), layer_windows=(None,), qkv_bias=False,
        o_bias=False, mlp_bias=False, fc_bias=False, qk_norm=False, norm_before_residual=False, norm_before_fc=False,
        fc_norm=False, norm_output=False, tie_word_embeddings=False, capture_points=points, dtype="bfloat16",
        origins={},
    )  # fmt: skip


@functools.cache
def stored() -> dict[str, torch.Tensor]:
    return load_file(SAMPLE)


@functools.cache
def head() -> TargetHead:
    found = TargetHead.of(read_target_weights(TARGET, VOCABULARY, WIDTH), read_target(TARGET))
    assert found is not None
    return found


@functools.cache
def table() -> RowTable:
    weights = read_target_weights(TARGET, VOCABULARY, WIDTH)
    assert weights is not None and weights.embedding is not None
    return weights.embedding


def states(k: int, *points: int) -> list[torch.Tensor]:
    return [stored()[f"s{k}.hidden_states"][p] for p in points]


def tokens(k: int) -> torch.Tensor:
    return stored()[f"s{k}.input_ids"]


def mask(k: int) -> torch.Tensor:
    return stored()[f"s{k}.loss_mask"]


def refusal(path: Path, drafter: DrafterSpec | None = None, **options: Any) -> Any:
    with pytest.raises(InputError) as caught:
        read_sample(path, drafter or spec(), **options)
    finding = caught.value.finding
    assert finding.message and finding.where
    return finding


# --- the layouts that the packages write (docs/samples.md names package, release and file) -----------------


def hs_files(folder: Path, points: tuple[int, ...] = (*POINTS, LAYERS)) -> Path:
    """vLLM 0.33.0's example_hidden_states_connector.py, _submit_async_write; names by speculators 0.9.0."""
    folder.mkdir(parents=True)
    for k in range(4):
        values = {"hidden_states": torch.stack(states(k, *points), 1), "token_ids": tokens(k).clone()}
        save_file(values, folder / f"hs_{k}.safetensors")
    return folder


def data_files(folder: Path, points: tuple[int, ...] = (*POINTS, LAYERS)) -> Path:
    """speculators 0.3.0's vllm_hidden_states_generator.py and scripts/data_generation_offline.py."""
    folder.mkdir(parents=True)
    for k in range(4):
        values = {"input_ids": tokens(k), "hidden_states": states(k, *points), "loss_mask": mask(k).long()}
        torch.save(values, folder / f"data_{k}.pt")
    return folder


def ckpt(k: int, points: tuple[int, ...] = POINTS) -> Files:
    """SpecForge's scripts/prepare_hidden_states.py: a leading axis, and the last state after the final norm."""
    return {
        "input_ids": tokens(k),
        "loss_mask": mask(k).long(),
        "hidden_state": head().normalise(states(k, LAYERS)[0])[None],
        "aux_hidden_state": torch.cat(states(k, *points), -1)[None],
    }


def ckpt_files(folder: Path) -> Path:
    for k in range(4):
        group = folder / f"rows_{k // 2 * 2}-{k // 2 * 2 + 2}"
        group.mkdir(parents=True, exist_ok=True)
        torch.save(ckpt(k), group / f"data_{k}.ckpt")
    return folder


# --- every form gives what the own form gives -------------------------------------------------------------------


def compare(sample: Sample, points: tuple[int, ...], masked: bool = True) -> None:
    assert len(sample.sequences) == 4
    for k, sequence in enumerate(sample.sequences):
        assert torch.equal(sequence.tokens, tokens(k)) and sequence.tokens.dtype == torch.int64
        expected = mask(k).bool() if masked else torch.arange(len(tokens(k))) > 0
        assert torch.equal(sequence.counts, expected)
        for point in points:
            assert torch.equal(sequence.state(point), states(k, point)[0])
            assert torch.equal(sequence.state(point, 7, 19), states(k, point)[0][7:19])
            assert torch.equal(sequence.state(point, 190, 999), states(k, point)[0][190:])
        asked = sequence.counts | torch.cat([sequence.counts[1:], sequence.counts[-1:]])  # elsewhere nothing is asked
        assert int(asked.sum()) > 100
        assert torch.equal(sequence.target_next[asked], stored()[f"s{k}.target_greedy_next"][asked])


def codes(sample: Sample) -> list[str]:
    return [f.code for f in sample.notes]


def test_own_form() -> None:
    sample = read_sample(SAMPLE, spec(), last_point=LAYERS, head=head())
    compare(sample, tuple(range(7)))
    assert (sample.form, sample.labels) == ("eagle3-convert sample", "target")
    assert sample.positions == 672
    assert not sample.captured and sample.notes == ()


def test_hidden_states_of_speculators(tmp_path: Path) -> None:
    folder = hs_files(tmp_path / "data" / "hidden_states")
    for path in (folder, folder.parent):
        sample = read_sample(path, spec(), last_point=LAYERS, head=head())
        assert (sample.points, sample.labels) == ((1, 3, 5, 6), "computed")
        compare(sample, sample.points, masked=False)
        assert codes(sample) == ["F126"]
        assert "4 of 4 sequences" in sample.notes[0].message
    assert [s.name for s in sample.sequences] == ["hs_0", "hs_1", "hs_2", "hs_3"]


def test_older_data_of_speculators(tmp_path: Path) -> None:
    sample = read_sample(data_files(tmp_path / "d"), spec(), last_point=LAYERS, head=head())
    assert (sample.form, sample.labels) == ("speculators data_*.pt", "computed")
    compare(sample, (1, 3, 5, 6))
    assert sample.notes == ()


def test_offline_data_of_specforge(tmp_path: Path) -> None:
    """The last state lies after the final norm: it gives the target's choices and is no capture point."""
    sample = read_sample(ckpt_files(tmp_path / "d"), spec(), last_point=LAYERS, head=head())
    assert (sample.points, sample.labels) == (POINTS, "computed")
    compare(sample, POINTS)
    with gzip.open(tmp_path / "one.ckpt.gz", "wb") as file:
        torch.save(ckpt(2), file)
    packed = read_sample(tmp_path / "one.ckpt.gz", spec(), head=head())
    assert torch.equal(packed.sequences[0].state(3, 5, 9), states(2, 3)[0][5:9])
    [sequence] = packed.sequences
    assert torch.equal(sequence.target_next[sequence.counts], stored()["s2.target_greedy_next"][sequence.counts])


def test_without_the_axis_that_specforge_puts_in_front(tmp_path: Path) -> None:
    torch.save({k: v.squeeze(0) if v.dim() == 3 else v[None] for k, v in ckpt(1).items()}, tmp_path / "a.ckpt")
    sequence = read_sample(tmp_path / "a.ckpt", spec(), head=head()).sequences[0]
    assert torch.equal(sequence.state(5), states(1, 5)[0]) and torch.equal(sequence.counts, mask(1).bool())


def test_fp8_is_dequantised_as_the_trainer_does() -> None:
    """The file was written by hs-connectors 0.9.0's own function (tests/data/README.md)."""
    sequence = read_sample(FP8, spec(), last_point=LAYERS, head=head()).sequences[0]
    raw = load_file(FP8)
    expected = raw["hidden_states"].bfloat16() * raw["hidden_states_scales"].bfloat16()  # hs_connectors/fp8_utils.py
    for place, point in enumerate((1, 3, 5, 6)):
        assert torch.equal(sequence.state(point), expected[:, place])
        assert torch.equal(sequence.state(point, 3, 9), expected[3:9, place])
        true = states(0, point)[0][:48]
        assert float((sequence.state(point).float() - true).norm() / true.norm()) < 0.05


def test_a_folder_of_own_files_and_natural_order(tmp_path: Path) -> None:
    for k in (10, 2):
        values = {n.replace("s0.", "x."): t.clone() for n, t in stored().items() if n.startswith("s0.")}
        values["x.input_ids"][0] = k  # the same text twice would count once
        save_file(values, tmp_path / f"part{k}.safetensors", {"capture_points": "0 1 2 3 4 5 6"})
    assert [s.name for s in read_sample(tmp_path, spec()).sequences] == ["part2: x", "part10: x"]


def test_states_keep_their_dtype_and_only_their_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {n: t.clone() for n, t in stored().items() if n.startswith("s0.")}
    values["s0.hidden_states"] = values["s0.hidden_states"].bfloat16()
    save_file(values, tmp_path / "s.safetensors")
    sequence = read_sample(tmp_path / "s.safetensors", spec()).sequences[0]
    sizes: list[int] = []
    span = Checkpoint._span
    monkeypatch.setattr(
        Checkpoint, "_span", lambda self, t, start, size: sizes.append(size) or span(self, t, start, size)
    )
    rows = sequence.state(3, 10, 14)
    assert rows.dtype == torch.bfloat16 and torch.equal(rows, values["s0.hidden_states"][3, 10:14])
    assert sizes == [4 * WIDTH * 2]


def test_what_the_record_says(tmp_path: Path) -> None:
    record = {
        "format": "eagle3-convert/sample/1", "capture_points": "0 1 2 3 4 5 6", "target": "org/name",
        "dtype": "float32",
        "target_architecture": "LlamaForCausalLM", "target_fingerprint": head().fingerprint, "decoding": "greedy",
        "captured": "target",
    }  # fmt: skip
    path = tmp_path / "s.safetensors"
    save_file(stored(), path, record)
    sample = read_sample(path, spec(), last_point=LAYERS, head=head())
    assert (sample.captured, sample.decoding) == (True, "greedy")
    assert sample.fingerprint == head().fingerprint
    save_file(stored(), path, record | {"captured": "trainer"})
    assert not read_sample(path, spec()).captured
    save_file(stored(), path, record | {"target_fingerprint": "0" * 64})
    finding = refusal(path, head=head())
    assert finding.code == "F121" and "0000" in finding.found and head().fingerprint in finding.expected


def test_a_target_s_choices_without_its_head_are_the_text(tmp_path: Path) -> None:
    sample = read_sample(data_files(tmp_path / "d"), spec(), last_point=LAYERS)
    assert sample.labels == "text" and codes(sample) == ["F128"]
    sequence = sample.sequences[0]
    assert torch.equal(sequence.target_next[:-1], tokens(0)[1:])
    assert not sequence.counts[-1] and torch.equal(sequence.counts[:-1], mask(0).bool()[:-1])


# --- loss masks -------------------------------------------------------------------------------------------------


def test_the_loss_mask_is_read_from_the_dataset(tmp_path: Path) -> None:
    """An Arrow stream with the state.json that datasets 4.0.0 leaves."""
    import pyarrow as arrow
    import pyarrow.ipc as stream

    hs_files(tmp_path / "data" / "hidden_states")
    for part in range(2):
        rows = (2 * part, 2 * part + 1)
        columns = {
            "input_ids": [tokens(k).tolist() for k in rows],
            "loss_mask": [mask(k).long().tolist() for k in rows],
            "seq_len": [len(tokens(k)) for k in rows],
        }
        columns["input_ids"][1][0] = 7 if part else columns["input_ids"][1][0]  # row 3 has other tokens
        content = arrow.table(columns)
        with (
            arrow.OSFile(str(tmp_path / "data" / f"data-0000{part}-of-00002.arrow"), "wb") as sink,
            stream.new_stream(sink, content.schema) as writer,
        ):
            writer.write_table(content)
    names = ", ".join(f'{{"filename": "data-0000{part}-of-00002.arrow"}}' for part in range(2))
    (tmp_path / "data" / "state.json").write_text(f'{{"_data_files": [{names}]}}')
    sample = read_sample(tmp_path / "data", spec(), last_point=LAYERS)
    assert [int(s.counts.sum()) for s in sample.sequences] == [168 - 1, 168 - 1, 168 - 1, 191 - 1]
    assert sample.notes[0].code == "F126" and "1 of 4" in sample.notes[0].message
    (tmp_path / "data" / "data-00000-of-00002.arrow").write_bytes(b"no arrow")
    assert refusal(tmp_path / "data").code == "F101"


def test_without_pyarrow_the_note_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hs_files(tmp_path / "data" / "hidden_states")
    (tmp_path / "data" / "state.json").write_text('{"_data_files": []}')
    monkeypatch.setattr(sample_masks, "can_read", lambda: False)
    sample = read_sample(tmp_path / "data", spec(), last_point=LAYERS, head=head())
    assert "pip install pyarrow" in sample.notes[0].found and sample.positions == 4 * 191


# --- points -----------------------------------------------------------------------------------------------------


def test_points_that_the_user_names(tmp_path: Path) -> None:
    """Trained on the embedding and two layers, declared as three layers: the story that this project starts from."""
    folder = data_files(tmp_path / "d", (0, 2, 4, 6))
    sample = read_sample(folder, spec((0, 2, 4)), points=(0, 2, 4, 6), last_point=LAYERS, head=head())
    assert (sample.points, sample.labels) == ((0, 2, 4, 6), "computed")
    compare(sample, sample.points)
    assert refusal(folder, points=(0, 2, 4, 6), last_point=LAYERS).code == "F122"
    assert read_sample(folder, spec(), points=(0, 2, 4, 6), last_point=LAYERS, declared=False).points == (0, 2, 4, 6)


@pytest.mark.parametrize(("kept", "names"), [([0, 2], "0 2"), ([], None)])
def test_a_search_needs_as_many_states_as_the_drafter_takes(kept: list[int], names: str | None, tmp_path: Path) -> None:
    finding = refusal(edited(tmp_path, lambda s: s[kept], names), declared=False)
    assert (finding.code, finding.expected) == ("F122", "states at 3 capture points or more")


def test_a_last_state_of_another_layer_says_nothing_of_the_target(tmp_path: Path) -> None:
    folder = data_files(tmp_path / "d", (0, 1, 3, 5))
    sample = read_sample(folder, spec(), points=(0, 1, 3, 5), last_point=LAYERS, head=head())
    assert sample.labels == "text"
    assert codes(sample) == ["F128"] and "last layer 6" in sample.notes[0].found


def test_the_last_state_of_a_target_of_unknown_depth(tmp_path: Path) -> None:
    sample = read_sample(data_files(tmp_path / "d"), spec(), head=head())
    assert sample.points == POINTS
    compare(sample, POINTS)


@pytest.mark.parametrize(
    ("points", "options", "typed"),
    [
        ((1, 3, 5), {"last_point": 6}, "--sample-points 1,3,5"),
        ((0, 1, 3, 5, 6), {"last_point": 6}, "--sample-points embed,1,3,5,6"),
        ((1, 3, 5), {}, "--sample-points 1,3,5"),
        ((1, 3, 5, 6), {"points": (1, 3, 5)}, "--sample-points"),
        ((1, 3, 5, 6), {"points": (1, 3, 5, 5)}, "--sample-points"),
    ],
)
def test_more_or_fewer_states_than_points(
    points: tuple[int, ...], options: dict[str, Any], typed: str, tmp_path: Path
) -> None:
    finding = refusal(hs_files(tmp_path / "hs", points), **options)
    assert finding.code == "F125"
    assert f"{len(points)} states" in finding.found + finding.fix[0] and typed in finding.fix[0]


def test_specforge_s_last_state_is_not_to_be_named(tmp_path: Path) -> None:
    finding = refusal(ckpt_files(tmp_path / "d"), points=(*POINTS, LAYERS), last_point=LAYERS)
    assert finding.code == "F125" and "after the final norm" in finding.why


def test_a_file_that_says_its_points_is_not_contradicted() -> None:
    assert read_sample(SAMPLE, spec(), points=tuple(range(7))).points == tuple(range(7))
    assert refusal(SAMPLE, points=(0, 1, 2, 3, 4, 6, 5)).code == "F125"


def test_states_come_in_the_order_of_the_layers(tmp_path: Path) -> None:
    folder = hs_files(tmp_path / "hs")
    sample = read_sample(folder, spec((5, 1, 3)), last_point=LAYERS, head=head())
    assert sample.points == (1, 3, 5, 6) and codes(sample) == ["F126", "F129"]
    assert "F129" not in codes(read_sample(folder, spec((5, 1, 3)), points=(1, 3, 5, 6), last_point=LAYERS))


# --- what is refused --------------------------------------------------------------------------------------------


def test_samples_of_another_target(tmp_path: Path) -> None:
    hs, pt, offline = hs_files(tmp_path / "hs"), data_files(tmp_path / "pt"), ckpt_files(tmp_path / "ckpt")
    for path in (SAMPLE, hs, pt, offline):
        for other in (spec(width=32), spec(width=48), spec(vocabulary=300)):
            if path == offline and other.target_hidden_size == 32:
                continue  # twice as many states of half the width, were it not for the last
            assert refusal(path, other, last_point=LAYERS).code == "F121", (path, other)
    assert refusal(offline, spec(width=32)).code == "F121"
    assert refusal(SAMPLE, last_point=5).code == "F121"


def test_points_that_are_missing() -> None:
    assert refusal(SAMPLE, spec((2, 15))).code == "F122"


def test_folders_without_a_sample(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty" in refusal(tmp_path / "empty").message
    torch.save({17: 3, 18: 5}, tmp_path / "empty" / "token_freq.pt")
    assert "token_freq.pt" in refusal(tmp_path / "empty").message
    assert refusal(TARGET / "model.safetensors").code == "F120"
    assert refusal(tmp_path / "nowhere").code == "F100"


def test_other_files_of_a_folder_are_left_out_and_named(tmp_path: Path) -> None:
    folder = data_files(tmp_path / "d")
    torch.save({17: 3, 18: 5}, folder / "token_freq.pt")
    short = {
        "input_ids": tokens(0)[:1],
        "hidden_states": [s[:1] for s in states(0, 1, 3, 5, 6)],
        "loss_mask": mask(0)[:1],
    }
    torch.save(short, folder / "data_9.pt")
    sample = read_sample(folder, spec(), last_point=LAYERS, head=head())
    assert len(sample.sequences) == 4 and codes(sample) == ["F127"]
    assert "1 of 5 sequences" in sample.notes[0].found and "token_freq.pt" in sample.notes[0].found


def test_a_part_of_a_large_sample_is_spread_over_it(tmp_path: Path) -> None:
    folder = hs_files(tmp_path / "d")
    every = read_sample(folder, spec(), last_point=LAYERS)
    part = read_sample(folder, spec(), last_point=LAYERS, most=every.positions // 2)
    assert [s.name for s in part.sequences] == [every.sequences[i].name for i in (0, 2)]
    assert "F135" in codes(part) and "F135" not in codes(every)
    assert [*spread(0)] == [] and [*spread(1)] == [0] and [*spread(6)] == [0, 4, 2, 1, 5, 3]


def test_a_text_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    values = {}
    for k in range(3):
        values |= {n.replace("s0.", f"s{k}."): t.clone() for n, t in stored().items() if n.startswith("s0.")}
    save_file(values, tmp_path / "s.safetensors")
    sample = read_sample(tmp_path / "s.safetensors", spec())
    assert len(sample.sequences) == 1
    assert codes(sample) == ["F127"] and "2 sequences that are there already" in sample.notes[0].found


def test_a_header_whose_length_looks_like_a_pickle(tmp_path: Path) -> None:
    """The first byte of a safetensors file is 0x80 once in 32 times, as is that of every pickle."""
    for padding in range(400):
        save_file(stored(), tmp_path / "s.safetensors", {"note": "x" * padding})
        if (tmp_path / "s.safetensors").read_bytes()[0] == 0x80:
            break
    assert (tmp_path / "s.safetensors").read_bytes()[0] == 0x80
    assert len(read_sample(tmp_path / "s.safetensors", spec()).sequences) == 4


def test_several_forms_in_a_folder(tmp_path: Path) -> None:
    folder = hs_files(tmp_path / "d")
    torch.save(ckpt(0), folder / "a.ckpt")
    finding = refusal(folder)
    assert finding.code == "F120" and "a.ckpt" in finding.message and "hs_" in finding.message


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    for k, points in enumerate(("0 1 2 3 4 5 6", "1 2 3 4 5 6 7")):
        save_file(
            {n: t.clone() for n, t in stored().items()}, tmp_path / f"{k}.safetensors", {"capture_points": points}
        )
    assert refusal(tmp_path).code == "F120"
    folder = hs_files(tmp_path / "hs")
    save_file(
        {"hidden_states": torch.zeros(9, 3, WIDTH), "token_ids": torch.zeros(9).long()}, folder / "hs_9.safetensors"
    )
    assert "hs_9" in refusal(folder, last_point=LAYERS).message


def test_nothing_counts(tmp_path: Path) -> None:
    torch.save(dict(ckpt(0)) | {"loss_mask": torch.zeros(192).long()}, tmp_path / "a.ckpt")
    assert refusal(tmp_path / "a.ckpt").code == "F123"
    one = {
        "input_ids": tokens(0)[:1],
        "hidden_states": [s[:1] for s in states(0, 1, 3, 5, 6)],
        "loss_mask": mask(0)[:1],
    }
    torch.save(one, tmp_path / "b.pt")
    finding = refusal(tmp_path / "b.pt", last_point=LAYERS)
    assert finding.code == "F123" and "2 tokens" in finding.found


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (lambda d: d.pop("input_ids"), "F120"),
        (lambda d: d.update(loss_mask=d["loss_mask"][:-1]), "F120"),
        (lambda d: d.update(input_ids=d["input_ids"].float()), "F120"),
        (lambda d: d.update(input_ids=d["input_ids"].expand(2, -1)), "F120"),
        (lambda d: d.update(aux_hidden_state=None), "F120"),
        (lambda d: d.update(aux_hidden_state=[1, 2]), "F120"),
        (lambda d: d.update(aux_hidden_state=d["aux_hidden_state"].long()), "F120"),
        (lambda d: d.update(hidden_state=d["hidden_state"][:, :5]), "F120"),
        (lambda d: d.update(hidden_state=d["hidden_state"][..., :32]), "F121"),
        (lambda d: d.update(hidden_states=[]), "F120"),
        (lambda d: d.update(hidden_states=[torch.zeros(192, 64), torch.zeros(191, 64)]), "F120"),
    ],
)
def test_pickles_that_are_not_in_order(edit: Any, code: str, tmp_path: Path) -> None:
    document = dict(ckpt(0))
    edit(document)
    torch.save(document, tmp_path / "a.ckpt")
    assert refusal(tmp_path / "a.ckpt").code == code


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d.update(token_ids=d["token_ids"][:-1].clone()),
        lambda d: d.update(token_ids=d["token_ids"].float()),
        lambda d: d.update(hidden_states=d["hidden_states"].flatten(1)),
        lambda d: d.update(hidden_states=d["hidden_states"].to(torch.int32)),
        lambda d: d.update(hidden_states=d["hidden_states"].to(torch.float8_e4m3fn)),
        lambda d: d.update(
            hidden_states=d["hidden_states"].to(torch.float8_e4m3fn), hidden_states_scales=torch.ones(4, 1, 1)
        ),
    ],
)
def test_hidden_states_that_are_not_in_order(edit: Any, tmp_path: Path) -> None:
    document = {"hidden_states": torch.stack(states(0, *POINTS, LAYERS), 1), "token_ids": tokens(0).clone()}
    edit(document)
    save_file(document, tmp_path / "hs_0.safetensors")
    assert refusal(tmp_path / "hs_0.safetensors", last_point=LAYERS).code == "F120"


class _NotATensor:
    pass


def test_damaged_and_hostile_files(tmp_path: Path) -> None:
    torch.save(dict(ckpt(0)) | {"more": _NotATensor()}, tmp_path / "a.ckpt")
    finding = refusal(tmp_path / "a.ckpt")
    assert finding.code == "F114" and "safetensors" in finding.fix[0]
    whole = (data_files(tmp_path / "d") / "data_0.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    assert refusal(tmp_path / "cut.pt").code in ("F101", "F114")
    packed = gzip.compress(whole)
    (tmp_path / "cut.ckpt.gz").write_bytes(packed[: len(packed) // 2])
    assert refusal(tmp_path / "cut.ckpt.gz").code == "F101"
    (tmp_path / "spoilt.ckpt.gz").write_bytes(packed[:10] + b"\xff" * 100)  # no deflate stream behind gzip's header
    assert refusal(tmp_path / "spoilt.ckpt.gz").code == "F101"
    (tmp_path / "bomb.ckpt.gz").write_bytes(gzip.compress(bytes(10_000_000)))
    assert refusal(tmp_path / "bomb.ckpt.gz").code == "F120"
    (tmp_path / "hs_0.safetensors").write_bytes(SAMPLE.read_bytes()[:5000])
    assert refusal(tmp_path / "hs_0.safetensors").code in ("F101", "F103")
    (tmp_path / "none.pt").write_bytes(b"")
    assert refusal(tmp_path / "none.pt").code == "F101"


def test_states_that_are_no_numbers(tmp_path: Path) -> None:
    values = {n: t.clone() for n, t in stored().items()}
    values["s2.hidden_states"][3, 77, 5] = float("nan")
    save_file(values, tmp_path / "s.safetensors")
    sequence = read_sample(tmp_path / "s.safetensors", spec()).sequences[2]
    assert sequence.state(3, 0, 77).shape == (77, WIDTH)
    with pytest.raises(InputError) as caught:
        sequence.state(3, 50)
    assert caught.value.finding.code == "F124"
    assert "layer 3 at position 77" in caught.value.finding.found


# --- the target's head ------------------------------------------------------------------------------------------


def test_choices_in_blocks_are_those_of_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converter.target_weights._BLOCK", 100)
    monkeypatch.setattr("converter.forward.target_head._POSITIONS", 50)
    last = states(0, LAYERS)[0]
    weights = load_file(TARGET / "model.safetensors")
    normed = last * torch.rsqrt(last.pow(2).mean(-1, keepdim=True) + 1e-5) * weights["model.norm.weight"].float()
    logits = normed @ weights["lm_head.weight"].float().T
    assert torch.equal(head().choices(last), logits.argmax(-1))
    assert torch.equal(head().choices(normed, normed=True), logits.argmax(-1))
    ids = torch.tensor([3, 99, 100, 101, 222, 271, 511])
    assert torch.equal(head().draft_choices(last, ids), ids[logits[:, ids].argmax(-1)])
    short = replace(head(), vocab_size=150)  # padded rows are not chosen
    assert torch.equal(short.choices(last), logits[:, :150].argmax(-1))


@pytest.mark.parametrize(
    ("model_type", "more", "kind"),
    [
        ("llama", {}, "weight"),
        ("gemma3_text", {}, "one plus weight"),
        ("cohere2", {}, "layer norm"),
        ("gpt_neox", {"model.norm.bias": torch.ones(WIDTH)}, "layer norm"),
    ],
)
def test_kinds_of_norm(model_type: str, more: dict[str, torch.Tensor], kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    values = load_file(TARGET / "model.safetensors") | more | {"lm_head.bias": torch.randn(VOCABULARY)}
    save_file(values, tmp_path / "model.safetensors")
    target = replace(read_target(TARGET), model_type=model_type)
    found = TargetHead.of(read_target_weights(tmp_path, VOCABULARY, WIDTH), target)
    assert found is not None and found.kind == kind
    last = states(0, LAYERS)[0][:20]
    weight, bias = values["model.norm.weight"].float(), more.get("model.norm.bias")
    if kind == "layer norm":
        normed = torch.nn.functional.layer_norm(last, (WIDTH,), weight, bias, 1e-5)
    else:
        rms = last * torch.rsqrt(last.pow(2).mean(-1, keepdim=True) + 1e-5)
        normed = rms * (1 + weight if kind == "one plus weight" else weight)
    assert torch.allclose(found.normalise(last), normed, atol=1e-5)
    logits = normed @ values["lm_head.weight"].float().T + values["lm_head.bias"]
    assert torch.equal(found.choices(last), logits.argmax(-1))


@pytest.mark.parametrize(
    ("names", "norm"),
    [
        (("model.norm.weight", "model.layers.0.norm.weight"), "model.norm.weight"),
        (("language_model.model.norm.weight", "vision_tower.norm.weight"), "language_model.model.norm.weight"),
        (("visual.merger.norm.weight", "model.language_model.norm.weight"), "model.language_model.norm.weight"),
        (("transformer.ln_f.weight",), "transformer.ln_f.weight"),
        (("backbone.norm_f.weight",), "backbone.norm_f.weight"),
        (("model.layers.3.norm.weight", "mtp.norm.weight"), ""),
    ],
)
def test_the_final_norm_is_found_by_name(names: tuple[str, ...], norm: str, tmp_path: Path) -> None:
    prefix = norm.rpartition("norm.weight")[0] or "model."
    values = {n: torch.ones(WIDTH) for n in names} | {f"{prefix}embed_tokens.weight": torch.ones(VOCABULARY, WIDTH)}
    save_file(values, tmp_path / "model.safetensors")
    weights = read_target_weights(tmp_path, VOCABULARY, WIDTH)
    assert weights is not None and weights.norm == norm
    assert (TargetHead.of(weights, read_target(TARGET)) is None) == (not norm)


def test_no_head_without_weights() -> None:
    target = read_target(TARGET)
    assert target.norm_eps == 1e-5 and target.model_type == "llama"
    weights = read_target_weights(TARGET, VOCABULARY, WIDTH)
    assert TargetHead.of(None, target) is None
    assert TargetHead.of(weights, replace(target, norm_eps=None)) is None


# --- anchors ----------------------------------------------------------------------------------------------------


def edited(tmp_path: Path, edit: Any, points: str | None = "0 1 2 3 4 5 6", **record: str) -> Path:
    values = {n: t.clone() for n, t in stored().items()}
    for k in range(4):
        name = f"s{k}.hidden_states"
        values[name] = edit(values[name]).contiguous()
    save_file(values, tmp_path / "edited.safetensors", ({} if points is None else {"capture_points": points}) | record)
    return tmp_path / "edited.safetensors"


def anchors(path: Path, **options: Any) -> Anchors:
    sample = read_sample(path, spec((0,)), last_point=LAYERS, head=options.get("head", head()), declared=False)
    return anchor(sample, options.get("embedding", table()), options.get("head", head()), LAYERS)


def test_the_fixture_is_anchored() -> None:
    found = anchors(SAMPLE)
    assert (found.embedding, found.last, found.anchored) == ("equal", "equal", True)
    assert "every label is right" in found.words[-1]


def test_some_layers_leave_the_inner_labels_as_given(tmp_path: Path) -> None:
    found = anchors(edited(tmp_path, lambda s: s[[0, 1, 3, 5, 6]], "0 1 3 5 6"))
    assert found.anchored and "taken as given" in found.words[-1]


@pytest.mark.parametrize(
    ("kept", "labels", "embedding", "last"),
    [
        (slice(1, 7), "0 1 2 3 4 5", "differs", "absent"),  # what is layer 1 is called the embedding
        (slice(0, 6), "1 2 3 4 5 6", "differs", "differs"),  # the embedding is called layer 1, layer 5 layer 6
    ],
)
def test_labels_shifted_by_one_are_not_anchored(
    kept: slice, labels: str, embedding: str, last: str, tmp_path: Path
) -> None:
    found = anchors(edited(tmp_path, lambda s: s[kept], labels))
    assert (found.embedding, found.last, found.anchored) == (embedding, last, False)
    assert "what the sample calls layer 3 may be another layer" in found.words[-1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_and_a_factor_are_allowed(dtype: torch.dtype, tmp_path: Path) -> None:
    found = anchors(edited(tmp_path, lambda s: torch.cat([s[:1] * WIDTH**0.5, s[1:]]).to(dtype)))
    assert found.anchored and "times 8" in found.words[0]


def test_a_last_state_after_the_norm_is_told(tmp_path: Path) -> None:
    """What Hugging Face gives as the last of its hidden_states."""
    found = anchors(edited(tmp_path, lambda s: torch.cat([s[:6], head().normalise(s[6])[None]])))
    assert found.last == "differs" and "after the target's final norm" in found.words[1]


def test_nothing_to_hold_it_against() -> None:
    found = anchors(SAMPLE, head=None, embedding=None)
    assert (found.embedding, found.last, found.anchored) == ("unknown", "unknown", False)
    sample = read_sample(SAMPLE, spec())
    assert anchor(sample, table(), head(), None).last == "unknown"


def test_computed_choices_do_not_pin_themselves(tmp_path: Path) -> None:
    folder = data_files(tmp_path / "d", (0, 1, 3, 5, 6))
    sample = read_sample(folder, spec(), points=(0, 1, 3, 5, 6), last_point=LAYERS, head=head())
    found = anchor(sample, table(), head(), LAYERS)
    assert (found.embedding, found.last, found.anchored) == ("equal", "unknown", False)
    assert "need not be the target's first choice" in found.words[1]


def test_a_greedy_text_pins_the_last_point() -> None:
    greedy = read_sample(SAMPLE.parent / "greedy.safetensors", spec())
    sample = replace(greedy, labels="computed", decoding="greedy")
    found = anchor(sample, table(), head(), LAYERS)
    assert found.last == "equal" and "the text that the target wrote" in found.words[1]
    sampled = replace(read_sample(SAMPLE, spec()), labels="computed", decoding="greedy")
    assert anchor(sampled, table(), head(), LAYERS).last == "differs"


def test_fp8_is_too_coarse_to_accuse(tmp_path: Path) -> None:
    values = load_file(FP8)
    embedding = torch.zeros(48, 1, WIDTH).to(torch.float8_e4m3fn)  # too small for the scale that other layers set
    values["hidden_states"] = torch.cat([embedding, values["hidden_states"]], 1)
    save_file(values, tmp_path / "hs_0.safetensors")
    sample = read_sample(tmp_path / "hs_0.safetensors", spec(), points=(0, 1, 3, 5, 6), last_point=LAYERS)
    assert anchor(sample, table(), head(), LAYERS).embedding == "unknown"


def test_every_state_of_a_large_head_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converter.forward.anchor._WORK", 1.0)
    monkeypatch.setattr("converter.forward.anchor._LEAST", 40)
    found = anchors(SAMPLE)
    assert found.anchored and "of 40 positions" in found.words[1]

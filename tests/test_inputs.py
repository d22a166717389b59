"""Inputs as people have them: pickles, casts, and what is refused on the way."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from converter.checkpoint.pickled import open_pickles
from converter.checkpoint.reader import NUMPY_DTYPES
from converter.errors import InputError
from converter.tokenizer import read_tokenizer
from converter.transforms import cast
from tests.support import DRAFTERS, SAMPLE, TARGET, check, codes, copy_of, errors, run

WEIGHTS = load_file(DRAFTERS / "a_plain" / "model.safetensors")


def pickled(folder: Path, document: Any, name: str = "pytorch_model.bin", **options: Any) -> Path:
    source = copy_of("a_plain", folder)
    (source / "model.safetensors").unlink()
    torch.save(document, source / name, **options)
    return source


@pytest.mark.parametrize(
    "document",
    [WEIGHTS, {"model": WEIGHTS, "epoch": 3}, {"state_dict": WEIGHTS}, {"draft_state_dict": WEIGHTS, "step": 1}],
    ids=["plain", "model", "state_dict", "draft_state_dict"],
)
def test_a_pickle_converts_like_the_safetensors_file(document: Any, tmp_path: Path) -> None:
    report = run(pickled(tmp_path / "in", document), tmp_path / "out", sample=SAMPLE)
    assert report.outcome == "converted"
    run(DRAFTERS / "a_plain", tmp_path / "plain")
    ours, plain = (load_file(tmp_path / f / "model.safetensors") for f in ("out", "plain"))
    assert ours.keys() == plain.keys()
    assert all(torch.equal(ours[n], plain[n]) for n in plain)


def test_the_old_form_of_pickle_is_read_too(tmp_path: Path) -> None:
    source = pickled(tmp_path / "in", WEIGHTS, _use_new_zipfile_serialization=False)
    assert run(source, tmp_path / "out").outcome == "converted"


@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (1,), (1, 1), (0, 3), ()])
def test_values_of_a_pickle_that_are_views_of_others(shape: tuple[int, ...], tmp_path: Path) -> None:
    """A single value may come with any stride, a larger one in any order."""
    stored = torch.arange(100, dtype=torch.float32)
    value = stored.as_strided(shape, (71, 7)[: len(shape)] if len(shape) < 2 or 1 in shape else (2, 9), 5)
    torch.save({"fc.weight": value}, tmp_path / "pytorch_model.bin")
    checkpoint = open_pickles([tmp_path / "pytorch_model.bin"])
    assert checkpoint.read("fc.weight").tolist() == value.tolist()


def test_shards_of_pickles(tmp_path: Path) -> None:
    source = pickled(tmp_path / "in", {}, "unused.txt")
    names = sorted(WEIGHTS)
    files = {"pytorch_model-00001-of-00002.bin": names[:5], "pytorch_model-00002-of-00002.bin": names[5:]}
    for file, part in files.items():
        torch.save({n: WEIGHTS[n] for n in part}, source / file)
    index = {"weight_map": {n: f for f, part in files.items() for n in part}}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert run(source, tmp_path / "out").outcome == "converted"
    (source / "pytorch_model-00002-of-00002.bin").unlink()
    assert refusal(source, tmp_path) == "F108"


def refusal(source: Path, tmp_path: Path) -> str:
    with pytest.raises(InputError) as caught:
        run(source, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    return caught.value.finding.code


class Payload:
    """Unpickled in full, it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_a_pickle_that_would_run_code_is_refused_and_does_not(tmp_path: Path) -> None:
    source = pickled(tmp_path / "in", WEIGHTS)
    mark = tmp_path / "owned"
    torch.save({"model": WEIGHTS, "x": Payload(mark)}, source / "pytorch_model.bin")
    assert refusal(source, tmp_path) == "F114"
    (source / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(mark)))
    assert refusal(source, tmp_path) == "F114"
    assert not mark.exists()


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    source = pickled(tmp_path / "in", WEIGHTS)
    with zipfile.ZipFile(source / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(10_000_000))
    assert refusal(source, tmp_path) == "F114"


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 and then nothing", b"\x80\x02garbage", b"<html>"])
def test_what_is_no_pytorch_file(data: bytes, tmp_path: Path) -> None:
    source = pickled(tmp_path / "in", WEIGHTS)
    (source / "pytorch_model.bin").write_bytes(data)
    assert refusal(source, tmp_path) in ("F101", "F114")


def test_a_training_state_without_a_model(tmp_path: Path) -> None:
    document = {"optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 0.1}]}, "epoch": 4}
    assert refusal(pickled(tmp_path / "in", document), tmp_path) == "F107"


def test_safetensors_are_preferred_to_a_pickle_beside_them(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in")
    torch.save({"something": torch.ones(1)}, source / "pytorch_model.bin")
    assert run(source, tmp_path / "out").outcome == "converted"


# --- casts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_a_cast_rounds_as_torch_does(name: str, stored: torch.dtype, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)

    def widen(tensors: dict[str, Any]) -> None:
        for key, value in tensors.items():
            if value.is_floating_point():
                tensors[key] = (torch.randn(value.shape, generator=generator) * 3).to(stored)

    source = copy_of("a_plain", tmp_path / "in", lambda c: c.pop("dtype"), widen)
    report = run(source, tmp_path / "out", dtype=name, target=TARGET / "config.json")
    assert report.outcome == "converted"
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert report.plan is not None
    for tensor in report.plan.tensors:
        wanted = before[tensor.source]
        wanted = wanted.to(getattr(torch, name)) if wanted.is_floating_point() else wanted
        assert after[tensor.name].dtype == wanted.dtype
        assert torch.equal(after[tensor.name], wanted)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["dtype"], config["torch_dtype"]) == (name, name)


_TORCH = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@pytest.mark.parametrize(("source", "target"), [*itertools.permutations(_TORCH, 2)])
def test_every_value_is_cast_as_torch_does(source: str, target: str) -> None:
    """All that 16 bits can hold; of fp32 those around every edge and tie, and many others. No NaN becomes a number."""
    if source == "F32":
        edges = (0, 0x33000000, 0x38800000, 0x477FF000, 0x7F7F8000, 0x7F800000)  # zero, fp16's ends, bf16's end, inf
        runs = [np.arange(max(edge - 9000, 0), edge + 9000, dtype=np.uint32) for edge in edges]
        bits = np.concatenate([*runs, np.arange(0, 1 << 31, 40013, dtype=np.uint32)])
        values: np.ndarray = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    else:
        values = np.arange(1 << 16, dtype=np.uint16).view(NUMPY_DTYPES[source])
    given = torch.from_numpy(values.view(f"i{values.itemsize}")).view(_TORCH[source])
    made = cast(values, source, target)
    got, wanted = torch.from_numpy(made.view(f"i{made.itemsize}")).view(_TORCH[target]), given.to(_TORCH[target])
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got.nan_to_num(0), wanted.nan_to_num(0))


def test_a_cast_that_overflows_is_refused(tmp_path: Path) -> None:
    def grow(tensors: dict[str, Any]) -> None:
        tensors["norm.weight"][0] = 1e6

    source = copy_of("a_plain", tmp_path / "in", tensors=grow)
    assert errors(run(source, tmp_path / "out", dtype="float16")) == ["N110"]
    assert run(source, tmp_path / "out", dtype="float32").outcome == "converted"


def test_a_cast_and_a_permutation_together(tmp_path: Path) -> None:
    def shuffle(tensors: dict[str, Any]) -> None:
        a, b, c = tensors["fc.weight"].chunk(3, dim=-1)
        tensors["fc.weight"] = torch.cat([c, a, b], dim=-1).contiguous()

    def reorder(config: dict[str, Any]) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = [5, 1, 3]

    report = run(
        copy_of("a_plain", tmp_path / "in", reorder, shuffle), tmp_path / "out", dtype="float32", sample=SAMPLE
    )
    assert report.outcome == "converted"
    assert codes(report) == ["K115"]
    written = load_file(tmp_path / "out" / "model.safetensors")["fc.weight"]
    assert torch.equal(written, WEIGHTS["fc.weight"].float())


def test_every_bf16_value_survives_a_round_trip() -> None:
    import numpy as np

    from converter.transforms import as_float32, cast

    bits = np.arange(65536, dtype=np.uint16)
    finite = bits[(bits & 0x7F80) != 0x7F80]
    wide = cast(finite, "BF16", "F32")
    assert np.array_equal(wide, as_float32(finite, "BF16"))
    assert np.array_equal(cast(wide, "F32", "BF16"), finite)


# --- quantised drafters: shapes and faults, not truth ---------------------------------------------------------------

CONFIG = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def quantise(*modules: str, form: str = "fp8"):  # type: ignore[no-untyped-def]
    def edit(tensors: dict[str, Any]) -> None:
        for module in modules:
            weight = tensors[f"{module}.weight"]
            if form == "fp8":
                tensors[f"{module}.weight"] = weight.to(torch.float8_e4m3fn)
                tensors[f"{module}.weight_scale_inv"] = torch.ones(1, 1)
            else:
                del tensors[f"{module}.weight"]
                tensors[f"{module}.weight_packed"] = torch.zeros(
                    weight.shape[0], weight.shape[1] // 8, dtype=torch.int32
                )
                tensors[f"{module}.weight_scale"] = torch.ones(weight.shape[0], 1)
                tensors[f"{module}.weight_shape"] = torch.tensor(weight.shape)

    return edit


def declare(config: dict[str, Any]) -> None:
    config["quantization_config"] = CONFIG


@pytest.mark.parametrize("form", ["fp8", "packed"])
def test_scales_move_with_their_weights(form: str, tmp_path: Path) -> None:
    modules = ("layers.0.mlp.up_proj", "layers.0.self_attn.q_proj")
    source = copy_of("a_plain", tmp_path / "in", declare, quantise(*modules, form=form))
    report = run(source, tmp_path / "out")
    assert report.outcome == "converted"
    assert codes(report) == ["K118"]
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert {n.replace("layers.0.", "midlayer.") for n in before} == set(after)
    for name, value in before.items():
        moved = after[name.replace("layers.0.", "midlayer.")]
        assert moved.dtype == value.dtype
        assert torch.equal(moved.view(torch.uint8), value.view(torch.uint8))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"] == CONFIG


def test_quantised_weights_and_their_config_belong_together(tmp_path: Path) -> None:
    edit = quantise("layers.0.mlp.up_proj")
    assert errors(run(copy_of("a_plain", tmp_path / "a", None, edit), tmp_path / "out")) == ["T110"]
    report = run(copy_of("a_plain", tmp_path / "b", declare), tmp_path / "out")
    assert codes(report) == ["T111"]
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())


def test_sglang_never_loads_fc_quantised(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", declare, quantise("fc"))
    assert errors(run(source, tmp_path / "out")) == ["K117"]
    assert errors(run(source, tmp_path / "out", "vllm==0.33.0")) == []


@pytest.mark.parametrize(("form", "aux", "found"), [
    ("fp8", (5, 3, 1), []), ("packed", (1, 3, 5), []), ("packed", (5, 3, 1), ["K145"]), ("groups", (5, 3, 1), ["K145"]),
])  # fmt: skip
def test_a_quantised_fc_whose_blocks_would_change_places(
    form: str, aux: tuple[int, ...], found: list[str], tmp_path: Path
) -> None:
    """Packed columns, and scales for groups of them, would stay where they are."""

    def edit(tensors: dict[str, Any]) -> None:
        quantise("fc", form="fp8" if form == "groups" else form)(tensors)
        if form == "groups":
            tensors["fc.weight_scale_inv"] = torch.ones(1, 3)

    source = copy_of("a_plain", tmp_path / "in", declare, edit)
    report = run(source, tmp_path / "out", "vllm==0.33.0", aux=aux)
    assert errors(report) == found
    if not found:
        moved, own = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", source))
        name = "fc.weight" if form == "fp8" else "fc.weight_packed"
        blocks = list(own[name].view(torch.uint8).chunk(3, 1))
        ordered = blocks[::-1] if aux == (5, 3, 1) else blocks
        assert torch.equal(moved[name].view(torch.uint8), torch.cat(ordered, 1))


def test_scales_are_not_cast_and_may_be_larger_than_float16_holds(tmp_path: Path) -> None:
    def edit(tensors: dict[str, Any]) -> None:
        quantise("layers.0.mlp.up_proj")(tensors)
        tensors["layers.0.mlp.up_proj.weight_scale_inv"] = torch.full((1, 1), 70_000.0)

    source = copy_of("a_plain", tmp_path / "in", declare, edit)
    report = run(source, tmp_path / "out", "vllm==0.33.0", dtype="float16")
    assert codes(report) == ["K118"]
    after = load_file(tmp_path / "out" / "model.safetensors")
    [scale] = [t for name, t in after.items() if name.endswith("weight_scale_inv")]
    assert scale.dtype == torch.float32 and float(scale) == 70_000


def test_a_quantised_drafter_is_not_proved(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", declare, quantise("layers.0.mlp.up_proj"))
    assert errors(run(source, tmp_path / "out", sample=SAMPLE)) == ["N104"]


def test_a_cast_leaves_quantised_weights_alone(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", declare, quantise("layers.0.mlp.up_proj"))
    run(source, tmp_path / "out", dtype="float32")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert after["midlayer.mlp.up_proj.weight"].dtype == torch.float8_e4m3fn
    assert after["midlayer.mlp.gate_proj.weight"].dtype == torch.float32


def test_an_embedding_that_is_not_the_targets(tmp_path: Path) -> None:
    def at_random(tensors: dict[str, Any]) -> None:
        table = tensors["embed_tokens.weight"]
        tensors["embed_tokens.weight"] = torch.randn(table.shape, generator=torch.manual_seed(7)).to(table.dtype)

    report = run(copy_of("k_embedgrad", tmp_path / "in", tensors=at_random), tmp_path / "out")
    assert errors(report) == ["T109"]
    assert "cosine 0.0" in next(f.found for f in report.findings if f.code == "T109").replace("-", "")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["eagle3-seal.json", "model.safetensors.index.json", "tokenizer.json"])
def test_a_pipe_in_the_folder_is_not_waited_for(name: str, tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in")
    os.mkfifo(source / name)
    if name.endswith(".index.json"):
        with pytest.raises(InputError, match="it is a pipe or a device, not a file"):
            check(source, "vllm==0.33.0")
    else:
        assert errors(check(source, "vllm==0.33.0")) == []


def test_settings_of_a_tokenizer_with_values_of_other_types(tmp_path: Path) -> None:
    settings = {
        "chat_template": [{"name": [1]}, {"name": "default", "template": "{{ x }}"}],
        "added_tokens_decoder": {"\u00b2": {"content": "no"}, "2": {"content": "yes"}},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    found = read_tokenizer(tmp_path)
    assert (found.tokens, found.template, found.unread) == ({0: "a", 2: "yes"}, "{{ x }}", ())

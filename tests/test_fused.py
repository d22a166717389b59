"""Drafters that store q, k and v, or gate and up, as one tensor: split by a layout that rules name, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from converter.checkpoint.reader import open_checkpoint
from converter.checkpoint.writer import _runs
from converter.output import _output
from converter.pipeline import Report
from converter.rules import loading
from converter.rules.schema import check as check_document
from converter.rules.targets import target_rule
from tests.support import DATA, DRAFTERS, SAMPLE, TARGET, Tensors, check, codes, copy_of, eagle3, errors, run
from tests.test_producers import changed

FUSED = {"self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"), "mlp.gate_up_proj": ("gate_proj", "up_proj")}


def fuse(tensors: Tensors) -> None:
    """Join what the layers have apart, as an engine's own model holds it; biases too."""
    for module, parts in FUSED.items():
        room, last = module.rsplit(".", 1)
        for first in [n for n in tensors if f".{room}.{parts[0]}." in n]:
            whole = first.replace(f".{parts[0]}.", f".{last}.")
            tensors[whole] = torch.cat([tensors.pop(first.replace(f".{parts[0]}.", f".{p}.")) for p in parts])


def interleave(tensors: Tensors) -> None:
    """q, k and v with the heads that share keys together, as GPT-NeoX, InternLM2 and Megatron lay them out."""
    rows = [tensors.pop(f"layers.0.self_attn.{x}_proj.weight") for x in "qkv"]
    groups = [r.unflatten(0, (2, -1)) for r in rows]
    tensors["layers.0.self_attn.qkv_proj.weight"] = torch.cat(groups, dim=1).flatten(0, 1)


def without_layout(report: Report) -> list[str]:
    return [c for c in codes(report) if c != "T112"]


@pytest.fixture(autouse=True)
def no_rules_left() -> Iterator[None]:
    yield
    loading._added.clear()
    loading.forget()


@pytest.mark.parametrize(
    ("drafter", "engine"), [("a_plain", "sglang"), ("e_2layers", "sglang"), ("f_qwen3", "vllm"), ("j_attnbias", "vllm")]
)
def test_the_output_is_that_of_the_drafter_with_its_matrices_apart(drafter: str, engine: str, tmp_path: Path) -> None:
    report = run(copy_of(drafter, tmp_path / "in", tensors=fuse), tmp_path / "out", engine)
    plain = run(DRAFTERS / drafter, tmp_path / "plain", engine)
    assert report.outcome == plain.outcome == "converted"
    ours, theirs = (load_file(tmp_path / f / "model.safetensors") for f in ("out", "plain"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)
    assert (tmp_path / "out" / "config.json").read_text() == (tmp_path / "plain" / "config.json").read_text()
    assert without_layout(report) == codes(plain) and "T112" in codes(report)


@pytest.mark.parametrize("producer", ["specforge_sglang", "modelopt_layers", "angelslim"])
def test_names_of_other_trainers_are_split_too(producer: str, tmp_path: Path) -> None:
    options = {"aux": (1, 3, 5), "given": {"rope_scaling": "none"}}
    report = run(changed(producer, tmp_path / "in", tensors=fuse), tmp_path / "out", **options)
    run(DATA / "producers" / producer, tmp_path / "plain", **options)
    assert report.outcome == "converted" and report.plan is not None and len(report.plan.split) == 5
    ours, theirs = (load_file(tmp_path / f / "model.safetensors") for f in ("out", "plain"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


def test_a_sample_scores_it_as_the_same_drafter_and_settles_the_layout(tmp_path: Path) -> None:
    report = run(copy_of("a_plain", tmp_path / "in", tensors=fuse), tmp_path / "out", sample=SAMPLE)
    plain = run(DRAFTERS / "a_plain", tmp_path / "plain", sample=SAMPLE)
    assert report.proof is not None and plain.proof is not None
    assert report.proof.level == "anchored" and report.proof.scores == plain.proof.scores
    assert "T112" not in codes(report)


def test_a_sample_tells_rows_that_lie_by_groups_of_heads(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", tensors=interleave)
    assert "T112" in codes(check(source, "sglang"))
    report = run(source, tmp_path / "out", sample=SAMPLE)
    assert report.outcome == "refused" and {"A301", "T112"} <= set(codes(report))
    [found] = [f for f in report.findings if f.code == "A301"]
    assert "rows of q, k and v by groups of heads" in found.message


def test_the_plan_says_which_rows_and_the_seal_keeps_their_digests(tmp_path: Path) -> None:
    run(copy_of("a_plain", tmp_path / "in", tensors=fuse), tmp_path / "out")
    run(DRAFTERS / "a_plain", tmp_path / "plain")
    seals = [json.loads((tmp_path / f / "eagle3-seal.json").read_text()) for f in ("out", "plain")]
    ours, theirs = ({t["name"]: t for t in seal["tensors"]} for seal in seals)
    taken = {n: (t["source"], t["operations"]) for n, t in ours.items() if t["operations"]}
    rows = {"q": (0, 64), "k": (64, 32), "v": (96, 32), "gate": (0, 192), "up": (192, 192)}
    for part, (first, count) in rows.items():
        room, whole = ("self_attn", "qkv_proj") if part in "qkv" else ("mlp", "gate_up_proj")
        operation = {"name": "split rows", "arguments": {"first": first, "count": count}}
        assert taken.pop(f"midlayer.{room}.{part}_proj.weight") == (f"layers.0.{room}.{whole}.weight", [operation])
    assert not taken and "fused.yaml" in seals[0]["rules"]
    for name, tensor in ours.items():
        assert tensor["xxh3_128"] == tensor["source_xxh3_128"] == theirs[name]["xxh3_128"]


def test_bytes_are_moved_and_neighbours_together(tmp_path: Path) -> None:
    """No tensor is read: the writer is given ranges of the input, and those of one tensor are one range."""
    report = run(copy_of("a_plain", tmp_path / "in", tensors=fuse), tmp_path / "out", dry_run=True)
    assert report.drafter is not None and report.plan is not None
    parts = [_output(report.drafter, t, {}) for t in report.plan.split]
    assert len(parts) == 5 and all(p.make is None for p in parts)
    assert sorted(map(len, _runs(parts))) == [2, 3]


def test_parts_are_cast(tmp_path: Path) -> None:
    run(copy_of("a_plain", tmp_path / "in", tensors=fuse), tmp_path / "out", dtype="float16")
    run(DRAFTERS / "a_plain", tmp_path / "plain", dtype="float16")
    ours, theirs = (load_file(tmp_path / f / "model.safetensors") for f in ("out", "plain"))
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)


def test_a_pickle_is_read_as_long_as_its_parts_are_needed(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", tensors=fuse)
    torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    run(source, tmp_path / "out")
    run(DRAFTERS / "a_plain", tmp_path / "plain")
    ours, theirs = (load_file(tmp_path / f / "model.safetensors") for f in ("out", "plain"))
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)


def test_the_report_says_what_was_split(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", tensors=fuse)
    done = eagle3("convert", source, tmp_path / "out", "--target", TARGET, "--dry-run")
    assert "13 tensors" in done.stdout
    assert "split       layers.0.mlp.gate_up_proj.weight, layers.0.self_attn.qkv_proj.weight into 5" in done.stdout
    assert "midlayer.self_attn.k_proj.weight  <-  layers.0.self_attn.qkv_proj.weight rows 64..95" in done.stdout


def only(report: Report, code: str) -> str:
    """The finding's words, where it alone stops the run."""
    assert errors(report) == [code]
    return "\n".join(f"{f.message} {f.found} {f.expected}" for f in report.findings if f.code == code)


def test_one_rank_of_several_is_refused(tmp_path: Path) -> None:
    def half(tensors: Tensors) -> None:
        fuse(tensors)
        name = "layers.0.self_attn.qkv_proj.weight"
        tensors[name] = tensors[name][:64].clone()

    text = only(check(copy_of("a_plain", tmp_path / "in", tensors=half), "sglang"), "T113")
    assert "[64, 128]" in text and "64 + 32 + 32 = 128 rows" in text


def test_a_width_that_does_not_fit_is_found_in_each_part(tmp_path: Path) -> None:
    def narrow(tensors: Tensors) -> None:
        fuse(tensors)
        name = "layers.0.self_attn.qkv_proj.weight"
        tensors[name] = tensors[name][:, :64].clone()

    text = only(check(copy_of("a_plain", tmp_path / "in", tensors=narrow), "sglang"), "T104")
    assert "layers.0.self_attn.qkv_proj.weight[64:96]" in text and "[32, 64]" in text


def test_both_forms_at_once_are_refused(tmp_path: Path) -> None:
    def both(tensors: Tensors) -> None:
        kept = tensors["layers.0.self_attn.k_proj.weight"].clone()
        fuse(tensors)
        tensors["layers.0.self_attn.k_proj.weight"] = kept

    text = only(check(copy_of("a_plain", tmp_path / "in", tensors=both), "sglang"), "T102")
    assert "layers.0.self_attn.k_proj.weight is one of them again" in text
    assert "layers.0.self_attn.qkv_proj.weight holds q_proj, k_proj and v_proj, and" in text


def test_quantised_ones_are_refused(tmp_path: Path) -> None:
    def scaled(tensors: Tensors) -> None:
        fuse(tensors)
        tensors["layers.0.mlp.gate_up_proj.weight_scale"] = torch.ones(1)

    text = only(check(copy_of("a_plain", tmp_path / "in", tensors=scaled), "sglang"), "T114")
    assert "layers.0.mlp.gate_up_proj.weight_scale" in text


def test_a_bias_that_the_config_does_not_speak_of_is_reported_as_such(tmp_path: Path) -> None:
    def biased(tensors: Tensors) -> None:
        fuse(tensors)
        tensors["layers.0.self_attn.qkv_proj.bias"] = torch.zeros(128)

    assert errors(check(copy_of("a_plain", tmp_path / "in", tensors=biased), "sglang")) == ["T105"]


def renamed(old: str, new: str) -> Callable[[Tensors], None]:
    def rename(tensors: Tensors) -> None:
        fuse(tensors)
        tensors[new] = tensors.pop(old)

    return rename


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("self_attn.qkv_proj", "self_attn.W_pack"),
        ("self_attn.qkv_proj", "attention.wqkv"),
        ("self_attn.qkv_proj", "attention.query_key_value"),
        ("self_attn.qkv_proj", "self_attn.linear_qkv"),
        ("mlp.gate_up_proj", "mlp.gate_up"),
        ("mlp.gate_up_proj", "mlp.linear_fc1"),
    ],
)
def test_names_whose_layout_is_not_known_are_refused_with_what_to_do(module: str, name: str, tmp_path: Path) -> None:
    rename = renamed(f"layers.0.{module}.weight", f"layers.0.{name}.weight")
    report = check(copy_of("a_plain", tmp_path / "in", tensors=rename), "sglang")
    assert "several matrices as one" in only(report, "F116")
    [found] = [f for f in report.findings if f.code == "F116"]
    assert found.fix[0].startswith("save them apart") and "--mapping" in found.fix[1]


RULES = """
dialect: speculators
fused:
  layers.{i}.attn.all:
    layout: stacked
    into: ["layers.{i}.self_attn.q_proj", "layers.{i}.self_attn.k_proj", "layers.{i}.self_attn.v_proj"]
  layers.{i}.mlp.gate_up_proj: null
"""


def test_a_rule_file_of_the_user_names_a_layout_and_takes_one_back(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(RULES)
    loading.add(tmp_path / "mine.yaml")
    rename = renamed("layers.0.self_attn.qkv_proj.weight", "layers.0.attn.all.weight")
    source = copy_of("a_plain", tmp_path / "in", tensors=rename)
    report = check(source, "sglang")
    assert errors(report) == ["T101", "T103"]  # gate_up_proj leads nowhere any more
    assert {f.where for f in report.findings if f.code == "T103"} == {
        f"layers.0.mlp.{x}_proj.weight" for x in ("gate", "up")
    }
    tensors = load_file(source / "model.safetensors")
    whole = tensors.pop("layers.0.mlp.gate_up_proj.weight")
    tensors |= {
        f"layers.0.mlp.{n}_proj.weight": t.clone() for n, t in zip(("gate", "up"), whole.split(192), strict=True)
    }
    save_file(tensors, source / "model.safetensors")
    run(source, tmp_path / "out")
    loading._added.clear()
    loading.forget()
    run(DRAFTERS / "a_plain", tmp_path / "plain")
    ours, theirs = (load_file(tmp_path / f / "model.safetensors") for f in ("out", "plain"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


def test_a_layout_that_nobody_knows_is_a_fault_of_the_rule_file() -> None:
    document = {**loading.load("dialects", "speculators")}
    document["fused"] = {"layers.{i}.attn.all": {"layout": "interleaved", "into": ["layers.{i}.mlp.gate_proj", "x"]}}
    faults = check_document(document, "dialect")
    assert any("layout" in f and "stacked" in f for f in faults) and any("into[1]" in f for f in faults)


def test_cutting_leaves_the_rest_in_place(tmp_path: Path) -> None:
    whole = open_checkpoint(copy_of("a_plain", tmp_path / "in", tensors=fuse))
    name = "layers.0.self_attn.qkv_proj.weight"
    cut = whole.cut({name: [64, 32, 32]})
    parts = [f"{name}[0:64]", f"{name}[64:96]", f"{name}[96:128]"]
    expected = [n for old in whole.tensors for n in (parts if old == name else [old])]
    assert list(cut.tensors) == expected and list(whole.tensors) != expected and cut.count == whole.count == 13
    together = torch.cat([torch.from_numpy(cut.read(part).astype("int32")) for part in parts])
    assert torch.equal(together, torch.from_numpy(whole.read(name).astype("int32")))


def test_rules_that_were_added_are_there_at_once(tmp_path: Path) -> None:
    """What was remembered of the rules before is forgotten."""
    assert target_rule("sglang", "0.5.23", "Nobody") is None
    built_in = json.loads(loading.rules_folder("engines").joinpath("sglang.targets.json").read_bytes())["targets"]
    row = next(
        r for r in built_in if r["architecture"] == "LlamaForCausalLM" and loading.covers(r["releases"], "0.5.23")
    )
    file = tmp_path / "more.yaml"
    file.write_text(json.dumps({"engine": "sglang", "targets": [{**row, "architecture": "Nobody"}]}))
    loading.add(file)
    found = target_rule("sglang", "0.5.23", "Nobody")
    assert found is not None and found.embedding == row["embedding"]

"""The main job on drafters that the real speculators library trained and saved."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from converter import output
from converter.checkpoint import digest
from converter.checkpoint.reader import open_checkpoint
from converter.plan import shard_size
from tests.support import DRAFTERS, NAMES, SAMPLE, check, codes, copy_of, eagle3, errors, run

# Drafter -> what each release refuses; empty where it converts.
VERDICTS = {
    "a_plain": {"0.5.23": [], "0.5.9": []},
    "b_nbr": {"0.5.23": ["K103"], "0.5.9": ["K103"]},
    "c_nbfc": {"0.5.23": [], "0.5.9": ["K104"]},
    "d_fcnorm_normout": {"0.5.23": [], "0.5.9": ["K105", "K106"]},
    "e_2layers": {"0.5.23": [], "0.5.9": ["K102"]},
    "f_qwen3": {"0.5.23": ["K107"], "0.5.9": ["K107"]},
    "g_aux024": {"0.5.23": [], "0.5.9": ["K121"]},
    "h_fullvocab": {"0.5.23": [], "0.5.9": []},
    "i_rope_headdim": {"0.5.23": [], "0.5.9": []},
    "j_attnbias": {"0.5.23": ["K108"], "0.5.9": ["K108"]},
    "k_embedgrad": {"0.5.23": [], "0.5.9": []},
    "l_defaults": {"0.5.23": ["K103"], "0.5.9": ["K103", "K104", "K106", "K110"]},
}


def test_every_bundled_drafter_has_a_verdict() -> None:
    assert sorted(VERDICTS) == NAMES


@pytest.mark.parametrize("release", ["0.5.23", "0.5.9"])
@pytest.mark.parametrize("name", NAMES)
def test_what_a_release_cannot_compute_is_refused(name: str, release: str, tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in (DRAFTERS / name).iterdir()}
    report = run(DRAFTERS / name, tmp_path / "out", f"sglang=={release}")
    assert errors(report) == VERDICTS[name][release]
    refused = bool(VERDICTS[name][release])
    assert report.outcome == ("refused" if refused else "converted")
    assert (tmp_path / "out").exists() is not refused
    assert [p.name for p in tmp_path.iterdir()] == ([] if refused else ["out"])
    assert {p.name: p.read_bytes() for p in (DRAFTERS / name).iterdir()} == before


@pytest.mark.parametrize("name", [n for n in NAMES if not VERDICTS[n]["0.5.23"]])
def test_every_weight_arrives_unchanged(name: str, tmp_path: Path) -> None:
    report = run(DRAFTERS / name, tmp_path / "out")
    source = load_file(DRAFTERS / name / "model.safetensors")
    output = load_file(tmp_path / "out" / "model.safetensors")
    assert report.plan is not None
    assert {t.source for t in report.plan.tensors} == set(source)
    assert {t.name for t in report.plan.tensors} == set(output)
    for tensor in report.plan.tensors:
        assert output[tensor.name].dtype == source[tensor.source].dtype
        assert output[tensor.name].equal(source[tensor.source]), tensor.name


def test_names_that_sglang_loads(tmp_path: Path) -> None:
    run(DRAFTERS / "e_2layers", tmp_path / "out")
    from safetensors import safe_open

    with safe_open(tmp_path / "out" / "model.safetensors", "np") as file:
        names = set(file.keys())
        assert file.metadata() == {"format": "pt"}
    assert {n for n in names if "norm" in n} == {
        "midlayer.hidden_norm.weight",
        "midlayer.input_layernorm.weight",
        "midlayer.post_attention_layernorm.weight",
        "layers.1.hidden_norm.weight",
        "layers.1.post_attention_layernorm.weight",
        "norm.weight",
    }


def test_the_config_is_flat_and_explicit(tmp_path: Path) -> None:
    run(DRAFTERS / "i_rope_headdim", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "vocab_size": 512,
        "draft_vocab_size": 384,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "max_position_embeddings": 1024,
        "rope_theta": 500000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "attention_bias": False,
        "mlp_bias": False,
        "bias": False,
        "tie_word_embeddings": False,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "num_aux_hidden_states": 3,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4], "use_aux_hidden_state": True},
        "eagle_aux_hidden_state_layer_ids": [1, 3, 5],
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
    }


@pytest.mark.parametrize("name", [n for n in NAMES if not VERDICTS[n]["0.5.23"]])
def test_no_key_is_null(name: str, tmp_path: Path) -> None:
    run(DRAFTERS / name, tmp_path / "out")
    assert "null" not in (tmp_path / "out" / "config.json").read_text()


def test_scaled_rope_is_written_in_both_spellings(tmp_path: Path) -> None:
    llama3 = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip

    def scale(config: dict) -> None:  # type: ignore[type-arg]
        config["transformer_layer_config"]["rope_parameters"] = {**llama3, "rope_theta": 5e5}

    run(copy_of("a_plain", tmp_path / "in", scale), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rope_theta"] == 5e5
    assert config["rope_scaling"] == llama3
    assert config["rope_parameters"] == {**llama3, "rope_theta": 5e5}


def test_older_spelling_of_rope_reads_the_same(tmp_path: Path) -> None:
    def older(config: dict) -> None:  # type: ignore[type-arg]
        layer = config["transformer_layer_config"]
        layer["rope_theta"] = layer.pop("rope_parameters")["rope_theta"]
        layer["rope_scaling"] = None

    run(copy_of("i_rope_headdim", tmp_path / "in", older), tmp_path / "out")
    run(DRAFTERS / "i_rope_headdim", tmp_path / "out2")
    assert (tmp_path / "out" / "config.json").read_bytes() == (tmp_path / "out2" / "config.json").read_bytes()


def test_rope_that_sglang_reads_otherwise_is_refused(tmp_path: Path) -> None:
    def yarn(config: dict) -> None:  # type: ignore[type-arg]
        config["transformer_layer_config"]["rope_parameters"] = {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 256,
            "attention_factor": 1.5,
        }  # fmt: skip

    assert errors(run(copy_of("a_plain", tmp_path / "in", yarn), tmp_path / "out")) == ["K112"]


def test_sliding_windows(tmp_path: Path) -> None:
    """One window for all layers travels in a launch option, less the query's own key; a mix is refused."""

    def windows(*kinds: str):  # type: ignore[no-untyped-def]
        def edit(config: dict) -> None:  # type: ignore[type-arg]
            config["transformer_layer_config"] |= {"layer_types": list(kinds), "sliding_window": 128}

        return edit

    alike = copy_of("e_2layers", tmp_path / "alike", windows("sliding_attention", "sliding_attention"))
    report = run(alike, tmp_path / "out")
    assert report.outcome == "converted"
    assert report.plan is not None
    assert report.plan.launch == {"--speculative-draft-window-size": 127}
    mixed = copy_of("e_2layers", tmp_path / "mixed", windows("sliding_attention", "full_attention"))
    assert errors(run(mixed, tmp_path / "out2")) == ["K110"]
    one = copy_of("a_plain", tmp_path / "one", windows("sliding_attention"))
    assert errors(run(one, tmp_path / "out3", "sglang==0.5.9")) == ["K110"]


SHARDS = {"model-00001-of-00002.safetensors": slice(7), "model-00002-of-00002.safetensors": slice(7, None)}


def shards_of_a_plain(source: Path) -> Path:
    source.mkdir()
    shutil.copy(DRAFTERS / "a_plain" / "config.json", source)
    tensors = load_file(DRAFTERS / "a_plain" / "model.safetensors")
    names = sorted(tensors)
    files = {file: names[part] for file, part in SHARDS.items()}
    for file, part in files.items():
        save_file({n: tensors[n] for n in part}, source / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {n: f for f, part in files.items() for n in part}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    return source


def test_shards_and_index_are_kept(tmp_path: Path) -> None:
    source = shards_of_a_plain(tmp_path / "in")
    report = run(source, tmp_path / "out", sample=SAMPLE)
    assert report.outcome == "converted"
    written = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    for file in SHARDS:
        there = set(load_file(tmp_path / "out" / file))
        assert {n for n, f in written["weight_map"].items() if f == file} == there
        assert len(there) == len(load_file(source / file))


@pytest.mark.parametrize("sharded", [False, True])
def test_weights_are_cut_anew(sharded: bool, tmp_path: Path) -> None:
    """As the option says, whatever the files of the input; the index names every tensor's file, the seal lists all."""
    source = shards_of_a_plain(tmp_path / "in") if sharded else DRAFTERS / "a_plain"
    most = 40_000
    report = run(source, tmp_path / "out", sample=SAMPLE, max_shard_size=most, dtype="float32")
    assert report.outcome == "converted"
    whole = run(DRAFTERS / "a_plain", tmp_path / "whole", sample=SAMPLE, dtype="float32")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(p.name for p in (tmp_path / "out").glob("*.safetensors"))
    assert files == [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)]
    assert set(index["weight_map"].values()) == set(files) and len(files) > 4
    checkpoint = open_checkpoint(tmp_path / "out")  # which holds the index against the files
    held = [[t for t in checkpoint.tensors.values() if t.file.name == name] for name in files]
    sizes = [[t.info.nbytes for t in tensors] for tensors in held]
    assert all(sum(s) <= most or len(s) == 1 for s in sizes)
    assert all(sum(s) + after[0] > most for s, after in itertools.pairwise(sizes))  # none had room for the next
    assert index["metadata"]["total_size"] == sum(map(sum, sizes))
    one = open_checkpoint(tmp_path / "whole")
    assert not one.sharded
    assert set(checkpoint.tensors) == set(one.tensors)
    assert all(np.array_equal(checkpoint.read(name), one.read(name)) for name in one.tensors)
    assert report.proof is not None and whole.proof is not None and report.proof.level == whole.proof.level
    sealed = {f["name"] for f in report.sealed["files"]}
    assert sealed == {p.name for p in (tmp_path / "out").iterdir()} - {"eagle3-seal.json"}
    assert check(tmp_path / "out", "sglang==0.5.23").outcome == "validated"
    assert "C233" not in codes(check(tmp_path / "out", "sglang==0.5.23"))


def test_a_file_is_written_while_the_one_before_is_digested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SHA-256 takes a core for each file; here that of the first begins when the second is there."""
    follow, second = digest._Whole._follow, threading.Event()
    began = []

    def late(self: digest._Whole, fd: int) -> None:
        first = "-00001-of-" in self._path.name
        began.append(first and second.wait(20))
        if "-00002-of-" in self._path.name:
            second.set()
        follow(self, fd)

    monkeypatch.setattr(digest._Whole, "_follow", late)
    monkeypatch.setattr(output, "cores", lambda: 2)
    report = run(DRAFTERS / "a_plain", tmp_path / "out", max_shard_size=100_000)
    assert report.outcome == "converted"
    assert len(began) == len(report.written) - 2 > 2  # config.json and the index are digested otherwise
    assert began.count(True) == 1
    for file in report.written:
        assert file.sha256 == hashlib.sha256((tmp_path / "out" / file.name).read_bytes()).hexdigest()


def test_shards_become_one_file_where_all_fit(tmp_path: Path) -> None:
    report = run(shards_of_a_plain(tmp_path / "in"), tmp_path / "out", max_shard_size=10**9)
    assert report.outcome == "converted"
    assert [p.name for p in (tmp_path / "out").glob("model*")] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("500mb", 5 * 10**8), ("1.5 KB", 1500), ("2GiB", 2 << 30), ("1000", 1000)],
)  # fmt: skip
def test_shard_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert shard_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "0", "0.0001KB", "-5GB", "5XB", "1e9", "٥GB", "5GB6", "nan", "5" * 30])
def test_what_is_no_shard_size_is_said(text: str, tmp_path: Path) -> None:
    done = eagle3("convert", DRAFTERS / "a_plain", tmp_path / "out", "--max-shard-size", text)
    assert done.returncode == 2
    assert f"--max-shard-size {text}: expected a size such as 5GB" in done.stderr
    assert not (tmp_path / "out").exists()


def test_one_safetensors_file(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in")
    (source / "model.safetensors").rename(source / "best.safetensors")
    report = run(source / "best.safetensors", tmp_path / "out")
    assert report.outcome == "converted"
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_what_belongs_to_the_drafter_is_carried(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in")
    for name in ("LICENSE.txt", "tokenizer.json", "config.py", "optimizer.pt"):
        (source / name).write_text(name)
    run(source, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "LICENSE.txt", "config.json", "eagle3-seal.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    report = run(DRAFTERS / "a_plain", tmp_path / "out", dry_run=True)
    assert report.outcome == "planned"
    assert report.plan is not None
    assert len(report.plan.tensors) == 16
    assert list(tmp_path.iterdir()) == []


def test_an_allowed_finding_is_in_the_seal(tmp_path: Path) -> None:
    report = run(DRAFTERS / "b_nbr", tmp_path / "out", allow=("K103",))
    assert report.outcome == "converted"
    seal = json.loads((tmp_path / "out" / "eagle3-seal.json").read_text())
    assert seal["allowed"] == ["K103"]


def test_an_allowed_finding_covers_the_disagreement_that_it_causes(tmp_path: Path) -> None:
    report = run(DRAFTERS / "b_nbr", tmp_path / "out", allow=("K103",), sample=SAMPLE)
    assert [(f.code, f.allowed) for f in report.findings] == [("K103", True), ("N102", True)]
    assert report.outcome == "converted"
    assert report.proof is not None
    assert report.proof.level == "none"


def test_strict_stops_at_a_warning(tmp_path: Path) -> None:
    def add(config: dict) -> None:  # type: ignore[type-arg]
        config["new_key"] = 1

    source = copy_of("a_plain", tmp_path / "in", add)
    assert run(source, tmp_path / "out").outcome == "converted"
    assert errors(run(source, tmp_path / "out2", strict=True)) == ["C204"]


def test_the_seal_describes_the_files(tmp_path: Path) -> None:
    import hashlib

    import torch
    import xxhash

    run(DRAFTERS / "c_nbfc", tmp_path / "out")
    seal = json.loads((tmp_path / "out" / "eagle3-seal.json").read_text())
    files = {f["name"]: f for f in seal["files"]}
    assert set(files) == {"model.safetensors", "config.json"}
    for name, file in files.items():
        data = (tmp_path / "out" / name).read_bytes()
        assert (file["size"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    weights = load_file(tmp_path / "out" / "model.safetensors")
    for tensor in seal["tensors"]:
        data = weights[tensor["name"]].view(torch.uint8).numpy().tobytes()
        assert tensor["xxh3_128"] == tensor["source_xxh3_128"] == xxhash.xxh3_128_hexdigest(data)


def test_without_digests(tmp_path: Path) -> None:
    run(DRAFTERS / "a_plain", tmp_path / "out", digest=False)
    seal = json.loads((tmp_path / "out" / "eagle3-seal.json").read_text())
    assert {f["sha256"] for f in seal["files"] if f["name"].endswith(".safetensors")} == {""}
    assert {t["xxh3_128"] for t in seal["tensors"]} == {""}

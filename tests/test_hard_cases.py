"""Cases that once slipped through: a false proof, a conversion that computes otherwise without a word, a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from converter.errors import InputError, UsageError
from converter.pipeline import Report, Request, convert, validate
from converter.rules.releases import resolve
from tests.support import (
    DRAFTERS,
    SAMPLE,
    TARGET,
    codes,
    copy_of,
    eagle3,
    errors,
    quiet,
    request,
    run,
    sample_without_point_0,
)

Edit = Callable[[dict[str, Any]], None]
CONFIG_ONLY = TARGET / "config.json"


def layer(**changes: Any) -> Edit:
    return lambda config: config["transformer_layer_config"].update(changes)


def rope(**parameters: Any) -> Edit:
    return layer(rope_parameters={"rope_theta": 1e4, **parameters})


def several(source: Path, out: Path, *engines: str, **options: Any) -> Report:
    return convert(request(source, out=out, engines=engines, target=TARGET, **options), quiet)


# --- proofs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engines", [("sglang", "vllm"), ("vllm", "sglang")])
def test_the_worst_proof_of_several_engines_counts(engines: tuple[str, str], tmp_path: Path) -> None:
    report = several(DRAFTERS / "b_nbr", tmp_path / "out", *engines, allow=("K103",), sample=SAMPLE)
    assert report.outcome == "converted"
    assert report.proof is not None and report.proof.level == "none"
    assert report.proof.difference is not None and report.proof.difference > 1
    assert json.loads((tmp_path / "out" / "eagle3-seal.json").read_text())["proof"]["level"] == "none"


def test_the_text_does_not_call_a_disagreement_agreement(tmp_path: Path) -> None:
    options = ("--target", TARGET, "--allow", "K103", "--sample", SAMPLE)
    text = eagle3("convert", DRAFTERS / "b_nbr", tmp_path / "out", *options).stdout
    assert text.startswith("Converted, with K103, N102 allowed.")
    assert "engine = trained" not in text
    assert "the engine computes something else" in text
    assert "nothing was run" not in text


def test_an_embedding_that_was_not_seen_proves_nothing(tmp_path: Path) -> None:
    sample = sample_without_point_0(tmp_path, "1 2 3 4 5 6")
    blind = run(DRAFTERS / "a_plain", tmp_path / "out", sample=sample, target=CONFIG_ONLY)
    assert errors(blind) == ["N104"]
    assert run(DRAFTERS / "a_plain", tmp_path / "out", sample=sample).outcome == "converted"  # compared with the target
    kept = run(DRAFTERS / "a_plain", tmp_path / "out2", "vllm==0.33.0", sample=sample, target=CONFIG_ONLY)
    assert kept.outcome == "converted"  # vLLM keeps the drafter's own


def test_an_allowed_finding_excuses_only_what_it_causes(tmp_path: Path) -> None:
    def train(tensors: dict[str, Any]) -> None:
        tensors["embed_tokens.weight"] = (
            tensors["embed_tokens.weight"].float() * torch.linspace(0.5, 1.5, 64)
        ).bfloat16()

    source = copy_of("a_plain", tmp_path / "in", tensors=train)
    report = run(source, tmp_path / "out", sample=SAMPLE, target=CONFIG_ONLY, allow=("K103", "K105", "A301"))
    assert errors(report) == ["N102"]


# --- what the trainer honours and an engine does not, or the other way round ------------------------------------


def test_an_embedding_that_training_may_have_changed_is_spoken_of(tmp_path: Path) -> None:
    source = copy_of("k_embedgrad", tmp_path / "in", lambda config: config.update(embed_requires_grad=True))
    assert codes(run(source, tmp_path / "a", target=CONFIG_ONLY)) == ["K132"]
    assert codes(run(source, tmp_path / "b")) == []  # compared, and equal
    assert codes(run(source, tmp_path / "c", "vllm==0.33.0", target=CONFIG_ONLY)) == []


def test_a_drafter_narrower_than_its_target_needs_its_own_embedding(tmp_path: Path) -> None:
    def narrow(tensors: dict[str, Any]) -> None:
        tensors["fc.weight"] = tensors["fc.weight"][:, :96].contiguous()
        del tensors["embed_tokens.weight"]

    source = copy_of("a_plain", tmp_path / "in", lambda config: config.update(target_hidden_size=32), narrow)
    assert errors(run(source, tmp_path / "out", target=None)) == ["T103"]


def test_a_permutation_of_the_full_vocabulary_by_engine(tmp_path: Path) -> None:
    def permute(tensors: dict[str, Any]) -> None:
        tensors["d2t"] = torch.arange(512).flip(0) - torch.arange(512)

    source = copy_of("h_fullvocab", tmp_path / "in", tensors=permute)
    verdicts = {
        e: errors(run(source, tmp_path / e, e, target=CONFIG_ONLY)) for e in ("vllm==0.33.0", "vllm==0.29.0", "sglang")
    }
    assert verdicts == {"vllm==0.33.0": ["K119"], "vllm==0.29.0": [], "sglang": []}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
ROPES: list[tuple[str, Edit, dict[str, list[str]]]] = [
    ("linear", rope(rope_type="linear", factor=2.0), {"sglang": [], "vllm": []}),
    ("yarn", rope(**YARN), {"sglang": [], "vllm": []}),
    ("yarn scaled", rope(**YARN, attention_factor=1.5), {"sglang": ["K112"], "vllm": []}),
    ("yarn attn_factor", rope(**YARN, attn_factor=2.0), {"sglang": ["C203"], "vllm": ["C203"]}),
    ("dynamic", rope(rope_type="dynamic", factor=4.0), {"sglang": ["K112"], "vllm": []}),
    ("partial", rope(rope_type="default", partial_rotary_factor=0.5), {"sglang": ["K112"], "vllm": ["K112"]}),
    ("linear, no factor", rope(rope_type="linear"), {"sglang": ["C203"], "vllm": ["C203"]}),
    ("yarn, no length", rope(rope_type="yarn", factor=4.0), {"sglang": ["C203"], "vllm": ["C203"]}),
    ("llama3, no factors", rope(rope_type="llama3", factor=8.0), {"sglang": ["C203"], "vllm": ["C203"]}),
    ("text for a factor", rope(rope_type="linear", factor="4"), {"sglang": ["C203"], "vllm": ["C203"]}),
    ("negative", rope(rope_type="linear", factor=-1), {"sglang": ["C203"], "vllm": ["C203"]}),
    ("unknown kind", rope(rope_type="su"), {"sglang": ["C203"], "vllm": ["C203"]}),
    ("huge theta", rope(rope_type="default", rope_theta=10**400), {"sglang": ["C203"], "vllm": ["C203"]}),
    ("two kinds", layer(rope_scaling={"rope_type": "linear", "factor": 4.0}), {"sglang": ["C203"], "vllm": ["C203"]}),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "verdicts"), [r[1:] for r in ROPES], ids=[r[0] for r in ROPES])
def test_ropes(edit: Edit, verdicts: dict[str, list[str]], tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", edit)
    for engine, wanted in verdicts.items():
        assert errors(run(source, tmp_path / engine, engine, target=CONFIG_ONLY)) == wanted, engine


@pytest.mark.parametrize(
    ("edit", "windows"),
    [
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, (8,)),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, (None,)),
        ({"use_sliding_window": True, "sliding_window": 8}, (None,)),
        ({"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 0}, (None,)),
    ],
)
def test_windows_of_qwen3_without_layer_types(edit: dict[str, Any], windows: tuple[Any, ...], tmp_path: Path) -> None:
    def change(config: dict[str, Any]) -> None:
        inner = config["transformer_layer_config"]
        for key in ("layer_types", "use_sliding_window", "sliding_window", "max_window_layers"):
            inner.pop(key, None)
        inner |= edit

    report = validate(Request(source=str(copy_of("f_qwen3", tmp_path / "in", change)), target=CONFIG_ONLY))
    assert report.drafter is not None
    assert report.drafter.spec.layer_windows == windows


@pytest.mark.parametrize(
    ("edit", "wanted"),
    [
        (layer(head_dim=15), ["C207", "T104"]),
        (layer(num_key_value_heads=3), ["C207", "T104"]),
        (lambda config: config.update(dtype="banana"), ["C203"]),
        (lambda config: config.update(dtype="int8"), ["C203"]),
        (layer(num_hidden_layers=10**7), ["C203"]),
        (layer(rms_norm_eps=10**400), ["C203"]),
        (lambda config: config.update(eagle_aux_hidden_state_layer_ids=list(range(10**5))), ["C203"]),
        (layer(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": [[[1]]]}), ["C203"]),
    ],
)
def test_numbers_that_cannot_be(edit: Edit, wanted: list[str], tmp_path: Path) -> None:
    assert errors(run(copy_of("a_plain", tmp_path / "in", edit), tmp_path / "out", target=CONFIG_ONLY)) == wanted


@pytest.mark.parametrize("version", ["2.0.0", "99", "four", 9])
def test_a_trainer_s_release_that_nobody_knows(version: Any, tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", lambda config: config.update(speculators_version=version))
    assert codes(run(source, tmp_path / "out")) == ["C208"]


def test_gpt_oss_without_its_depth(tmp_path: Path) -> None:
    options = {"target": None, "target_arch": "GptOssForCausalLM"}
    assert errors(run(DRAFTERS / "a_plain", tmp_path / "out", "sglang", **options)) == []


# --- samples, options and files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: t.update({"s0.loss_mask": t["s0.loss_mask"][:, None].contiguous()}),
        lambda t: t.update({"s0.input_ids": t["s0.input_ids"].float()}),
        lambda t: t.update({"s0.target_greedy_next": t["s0.target_greedy_next"] - 1000}),
        lambda t: t.update({"s0.hidden_states": t["s0.hidden_states"].to(torch.int32)}),
        lambda t: t.update({"s0.hidden_states": torch.tensor(1.0)}),
        lambda t: t.update({"s0.input_ids": torch.tensor(1)}),
        lambda t: t.update({"x.y.hidden_states": t.pop("s0.hidden_states")}),
    ],
)
def test_samples_of_the_wrong_shape_or_kind(edit: Edit, tmp_path: Path) -> None:
    tensors = {k: v for k, v in load_file(SAMPLE).items() if k.startswith("s0.")}
    edit(tensors)
    save_file(tensors, tmp_path / "s.safetensors")
    with pytest.raises(InputError) as caught:
        run(DRAFTERS / "a_plain", tmp_path / "out", sample=tmp_path / "s.safetensors")
    assert caught.value.finding.code in ("F120", "F121")


def test_a_sample_that_names_a_point_twice(tmp_path: Path) -> None:
    save_file(load_file(SAMPLE), tmp_path / "s.safetensors", {"capture_points": "0 0 1 2 3 4 5"})
    with pytest.raises(InputError):
        run(DRAFTERS / "a_plain", tmp_path / "out", sample=tmp_path / "s.safetensors")


@pytest.mark.parametrize("requirement", ["sglang==99.*", "sglang @ http://x", "sglang; python_version>'3'", "VLLM"])
def test_odd_requirements(requirement: str) -> None:
    with pytest.raises(UsageError):
        resolve(requirement)


@pytest.mark.parametrize("code", ["V208", "A103", "T104", "K120", "C202"])
def test_what_cannot_be_let_through(code: str, tmp_path: Path) -> None:
    done = eagle3("convert", DRAFTERS / "a_plain", tmp_path / "out", "--allow", code)
    assert done.returncode == 2
    assert "cannot be let through" in done.stderr


def test_validating_a_broken_map_is_a_refusal(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in", tensors=lambda t: t.update(d2t=t["d2t"] + 1000))
    done = eagle3("validate", source, "--target", CONFIG_ONLY)
    assert done.returncode == 1
    assert "error V208" in done.stdout


def test_a_report_is_not_written_over_what_is_read_or_written(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in")
    before = (source / "config.json").read_bytes()
    for place in (source / "config.json", source / "r.json", tmp_path / "out" / "r.json"):
        (tmp_path / "out").mkdir(exist_ok=True)
        done = eagle3("convert", source, tmp_path / "out", "--report", place)
        assert done.returncode == 2, done.stdout
    assert (source / "config.json").read_bytes() == before
    assert list((tmp_path / "out").iterdir()) == []


def test_a_report_is_written_of_unreadable_input_too(tmp_path: Path) -> None:
    done = eagle3("convert", "nowhere", tmp_path / "out", "--report", tmp_path / "r.json")
    assert done.returncode == 3
    assert json.loads((tmp_path / "r.json").read_text())["findings"][0]["code"] == "F100"


@pytest.mark.parametrize("other", ["a" * 300 + "/b", "locked"])
def test_no_report_is_written_before_its_place_is_known_to_be_free(other: str, tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in")
    (tmp_path / "locked").mkdir(0o000)
    before = (source / "config.json").read_bytes()
    given = tmp_path / other
    done = eagle3("validate", source, given, "--report", source / "config.json")
    assert done.returncode in (2, 3) and (source / "config.json").read_bytes() == before


def test_a_shard_is_not_named_like_a_file_of_ours(tmp_path: Path) -> None:
    source = copy_of("a_plain", tmp_path / "in")
    (source / "model.safetensors").rename(source / "eagle3-seal.json")
    names = load_file(DRAFTERS / "a_plain" / "model.safetensors")
    index = {"weight_map": dict.fromkeys(names, "eagle3-seal.json")}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError) as caught:
        run(source, tmp_path / "out")
    assert caught.value.finding.code == "F108"


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    import subprocess
    import sys

    convert = f"{sys.executable} -m converter convert {DRAFTERS / 'a_plain'} {tmp_path / 'out'}"
    for extra in ("", " --json --force"):
        command = ["bash", "-c", convert + extra + " | true; exit ${PIPESTATUS[0]}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0
        assert "Traceback" not in done.stderr
        assert "pipe" not in done.stderr.lower()


def test_a_target_whose_head_cannot_be_read_accuses_nobody(tmp_path: Path) -> None:
    """A quantised head is not the embedding, and one table among several is not taken for it."""
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_bytes(CONFIG_ONLY.read_bytes())
    tensors = load_file(TARGET / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors")
    assert codes(run(DRAFTERS / "a_plain", tmp_path / "out", target=folder)) == []


def test_a_target_without_its_weights_is_a_config(tmp_path: Path) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_bytes(CONFIG_ONLY.read_bytes())
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert run(DRAFTERS / "a_plain", tmp_path / "out", target=folder).outcome == "converted"


def test_a_refusal_names_only_the_engines_that_cannot(tmp_path: Path) -> None:
    for drafter, engines, words in (
        ("b_nbr", ("sglang", "vllm"), "sglang 0.5.23 cannot compute"),
        ("d_fcnorm_normout", ("sglang", "vllm==0.20.0"), "vllm 0.20.0 cannot compute"),
        ("j_attnbias", ("sglang", "sglang==0.5.9"), "sglang 0.5.23, 0.5.9 cannot compute"),
    ):
        options = [word for engine in engines for word in ("--engine", engine)]
        done = eagle3("convert", DRAFTERS / drafter, tmp_path / "out", "--target", TARGET, *options)
        assert done.returncode == 1
        assert done.stdout.startswith(f"Not converted: {words}"), done.stdout


def test_points_typed_in_the_numbering_of_an_engine(tmp_path: Path) -> None:
    report = run(DRAFTERS / "a_plain", tmp_path / "out", aux=(0, 2, 4))
    [finding] = [f for f in report.findings if f.code == "A106"]
    assert "--aux out:0,out:2,out:4 means what the config says" in finding.why
    report = run(DRAFTERS / "a_plain", tmp_path / "out2", aux=(2, 3, 4))
    [finding] = [f for f in report.findings if f.code == "A106"]
    assert "out:" not in finding.why


def test_without_a_targets_depth_works_has_a_condition() -> None:
    plain = eagle3("validate", DRAFTERS / "a_plain", "--aux", "2,4,6")
    said = " ".join(plain.stdout.split())
    assert "works after conversion if all its points lie before the target's last layer" in said
    assert "as it lies: finds no hidden_size in config.json" in said
    assert "vllm 0.33.0 works after conversion if" in said  # which reads points 1, 3 and 5 there
    as_stated = " ".join(eagle3("validate", DRAFTERS / "a_plain", "--engine", "vllm").stdout.split())
    assert "vllm 0.33.0 unknown as it lies it works if all its points lie before the target's last layer" in as_stated
    given = eagle3("validate", DRAFTERS / "a_plain", "--aux", "2,4,6", "--target", TARGET)
    assert "K122" in given.stdout


def test_one_command_for_all_releases_that_share_it(tmp_path: Path) -> None:
    done = eagle3("convert", DRAFTERS / "a_plain", tmp_path / "out", "--target", TARGET, "--engine", "sglang>=0.5.9")
    assert done.stdout.count("launch_server") == 2
    assert "  # sglang==0.5.9, sglang==0.5.10, sglang==0.5.10.post1\n" in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--engine", "sglang,vllm"), "give the option several times"),
        (("--engine", "sglang==0.5.13.7"), "among them 0.5.13"),
        (("--target", "models"), "the target models does not exist"),
        (("--target", "models/nope"), "no folder models/nope on this machine"),
    ],
)
def test_what_was_mistyped_is_named(options: tuple[str, str], words: str, tmp_path: Path) -> None:
    done = eagle3("convert", DRAFTERS / "a_plain", tmp_path / "out", *options)
    assert done.returncode in (2, 3)
    assert words in " ".join((done.stdout + done.stderr).split())


def test_rules_of_an_unknown_release_are_called_so() -> None:
    assert "not known yet: these are the rules of" in eagle3("engines", "list", "sglang==9.9").stdout


def test_a_report_replaces_no_file_that_is_read(tmp_path: Path) -> None:
    rules = tmp_path / "m.json"
    rules.write_text('{"dialect": "speculators"}')
    sample = tmp_path / "s.json"
    sample.write_bytes(SAMPLE.read_bytes())
    source = copy_of("a_plain", tmp_path / "in")
    blob = tmp_path / "blob.json"
    (source / "config.json").rename(blob)
    (source / "config.json").symlink_to(blob)
    for options in (("--mapping", rules, "--report", rules), ("--sample", sample, "--report", sample),
                    ("--report", blob)):  # fmt: skip
        before = Path(options[-1]).read_bytes()
        done = eagle3("convert", source, tmp_path / "out", *options)
        assert done.returncode == 2, done.stdout
        assert Path(options[-1]).read_bytes() == before


def test_a_report_that_cannot_be_written() -> None:
    """/proc is a folder in which nobody makes files."""
    done = eagle3("validate", DRAFTERS / "a_plain", "--report", "/proc/x.json")
    assert (done.returncode, "cannot write /proc/x.json" in done.stderr) == (4, True)
    done = eagle3("validate", "nothing", "--report", "/proc/x.json")
    assert (done.returncode, "Traceback" in done.stderr) == (3, False)


@pytest.mark.parametrize("kind", [{}, [1, 2], [None]])
def test_a_rope_type_that_is_no_name(kind: object, tmp_path: Path) -> None:
    def edit(config: dict[str, Any]) -> None:
        config["transformer_layer_config"]["rope_parameters"]["rope_type"] = kind

    assert errors(run(copy_of("a_plain", tmp_path / "in", edit), tmp_path / "out")) == ["C203"]


@pytest.mark.parametrize("releases", ["1", "null", "ab", "{a: 1}"])
def test_releases_of_a_mapping_that_are_no_list(releases: str, tmp_path: Path) -> None:
    rules = tmp_path / "m.yaml"
    rules.write_text(f"engine: sglang\nreleases: {releases}\n")
    done = eagle3("validate", DRAFTERS / "a_plain", "--mapping", rules)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "releases" in done.stderr


def test_whether_the_embedding_was_trained_is_not_read_as_no(tmp_path: Path) -> None:
    def edit(config: dict[str, Any]) -> None:
        config["embed_requires_grad"] = "true"

    source = copy_of("k_embedgrad", tmp_path / "in", edit)
    assert "K132" in codes(run(source, tmp_path / "out", "sglang==0.5.9", target=CONFIG_ONLY))


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size"])
@pytest.mark.parametrize("value", [0, -1, True, 0.5, "x", [], {}])
def test_a_targets_sizes_are_numbers(key: str, value: object, tmp_path: Path) -> None:
    config = json.loads(CONFIG_ONLY.read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(InputError) as caught:
        run(DRAFTERS / "a_plain", tmp_path / "out", target=tmp_path / "config.json")
    assert caught.value.finding.code == "F113"


def test_capture_points_named_twice_in_other_spellings(tmp_path: Path) -> None:
    sample = tmp_path / "s.safetensors"
    save_file(load_file(SAMPLE), sample, metadata={"capture_points": "0 00 1 2 3 4 5"})
    with pytest.raises(InputError) as caught:
        run(DRAFTERS / "a_plain", tmp_path / "out", sample=sample)
    assert caught.value.finding.code == "F120"


def test_out_that_is_a_link_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    done = eagle3("convert", DRAFTERS / "a_plain", tmp_path / "link")
    assert done.returncode == 2
    assert list((tmp_path / "real").iterdir()) == []

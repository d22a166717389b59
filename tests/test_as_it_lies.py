"""The verdict of `validate`: whether an engine serves the folder as it lies, else what keeps it from that."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from converter.checks import as_it_is
from converter.drafter.spec import Origin
from converter.pipeline import Report
from converter.report.document import as_json
from converter.report.markdown import markdown
from converter.report.text import Printer
from converter.report.verdict import Verdict, of_engine
from tests.support import DRAFTERS, PRODUCERS, TARGET, Config, check, codes, copy_of, eagle3, errors, run

SGLANG, VLLM = "sglang==0.5.23", "vllm==0.33.0"
OURS = PRODUCERS / "specforge_hf"


def verdict(report: Report, requirement: str = SGLANG) -> Verdict:
    [engine] = [e for e in report.engines if e.requirement == requirement]
    return of_engine(report, engine)


def changed(folder: Path, config: Config | None = None, d2t: Callable[[Any], Any] | None = None) -> Path:
    """specforge_hf with other config keys (None: without the key) and another map."""
    shutil.copytree(OURS, folder)
    if config:
        document = json.loads((folder / "config.json").read_text()) | config
        (folder / "config.json").write_text(json.dumps({k: v for k, v in document.items() if v != "absent"}))
    if d2t is not None:
        tensors = load_file(folder / "model.safetensors")
        tensors["d2t"] = d2t(tensors["d2t"])
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_folder_that_an_engine_serves_as_it_lies() -> None:
    report = check(OURS, SGLANG, VLLM, prove=True)
    assert verdict(report) == Verdict("works", "as it lies it computes what was trained")
    other = verdict(report, VLLM)
    assert other.word == "works after conversion" and "--engine" in other.command
    assert (
        other.why == "finds no layer ids, so it captures its default, layer 2, layer 3, not layer 1, layer 3, layer 5"
    )
    document = as_json(report)
    served = "Served by sglang 0.5.23 as it lies; by vllm 0.33.0 after eagle3-convert"
    assert document["headline"] == f"{served}, if its layer ids are read rightly (A109)."
    [line] = document["launch"]
    assert line["engine"] == SGLANG and str(OURS) in line["command"]
    assert "| sglang 0.5.23 | ✓ works | as it lies it computes what was trained |" in markdown(document)


def test_vllm_serves_speculators_folders_as_they_lie() -> None:
    assert verdict(check(DRAFTERS / "d_fcnorm_normout", VLLM), VLLM) == Verdict("works")
    older = verdict(check(DRAFTERS / "d_fcnorm_normout", "vllm==0.32.0"), "vllm==0.32.0")
    assert older.word == "works after conversion" and "how this release does was not read here" in older.why


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"architectures": ["Nobody"]}, "config.json names the class Nobody, which it does not run as such a drafter"),
        ({"model_type": "qwen3"}, "model_type is qwen3 in config.json; it runs such a drafter as llama"),
        ({"model_type": "absent"}, "model_type is not stated in config.json; it runs such a drafter as llama"),
        ({"target_hidden_size": None}, "target_hidden_size is null in config.json"),
        ({"dtype": "absent"}, "config.json states no dtype"),
        ({"attention_bias": True}, "nothing in the folder goes into layers.0.self_attn.o_proj.bias"),
        ({"rms_norm_eps": "absent"}, "finds no rms_norm_eps in config.json"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [4, 2, 0]}}, "the blocks of fc are not in layer order"),
        ({"eagle_config": {}, "eagle_aux_hidden_state_layer_ids": [1, 3, 5]}, "finds no layer ids"),
    ],
)
def test_what_is_written_otherwise_than_an_engine_reads_it(config: Config, why: str, tmp_path: Path) -> None:
    found = verdict(check(changed(tmp_path / "in", config), SGLANG, dialect="specforge"))
    assert found.word == "works after conversion" and found.why.startswith(why)


@pytest.mark.parametrize(("said", "why"), [(4, ""), (3, "num_aux_hidden_states"), ("absent", "num_aux_hidden_states")])
def test_more_states_than_usual_must_be_counted(said: Any, why: str, tmp_path: Path) -> None:
    config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2, 3]}, "num_aux_hidden_states": said}
    source = changed(tmp_path / "in", config)
    tensors = load_file(source / "model.safetensors")
    tensors["fc.weight"] = torch.randn((64, 256), generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    report = check(source, SGLANG, dialect="specforge")
    expected = f"config.json does not say that fc takes 4 states ({why})" if why else ""
    assert errors(report) == [] and verdict(report).word == ("works after conversion" if why else "works")
    assert verdict(report).why.startswith(expected)


def test_what_a_default_follows_from_is_said(tmp_path: Path) -> None:
    absent = {"head_dim": "absent", "target_hidden_size": "absent"}
    drafter = check(changed(tmp_path / "in", absent), SGLANG, dialect="specforge").drafter
    assert drafter is not None
    assert drafter.spec.origins["head_dim"] == Origin("derived", "hidden_size / num_attention_heads")
    assert drafter.spec.origins["target_hidden_size"] == Origin("derived", "hidden_size")


def test_a_map_of_ids_is_read_as_offsets(tmp_path: Path) -> None:
    source = changed(tmp_path / "in", d2t=lambda d2t: d2t + torch.arange(len(d2t)))
    found = verdict(check(source, SGLANG))
    assert found.word == "works after conversion" and found.why == "d2t holds target ids, and it reads offsets"


def test_weights_of_another_name_are_not_said_to_be_found(tmp_path: Path) -> None:
    source = changed(tmp_path / "in")
    assert verdict(check(source, SGLANG)).word == "works"
    (source / "model.safetensors").rename(source / "drafter.safetensors")
    found = verdict(check(source, SGLANG))
    assert found.word == "works after conversion" and found.why.startswith("the weights are in drafter.safetensors")


def test_without_d2t_draft_ids_are_taken_for_target_ids(tmp_path: Path) -> None:
    source = changed(tmp_path / "in")
    tensors = load_file(source / "model.safetensors")
    save_file({n: t for n, t in tensors.items() if n != "d2t"}, source / "model.safetensors", metadata={"format": "pt"})
    report = check(source, SGLANG)
    assert "V202" in codes(report)
    assert verdict(report).why == "there is no d2t, so it takes draft ids for target ids"


def test_without_the_target_nothing_is_said_to_work() -> None:
    without_depth = verdict(check(OURS, SGLANG, target=None, target_arch="LlamaForCausalLM"))
    assert (
        without_depth.word == "unknown" and "if all its points lie before the target's last layer" in without_depth.why
    )
    assert verdict(check(OURS, SGLANG, target=None)).word == "unknown"


def test_a_proof_that_disagrees_outranks_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that overlook the ids: the forward pass of the folder as it lies does not."""
    report = check(OURS, SGLANG, prove=True, aux=(1, 3, 4))
    assert verdict(report).why.startswith("ids 0, 2, 4 make it capture layer 1, layer 3, layer 5, not")
    monkeypatch.setattr(as_it_is, "_against", lambda *seen: ())
    report = check(OURS, SGLANG, prove=True, aux=(1, 3, 4))
    found = verdict(report)
    assert found.word == "works after conversion" and report.proof is not None and report.proof.level == "agreement"
    assert found.why.startswith("served as it lies it does not compute what was trained: logits differ by up to")


def test_what_an_engine_cannot_and_which_can() -> None:
    report = check(DRAFTERS / "g_aux024", "sglang==0.5.20", "sglang==0.5.21")
    assert verdict(report, "sglang==0.5.21") == Verdict(
        "cannot",
        "cannot capture the embedding of LlamaForCausalLM (K121); works in llama.cpp 10454 to 11312, SGLang 0.5.22 to "
        "0.5.23, vLLM 0.18.0 to 0.33.0",
    )
    assert "  sglang 0.5.20 to 0.5.21  cannot   cannot capture the embedding" in shown(report)  # one row


# --- outputs of eagle3-convert ------------------------------------------------------------------------------------


def test_an_output_is_read_as_what_it_was_written_for(tmp_path: Path) -> None:
    run(DRAFTERS / "a_plain", tmp_path / "out")
    report = check(tmp_path / "out", target=None)  # the seal names the target
    assert report.outcome == "validated" and report.findings == [] and report.read_as == SGLANG
    found = {engine: verdict(report, engine) for engine in (SGLANG, VLLM, "llama.cpp==11312")}
    assert found == dict.fromkeys(found, Verdict("works"))
    assert (
        shown(report).splitlines()[1].startswith("An output of eagle3-convert, read as SGLang 0.5.23 reads it, 1 llama")
    )


@pytest.mark.parametrize(("name", "engines"), [("e_2layers", (SGLANG, VLLM)), ("a_plain", ("tensorrt-llm==1.4.0rc1",))])
def test_outputs_for_several_engines_and_with_points_at_launch(
    name: str, engines: tuple[str, ...], tmp_path: Path
) -> None:
    from converter.pipeline import convert
    from tests.support import quiet, request

    convert(request(DRAFTERS / name, out=tmp_path / "out", engines=engines, target=TARGET), quiet)
    report = check(tmp_path / "out", *engines)
    assert errors(report) == [] and {"C203", "C204", "C215", "C216"}.isdisjoint(codes(report))
    assert [verdict(report, engine).word for engine in engines] == ["works"] * len(engines)
    assert report.drafter is not None and report.drafter.spec.capture_points == (1, 3, 5)


def test_what_is_told_at_launch_is_sealed_with_the_output(tmp_path: Path) -> None:
    def window(config: Config) -> None:
        config["transformer_layer_config"] |= {"layer_types": ["sliding_attention"], "sliding_window": 256}

    run(copy_of("a_plain", tmp_path / "in", window), tmp_path / "out")
    report = check(tmp_path / "out", SGLANG, VLLM)
    assert report.drafter is not None and report.drafter.spec.layer_windows == (256,) and report.findings == []
    assert verdict(report).word == "works"
    [line] = as_json(report)["launch"]
    assert line["command"][-2:] == ["--speculative-draft-window-size", "255"]
    assert verdict(report, VLLM).why == "reads layer_windows as [full]; it was trained with [256]"

    seal = tmp_path / "out" / "eagle3-seal.json"
    document = json.loads(seal.read_text())
    for launch, found in (({"--speculative-draft-window-size": "wide"}, ["C203"]), (None, ["C235"])):
        seal.write_text(json.dumps({k: v for k, v in (document | {"launch": launch}).items() if v is not None}))
        assert codes(check(tmp_path / "out", SGLANG)) == found


def _other_bytes(folder: Path) -> None:
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-600] ^= 1  # of the last norm, before t2d
    file.write_bytes(data)


def _other_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 5e5}))


CHANGES = {
    "model.safetensors has other contents": _other_bytes,
    "config.json has": _other_config,
    "extra.safetensors was not there": lambda f: (f / "model.safetensors").rename(f / "extra.safetensors"),
    "model.safetensors is gone": lambda f: (f / "model.safetensors").rename(f / "extra.safetensors"),
}


@pytest.mark.parametrize("said", CHANGES)
def test_an_output_that_was_changed_is_said(said: str, tmp_path: Path) -> None:
    run(DRAFTERS / "a_plain", tmp_path / "out")
    assert errors(check(tmp_path / "out", SGLANG)) == []
    CHANGES[said](tmp_path / "out")
    report = check(tmp_path / "out", SGLANG)
    [finding] = [f for f in report.findings if f.code == "C233"]
    assert report.outcome == "refused" and said in finding.message and verdict(report).word == "not looked at"


def test_without_digests_sizes_are_compared(tmp_path: Path) -> None:
    run(DRAFTERS / "a_plain", tmp_path / "out", digest=False)
    assert errors(check(tmp_path / "out", SGLANG)) == []
    _other_bytes(tmp_path / "out")
    assert errors(check(tmp_path / "out", SGLANG)) == []  # of the same size: such a seal cannot tell
    file = tmp_path / "out" / "model.safetensors"
    save_file(load_file(file), file, metadata={"format": "pt", "note": "saved again, with a longer header"})
    assert errors(check(tmp_path / "out", SGLANG)) == ["C233"]


def test_an_output_that_no_engine_of_its_seal_can_read(tmp_path: Path) -> None:
    run(DRAFTERS / "a_plain", tmp_path / "out")
    seal = tmp_path / "out" / "eagle3-seal.json"
    document = json.loads(seal.read_text())
    for damage in ({"engines": [{"engine": "mine==1.0"}]}, {"engines": 7}, {"target": []}):
        seal.write_text(json.dumps(document | damage))
        assert errors(check(tmp_path / "out", SGLANG, target=None)) == ["C234"]
    assert errors(check(tmp_path / "out", SGLANG)) == []  # the target is named again


def test_what_was_let_through_is_in_no_verdict(tmp_path: Path) -> None:
    """Read as SGLang reads it, its flag is off; it was trained with it on."""
    run(DRAFTERS / "b_nbr", tmp_path / "out", allow=("K103",))
    report = check(tmp_path / "out", SGLANG, VLLM)
    assert [verdict(report, e).word for e in (SGLANG, VLLM)] == ["unknown", "unknown"]
    assert "written with K103 allowed" in verdict(report).why


# --- the table on a terminal --------------------------------------------------------------------------------------


def shown(report: Report) -> str:
    text = io.StringIO()
    Printer(text).validated(report)
    return text.getvalue()


def test_the_table_ends_the_text_before_the_commands() -> None:
    lines = shown(check(OURS, SGLANG, VLLM)).splitlines()
    head = lines.index("  engine         verdict                 why")
    assert lines[head + 1] == "  sglang 0.5.23  works"
    assert lines[head + 2].startswith("  vllm 0.33.0    works after conversion  finds no layer ids, so")
    assert lines[head + 3].startswith(" " * 41 + "layer ")  # the reason goes on in its column
    rest = [line for line in lines[head:] if line and not line.startswith("  ")]
    assert rest == ["Serve it as it lies:", "Convert it:"]


@pytest.mark.parametrize("colour", [True, False])
def test_a_narrow_terminal(colour: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    text = shown(check(OURS, SGLANG, VLLM))
    assert ("\x1b[1;32m" in text) is colour and "\x1b[1m" in text  # green, and bold, which is no colour
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    row = next(i for i, line in enumerate(plain) if line.startswith("  vllm 0.33.0"))
    assert plain[row] == "  vllm 0.33.0    works after conversion"
    assert plain[row + 1].startswith("    finds no layer ids") and plain[row + 2].startswith("    ")
    table = plain[plain.index("  engine         verdict") : plain.index("Serve it as it lies:")]
    assert max(map(len, table)) <= 60


def test_a_terminal_too_narrow_for_the_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "20"}.items():
        monkeypatch.setenv(name, value)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown(check(OURS, SGLANG, VLLM))).splitlines()
    row = lines.index("  vllm 0.33.0    works after conversion")
    assert lines[row + 1] == "    finds no layer" and max(map(len, lines[row + 1 : row + 5])) <= 20


def test_a_pipe_gets_plain_text_whatever_the_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    text = shown(check(OURS, SGLANG, VLLM))
    assert "\x1b" not in text and "  engine         verdict                 why\n" in text


def test_what_an_engine_cannot_that_nobody_asked_for_stands_in_the_table() -> None:
    drafter = ("validate", DRAFTERS / "g_aux024", "--target", TARGET)
    done = eagle3(*drafter)
    assert done.returncode == 0 and "error K121" not in done.stdout and "(K121)" in done.stdout
    asked = eagle3(*drafter, "--engine", "tensorrt-llm")
    assert asked.returncode == 1 and "error K121" in asked.stdout
    assert "error K121" in eagle3(*drafter, "-v").stdout


def test_without_a_map_to_load_none_is_missed(tmp_path: Path) -> None:
    run(DRAFTERS / "h_fullvocab", tmp_path / "out")
    assert "d2t" not in load_file(tmp_path / "out" / "model.safetensors")
    assert verdict(check(tmp_path / "out", target=None)) == Verdict("works")

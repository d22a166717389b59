"""TensorRT-LLM and llama.cpp: what their rules make of the bundled drafters; what is said of an unverified engine."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from converter.checkpoint.reader import open_checkpoint
from converter.checks.engine import examine
from converter.checks.suits import suits, where_it_works
from converter.drafter.spec import FIELDS, OPTIONAL, Rope
from converter.drafter.target import Target
from converter.errors import UsageError
from converter.pipeline import Report, convert
from converter.report.rules import engine_text, engines_text
from converter.report.text import Printer
from converter.report.verdict import told
from converter.rules import loading
from converter.rules.behaviours import LAUNCH
from converter.rules.launch import launch_command, launch_preparation
from converter.rules.loading import known_releases
from converter.rules.releases import all_releases, resolve
from converter.rules.written import nested, write_config
from converter.seal import read_seal
from tests.support import DRAFTERS, TARGET, check, errors, quiet, request, run
from tests.test_forward import drafter

TRT, LLAMA_CPP = "tensorrt-llm", "llama.cpp"
LLAMA = Target(architecture="LlamaForCausalLM", layers=6)

# The bundled drafters: the codes that refuse each, none where it converts.
VERDICTS: dict[str, tuple[list[str], list[str]]] = {  # TensorRT-LLM, llama.cpp
    "a_plain": ([], []),
    "b_nbr": (["K103"], []),
    "c_nbfc": ([], []),
    "d_fcnorm_normout": ([], ["K105", "K106"]),
    "e_2layers": (["K102"], ["K102"]),
    "f_qwen3": (["K107"], ["K107"]),
    "g_aux024": (["K121"], []),
    "h_fullvocab": ([], []),
    "i_rope_headdim": ([], []),
    "j_attnbias": ([], ["K108"]),
    "k_embedgrad": ([], []),
    "l_defaults": (["K103", "K110"], ["K106", "K110"]),
}


def printed(report: Report) -> str:
    """What `eagle3 convert` or `eagle3 validate` prints of it."""
    text = io.StringIO()
    printer = Printer(text)
    (printer.validated if report.request.out is None else printer.converted)(report)
    return text.getvalue()


def codes_of(findings: Any) -> list[str]:
    return sorted({f.code for f in findings if f.severity == "error"})


@pytest.mark.parametrize("name", VERDICTS)
@pytest.mark.parametrize(("engine", "column"), [(TRT, 0), (LLAMA_CPP, 1)])
def test_the_bundled_drafters(name: str, engine: str, column: int, tmp_path: Path) -> None:
    report = run(DRAFTERS / name, tmp_path / "out", engine)
    assert sorted(set(errors(report))) == VERDICTS[name][column]
    assert (report.outcome == "converted") == (VERDICTS[name][column] == [])
    if report.outcome == "converted":  # what was written is read back as what was trained
        assert report.plan is not None
        [release] = report.plan.engines
        config = json.loads((tmp_path / "out" / "config.json").read_text())
        view = release.view(config, list(open_checkpoint(tmp_path / "out").tensors), report.target, report.plan.launch)
        assert view.spec is not None
        for field in FIELDS:
            assert getattr(view.spec, field) == getattr(report.plan.spec, field), field
        assert (view.missing, view.ignored) == ((), ())


@pytest.mark.parametrize("engine", [TRT, LLAMA_CPP])
def test_every_release_reads_and_writes_every_field(engine: str) -> None:
    for release in all_releases(engine):
        written = {rule.get("field") for rule in release.rules["write"].values()}
        for field in set(FIELDS) - OPTIONAL - written:
            assert not {"fixed", "launch"}.isdisjoint(release.rules["read"][field]) or field == "qkv_bias", field


# --- TensorRT-LLM -----------------------------------------------------------------------------------------------


def test_layer_ids_of_tensorrt_llm_go_in_a_file_of_the_server(tmp_path: Path) -> None:
    report = run(DRAFTERS / "a_plain", tmp_path / "out", TRT)
    text = printed(report)
    folder = str((tmp_path / "out").absolute())
    speculative = {
        "decoding_type": "Eagle3",
        "max_draft_len": 3,
        "speculative_model": folder,
        "eagle3_layers_to_capture": [0, 2, 4],
    }
    assert f"echo '{json.dumps({'speculative_config': speculative})}' > eagle3-trtllm.yaml" in text
    assert "--config eagle3-trtllm.yaml" in text
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert not any("layer_ids" in key for key in [*config, *config["eagle_config"]])
    assert report.plan is not None and report.plan.launch == {"layer_ids": [0, 2, 4]}


@pytest.mark.parametrize(("layers", "points"), [(5, (1, 2, 4)), (6, (2, 3, 5)), (32, (2, 16, 29)), (32, (3, 17, 32))])
def test_ids_are_always_named_for_tensorrt_llm(layers: int, points: tuple[int, ...]) -> None:
    """Its own default (1, L//2-1, L-4) needs more than five layers, and is never relied on."""
    [engine] = resolve(TRT)
    target = replace(LLAMA, layers=layers)
    spec = replace(drafter("a_plain").spec, capture_points=points)
    examination = examine(engine, spec, target)
    assert codes_of(examination.findings) == []
    assert examination.layer_ids == tuple(p - 1 for p in points)
    files, before = launch_preparation(engine, target, "OUT", 4, spec)
    assert before == []
    [text] = files.values()
    assert json.loads(text)["speculative_config"]["eagle3_layers_to_capture"] == [p - 1 for p in points]
    assert json.loads(text)["speculative_config"]["max_draft_len"] == 4


def test_other_ids_in_the_file_are_other_points() -> None:
    """What is read back follows from the launch option, as it follows from a config elsewhere."""
    [engine] = resolve(TRT)
    spec = drafter("a_plain").spec
    config = nested(write_config(engine, spec, (0, 2, 4)))
    for ids, points in (([0, 2, 4], (1, 3, 5)), ([4, 0, 2], (1, 3, 5)), ([1, 2, 4], (2, 3, 5)), (None, (2, 3))):
        view = engine.view(config, [], LLAMA, {} if ids is None else {"layer_ids": ids})
        assert view.spec is not None and view.spec.capture_points == points


TRT_FEATURES: list[tuple[dict[str, Any], list[str]]] = [
    ({"norm_before_fc": True}, []),
    ({"fc_norm": True}, []),
    ({"norm_output": True}, []),
    ({"fc_bias": True}, []),
    ({"qkv_bias": True, "o_bias": True}, []),
    ({"qkv_bias": True}, ["K108"]),
    ({"mlp_bias": True}, []),
    ({"capture_points": (1, 2, 3, 5)}, []),
    ({"capture_points": (1, 3, 6)}, []),
    ({"capture_points": (5,), "target_hidden_size": 64}, ["K111", "K114"]),
    ({"capture_points": (0, 2, 4)}, ["K121"]),
    ({"norm_before_residual": True}, ["K103"]),
    ({"qk_norm": True}, ["K107"]),
    ({"layer_windows": (128,)}, ["K110"]),
    ({"num_hidden_layers": 2, "layer_windows": (None, None)}, ["K102"]),
    ({"hidden_act": "gelu"}, ["K113"]),
    ({"rope": Rope(1e4, "dynamic", (("factor", 2.0),))}, ["K112"]),
]


@pytest.mark.parametrize(("change", "codes"), TRT_FEATURES, ids=["+".join(c) for c, _ in TRT_FEATURES])
def test_features_of_tensorrt_llm(change: dict[str, Any], codes: list[str]) -> None:
    [engine] = resolve(TRT)
    findings = examine(engine, replace(drafter("a_plain").spec, **change), LLAMA).findings
    assert codes_of(findings) == codes
    assert all(f.why for f in findings if f.severity == "error")


def test_norm_before_fc_is_written_where_tensorrt_llm_reads_it() -> None:
    [engine] = resolve(TRT)
    spec = replace(drafter("a_plain").spec, norm_before_fc=True)
    config = nested(write_config(engine, spec, (0, 2, 4)))
    assert config["eagle_config"]["norm_before_fc"] is True
    moved = {**config, "norm_before_fc": True, "eagle_config": {}}
    view = engine.view(moved, [], LLAMA, {"layer_ids": [0, 2, 4]})
    assert view.spec is not None and view.spec.norm_before_fc is False


def test_a_class_that_nobody_has_read_is_unknown_to_tensorrt_llm() -> None:
    [engine] = resolve(TRT)
    rule = engine.target("DeepseekV3ForCausalLM")
    assert rule is not None and (rule.architecture, rule.inner) == ("DeepseekV3ForCausalLM", "unknown")
    findings = examine(engine, drafter("a_plain").spec, replace(LLAMA, architecture="DeepseekV3ForCausalLM")).findings
    [layer, *_] = [f for f in findings if f.code == "K124"]
    assert "nobody has verified" in layer.why
    assert engine.target("") is None  # no class is not any class
    assert resolve("sglang")[0].target("NoSuchClass") is None


# --- llama.cpp --------------------------------------------------------------------------------------------------


def test_llama_cpp_is_served_by_three_commands(tmp_path: Path) -> None:
    report = run(DRAFTERS / "g_aux024", tmp_path / "out", LLAMA_CPP)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [0, 2, 4]
    [engine] = report.engines
    target = replace(report.target, name="TARGET")
    files, before = launch_preparation(engine, target, "OUT", 3, drafter("g_aux024").spec)
    assert files == {}
    assert before == [
        ["python", "convert_hf_to_gguf.py", "TARGET", "--outfile", "target.gguf"],
        ["python", "convert_hf_to_gguf.py", "OUT", "--target-model-dir", "TARGET", "--outtype", "bf16",
         "--outfile", "drafter.gguf"],
    ]  # fmt: skip
    environment, command = launch_command(engine, target, "OUT", 3, drafter("g_aux024").spec)
    assert environment == {}
    assert command == [
        *("llama-server", "-m", "target.gguf", "-md", "drafter.gguf"),
        *("--spec-type", "draft-eagle3", "--spec-draft-n-max", "3"),
    ]
    text = printed(report)
    assert text.index("--outfile target.gguf") < text.index("--target-model-dir") < text.index("llama-server")


@pytest.mark.parametrize(("dtype", "word"), [("bfloat16", "bf16"), ("float16", "f16"), ("float32", "f32")])
def test_the_type_of_the_gguf_is_the_drafter_s(dtype: str, word: str) -> None:
    [engine] = resolve(LLAMA_CPP)
    spec = replace(drafter("a_plain").spec, dtype=dtype)
    assert engine.launch_options(spec) == {"dtype": word}
    assert codes_of(examine(engine, spec, LLAMA).findings) == []
    assert LAUNCH["gguf_type"].from_option(word, {}) == dtype
    other = replace(spec, dtype="float64")
    assert engine.launch_options(other) == {"dtype": "auto"}
    assert codes_of(examine(engine, other, LLAMA).findings) == ["K190"]


# What the drafter has: the codes in builds 9874 and from 10454 on. The points are the default of ten layers.
LLAMA_CPP_FEATURES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({}, [], []),
    ({"norm_before_residual": True}, [], []),
    ({"norm_before_fc": True}, ["K104"], []),
    ({"capture_points": (1, 5, 8)}, ["K123"], []),
    ({"capture_points": (0, 5, 7)}, ["K123"], []),
    ({"capture_points": (2, 5, 10)}, ["K122", "K123"], ["K122"]),
    ({"capture_points": (1, 2, 5, 7)}, ["K111", "K123"], ["K111"]),
    ({"fc_norm": True}, ["K105"], ["K105"]),
    ({"norm_output": True}, ["K106"], ["K106"]),
    ({"qk_norm": True}, ["K107"], ["K107"]),
    ({"qkv_bias": True}, ["K108"], ["K108"]),
    ({"o_bias": True}, ["K108"], ["K108"]),
    ({"mlp_bias": True}, ["K109"], ["K109"]),
    ({"fc_bias": True}, ["K190"], ["K190"]),
    ({"layer_windows": (128,)}, ["K110"], ["K110"]),
    ({"num_hidden_layers": 2, "layer_windows": (None, None)}, ["K102"], ["K102"]),
    ({"hidden_act": "gelu"}, ["K113"], ["K113"]),
    ({"rope": Rope(1e4, "dynamic", (("factor", 2.0),))}, ["K112"], ["K112"]),
    ({"tie_word_embeddings": True}, ["K190"], ["K190"]),
]


@pytest.mark.parametrize(
    ("change", "before", "after"), LLAMA_CPP_FEATURES, ids=["+".join(c) or "plain" for c, *_ in LLAMA_CPP_FEATURES]
)
def test_features_of_llama_cpp(change: dict[str, Any], before: list[str], after: list[str]) -> None:
    target = replace(LLAMA, layers=10)
    spec = replace(drafter("a_plain").spec, **{"capture_points": (2, 5, 7), **change})
    found = {e.release: codes_of(examine(e, spec, target).findings) for e in all_releases(LLAMA_CPP)}
    assert found == {"9874": before, "10454": after, "11312": after}


def test_fields_without_a_code_of_their_own_are_told_each() -> None:
    spec = replace(drafter("a_plain").spec, capture_points=(2, 5, 7), fc_bias=True, tie_word_embeddings=True)
    findings = examine(resolve(LLAMA_CPP)[0], spec, replace(LLAMA, layers=10)).findings
    told = [f.message.partition(";")[0] for f in findings if f.code == "K190"]
    assert sorted(told) == ["fc_bias is true", "tie_word_embeddings is true"]


@pytest.mark.parametrize(
    ("architecture", "since", "last"),
    [
        ("LlamaForCausalLM", "9874", False),
        ("Qwen3MoeForCausalLM", "9874", False),
        ("GptOssForCausalLM", "9874", True),
        ("Gemma4ForConditionalGeneration", "9874", False),
        ("MiniMaxM2ForCausalLM", "10454", False),
        ("MiMoV2ForCausalLM", "11312", True),
        ("Qwen2ForCausalLM", None, False),
        ("DeepseekV3ForCausalLM", None, False),
        ("KimiK25ForConditionalGeneration", None, False),
        ("Llama4ForConditionalGeneration", None, False),
    ],
)
def test_target_classes_of_llama_cpp(architecture: str, since: str | None, last: bool) -> None:
    """Classes that keep no inputs of their layers have no row; all that do hand out the embedding."""
    known = known_releases(LLAMA_CPP)
    rules = {e.release: rule for e in all_releases(LLAMA_CPP) if (rule := e.target(architecture)) is not None}
    assert list(rules) == ([] if since is None else known[known.index(since) :])
    for release, rule in rules.items():
        reads = release != "9874"
        assert rule.id_rule == ("literal" if reads else "ids_ignored")
        assert (rule.embedding, rule.inner) == ("works", "works")
        assert (rule.last == "works") == (last and reads)


def test_builds_are_releases() -> None:
    assert [e.release for e in resolve("llama.cpp>=10000")] == ["10454", "11312"]
    [newer] = resolve("llama.cpp==12000")
    assert newer.newer_than_known and newer.standing == "read"
    with pytest.raises(UsageError):
        resolve("llama.cpp==9000")


# --- one folder, and what is said ---------------------------------------------------------------------------------


def test_one_folder_suits_all_four(tmp_path: Path) -> None:
    """SGLang's ids are nested, vLLM's and llama.cpp's at top level, TensorRT-LLM's on its command line."""
    engines = ("sglang", "vllm", LLAMA_CPP, TRT)
    report = convert(request(DRAFTERS / "a_plain", out=tmp_path / "out", engines=engines, target=TARGET), quiet)
    assert report.outcome == "converted"
    assert report.plan is not None and report.plan.launch == {"dtype": "bf16", "layer_ids": [0, 2, 4]}
    names = list(open_checkpoint(tmp_path / "out").tensors)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    for engine in loading.names("engines"):
        found = suits(engine, report.plan.spec, config, names, report.target, "target's")
        assert known_releases(engine)[-1] in found.right, (engine, found.wrong)
        assert found.words().endswith("(unverified)") == (engine == TRT)


def test_an_unverified_engine_is_called_so_everywhere(tmp_path: Path) -> None:
    words = "unverified: rules read from source, never run here"
    assert {e: resolve(e)[0].standing for e in loading.names("engines")} == {
        LLAMA_CPP: "run", "sglang": "run", TRT: "unverified", "vllm": "run",
    }  # fmt: skip
    assert resolve("sglang==0.5.12")[0].standing == "read"
    assert words in engine_text(resolve(TRT)[0])
    listed = {line.split()[0]: line for line in engines_text().splitlines()}
    assert words in listed[TRT]
    assert all("run here: " in line for name, line in listed.items() if name != TRT)
    report = run(DRAFTERS / "a_plain", tmp_path / "out", TRT)
    assert [f.code for f in report.findings] == ["K133"]
    assert f"for tensorrt-llm 1.4.0rc1 (newest known), {words}" in printed(report)
    seal = read_seal(tmp_path / "out")
    assert seal is not None
    [sealed] = seal["engines"]
    assert (sealed["proved_rules"], sealed["standing"]) == (False, "unverified")
    validated = check(DRAFTERS / "a_plain")
    table = {row.engines[0].name: row.verdict for row in told(validated)}
    assert set(table) == set(loading.names("engines"))
    assert all(verdict.word.startswith("works") for verdict in table.values())
    assert [name for name, verdict in table.items() if words in verdict.why] == [TRT]
    assert words in " ".join(printed(validated).split())


def test_strict_asks_for_more_than_an_unverified_engine(tmp_path: Path) -> None:
    report = run(DRAFTERS / "a_plain", tmp_path / "out", TRT, strict=True)
    assert report.outcome == "refused"
    assert errors(report) == ["K133"]


def test_an_unverified_engine_is_never_recommended_without_saying_so() -> None:
    spec = replace(drafter("a_plain").spec, qkv_bias=True, o_bias=True, fc_bias=True)
    assert where_it_works(spec, LLAMA, "unknown") == (
        "works in TensorRT-LLM 1.4.0rc1 (unverified):  eagle3-convert IN OUT --engine tensorrt-llm",
        "works in SGLang 0.5.11 to 0.5.23 with a plugin:  eagle3-convert IN OUT --engine sglang --allow-plugin",
    )

"""Drafters that SGLang serves with this project's plugin: which, how they are written, and what is said of it.

What the plugin computes is tested in SGLang itself (tests/engines/test_sglang_plugin.py).
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from converter.checks.engine import compare, examine
from converter.checks.plugin import mends
from converter.checks.suits import where_it_works
from converter.drafter.layout import expected_tensors
from converter.drafter.target import Target
from converter.look.inspect import inspect
from converter.look.subject import Asked
from converter.report.document import launch_lines
from converter.report.rules import engine as engine_document
from converter.report.rules import engine_text
from converter.rules.launch import launch_command
from converter.rules.loading import known_releases
from converter.rules.releases import all_releases, plugin_for, resolve
from converter.rules.stopping import other_class, why_it_stops
from converter.rules.written import nested, write_config
from converter.sglang_plugin.wanted import Misfit, Wanted, canonical
from tests.support import DRAFTERS, SAMPLE, TARGET, check, codes, copy_of, errors, run
from tests.test_cli import eagle3
from tests.test_forward import drafter

LLAMA = Target(architecture="LlamaForCausalLM", layers=6)
PACKAGE = "converter.sglang_plugin"
SINCE = "0.5.6"  # what has the variable
OLD, NEW = "sglang==0.5.9", "sglang==0.5.23"


def releases() -> list[str]:
    return [e.release for e in all_releases("sglang") if e.takes_plugin]


# --- the rules ----------------------------------------------------------------------------------------------


def test_which_releases_take_it() -> None:
    known = known_releases("sglang")
    assert releases() == known[known.index(SINCE) :]
    assert not any(e.takes_plugin for name in ("vllm", "llama.cpp", "tensorrt-llm") for e in all_releases(name))


def test_its_class_is_no_engine_s_own() -> None:
    """Else SGLang would take the stock class in silence where the package is not there."""
    own = {
        name
        for engine in all_releases("sglang")
        for name in [*engine.rules["draft_classes"]["names"], *engine.rules["write"]["architectures"]["value"]]
    }
    for engine in all_releases("sglang"):
        if engine.takes_plugin:
            plugin = engine.rules["plugin"]
            assert {"package", "environment", "install", "source", "changes"} == plugin.keys()
            assert plugin["environment"] == {"SGLANG_EXTERNAL_MODEL_PACKAGE": plugin["package"]}
            [name] = engine.with_plugin().rules["draft_classes"]["names"]
            assert engine.with_plugin().rules["write"]["architectures"]["value"] == [name]
            assert name not in own


@pytest.mark.parametrize(
    "name", ["b_nbr", "c_nbfc", "d_fcnorm_normout", "e_2layers", "f_qwen3", "j_attnbias", "l_defaults"]
)
def test_what_is_written_for_it_reads_back(name: str) -> None:
    """In every kind of release, with every tensor loaded under the name that it is written under."""
    spec = drafter(name).spec
    for release in (resolve(f"sglang=={r}")[0] for r in ("0.5.6", "0.5.9", "0.5.11", "0.5.12", "0.5.17", "0.5.23")):
        engine = release.with_plugin()
        config = nested(write_config(engine, spec, engine.layer_ids(spec, LLAMA) or ()))
        assert plugin_for(config) == PACKAGE == release.serving_config(config).plugin
        names = [engine.names_for(c) or c for c in expected_tensors(spec)]
        view = engine.view(config, [*names, "d2t", "t2d"], LLAMA, engine.launch_options(spec))
        assert view.spec is not None and (view.missing, view.ignored) == ((), ())
        assert replace(view.spec, origins=spec.origins) == spec
        assert not why_it_stops(engine, view, LLAMA)


def test_its_class_is_unknown_to_every_other_engine() -> None:
    spec = drafter("b_nbr").spec
    plugged = resolve(NEW)[0].with_plugin()
    config = nested(write_config(plugged, spec, (0, 2, 4)))
    for engine in (resolve(r)[0] for r in (NEW, "vllm", "llama.cpp", "tensorrt-llm", "sglang==0.5.5")):
        assert [f.code for f in compare(engine, spec, config, [], LLAMA, {})] == ["K163"]
        assert PACKAGE in other_class(engine, config)
        assert not plugin_for(nested(write_config(engine, spec, (0, 2, 4))))
    assert "K163" not in {f.code for f in compare(plugged, spec, config, [], LLAMA, {})}
    assert not other_class(plugged, config)


def test_what_it_lifts_is_listed() -> None:
    document = engine_document(resolve(NEW)[0])
    assert document["plugin"]["honoured"] == ["qkv_bias", "qk_norm", "norm_before_residual"]
    assert document["plugin"]["lifted"] == []
    assert engine_document(resolve(OLD)[0])["plugin"]["lifted"] == ["num_hidden_layers", "num_points"]
    assert engine_document(resolve("vllm")[0])["plugin"] is None
    assert f"with the plugin {PACKAGE} (--allow-plugin):\n  qkv_bias              read" in engine_text(resolve(NEW)[0])


def test_it_is_strict() -> None:
    spec = drafter("b_nbr").spec
    engine = resolve(NEW)[0].with_plugin()
    names = [engine.names_for(c) or c for c in expected_tensors(spec)] + ["d2t"]
    assert not why_it_stops(engine, engine.loads(spec, names), LLAMA)
    assert "(norm.weight)" in why_it_stops(engine, engine.loads(spec, [n for n in names if n != "norm.weight"]), LLAMA)
    assert "(d2t)" in why_it_stops(engine, engine.loads(spec, names[:-1]), LLAMA)
    assert "(last_norm.weight)" in why_it_stops(engine, engine.loads(spec, [*names, "last_norm.weight"]), LLAMA)


def test_what_it_mends_and_what_not() -> None:
    spec = drafter("a_plain").spec
    old, new = resolve(OLD)[0], resolve(NEW)[0]
    assert not mends(new, spec, LLAMA, "unknown")
    assert mends(new, spec, LLAMA, "trained")
    mended: list[dict[str, Any]] = [
        {"norm_before_residual": True},
        {"qk_norm": True},
        {"qkv_bias": True},
        {"num_hidden_layers": 2, "layer_windows": (None, 128)},
    ]
    before: list[dict[str, Any]] = [
        {"norm_before_fc": True},
        {"fc_norm": True},
        {"norm_output": True},
        {"layer_windows": (9,)},
    ]
    for change in mended:
        assert mends(new, replace(spec, **change), LLAMA, "unknown") and mends(
            old, replace(spec, **change), LLAMA, "unknown"
        )
    for change in before:
        assert mends(old, replace(spec, **change), LLAMA, "unknown")
    for change in ({"mlp_bias": True}, {"hidden_act": "gelu"}, {"capture_points": (0, 2, 4)}):
        assert not mends(old, replace(spec, **change), LLAMA, "unknown"), change


def test_other_than_three_points_need_a_flag_before_0_5_12() -> None:
    spec = replace(drafter("a_plain").spec, capture_points=(2, 3, 4, 5))
    for requirement, needed in ((OLD, True), ("sglang==0.5.12", False)):
        engine = resolve(requirement)[0].with_plugin()
        _, command = launch_command(engine, LLAMA, "OUT", 3, spec)
        assert command.count("--disable-cuda-graph") == needed
    assert mends(resolve(OLD)[0], spec, LLAMA, "unknown")
    plugged = resolve(OLD)[0].with_plugin()
    four, three = (examine(plugged, replace(spec, capture_points=p), LLAMA) for p in ((2, 3, 4, 5), (2, 3, 4)))
    assert "K164" in {f.code for f in four.findings}
    assert "K164" not in {f.code for f in three.findings}


# --- conversions --------------------------------------------------------------------------------------------


def test_the_refusal_names_this_way_out(tmp_path: Path) -> None:
    report = run(DRAFTERS / "b_nbr", tmp_path / "out")
    assert errors(report) == ["K103"]
    [finding] = [f for f in report.findings if f.code == "K103"]
    command = shlex.join(["eagle3-convert", str(DRAFTERS / "b_nbr"), str(tmp_path / "out"), "--target", str(TARGET)])
    way = f"works in SGLang 0.5.11 to 0.5.23 with a plugin:  {command} --engine sglang --allow-plugin"
    assert way in finding.fix
    spec = drafter("a_plain").spec
    assert not any("plugin" in line and "0.5.23" in line for line in where_it_works(spec, LLAMA, "unknown"))


def test_a_drafter_that_needs_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = run(DRAFTERS / "l_defaults", out, allow_plugin=True, sample=SAMPLE)
    assert report.outcome == "converted"
    assert "K160" in codes(report) and "K162" not in codes(report)
    assert report.proof is not None and report.proof.level == "anchored"
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["Eagle3ConvertForCausalLM"]
    assert config["norm_before_residual"] is True and config["layer_windows"] == [2048]
    [line] = launch_lines(report)
    assert line["environment"] == {"SGLANG_EXTERNAL_MODEL_PACKAGE": PACKAGE}
    seal = json.loads((out / "eagle3-seal.json").read_text())
    assert [row["plugin"] for row in seal["engines"]] == [PACKAGE]
    # Right for releases with the plugin, and for no engine without it.
    assert {s.engine: s.right for s in report.suits}["vllm"] == ()
    sglang = next(s for s in report.suits if s.engine == "sglang")
    assert sglang.right[-1] == "0.5.23" and all(r in releases() for r in sglang.right)
    assert {code for codes, releases in sglang.wrong.items() if "0.5.5" in releases for code in codes} >= {"K163"}
    [seen] = inspect(str(out), Asked(("sglang",), TARGET)).engines
    assert seen.engine.plugin == PACKAGE and not seen.stops and not seen.differs
    # And it is read as it was written.
    again = run(out, tmp_path / "again", allow_plugin=True, dialect="sglang")
    assert again.outcome == "converted"
    assert (tmp_path / "again" / "config.json").read_bytes() == (out / "config.json").read_bytes()


def test_a_drafter_that_does_not_need_it(tmp_path: Path) -> None:
    plain, allowed = (run(DRAFTERS / "a_plain", tmp_path / str(allow), allow_plugin=allow) for allow in (False, True))
    assert codes(allowed) == ["K162", *codes(plain)] and not allowed.engines[0].plugin
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "True" / name).read_bytes() == (tmp_path / "False" / name).read_bytes()


def test_on_the_command_line(tmp_path: Path) -> None:
    done = eagle3("convert", DRAFTERS / "b_nbr", tmp_path / "out", "--target", TARGET, "--allow-plugin")
    assert done.returncode == 0, done.stdout
    assert f"for sglang 0.5.23 (newest known) with the plugin {PACKAGE}, target" in done.stdout
    assert f"SGLANG_EXTERNAL_MODEL_PACKAGE={PACKAGE} python -m sglang.launch_server" in done.stdout
    assert "pip install --no-deps eagle3-convert" in " ".join(done.stdout.split())


def test_one_folder_for_releases_of_which_one_needs_it(tmp_path: Path) -> None:
    """d_fcnorm_normout: 0.5.23 computes it, 0.5.11 does not; one class is named in one folder."""
    report = run(DRAFTERS / "d_fcnorm_normout", tmp_path / "out", "sglang>=0.5.11,<0.5.13", allow_plugin=True)
    assert report.outcome == "converted", errors(report)
    assert [e.plugin for e in report.engines] == [PACKAGE] * len(report.engines)
    [said] = [f for f in report.findings if f.code == "K160"]
    assert said.message.startswith("sglang 0.5.11 to 0.5.12.post1 serves")


def test_other_engines_do_not_take_it(tmp_path: Path) -> None:
    report = run(DRAFTERS / "b_nbr", tmp_path / "a", "vllm==0.33.0", allow_plugin=True)
    assert report.outcome == "converted" and not {"K160", "K162"} & set(codes(report))
    older = run(DRAFTERS / "b_nbr", tmp_path / "b", "sglang==0.5.5", allow_plugin=True)
    assert errors(older) == ["K103"]


def test_a_quantised_drafter_is_refused(tmp_path: Path) -> None:
    import torch

    def quantise(tensors: dict[str, Any]) -> None:
        name = "layers.0.mlp.up_proj.weight"
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        tensors["layers.0.mlp.up_proj.weight_scale"] = torch.ones(1)

    source = copy_of("b_nbr", tmp_path / "in", tensors=quantise)
    report = run(source, tmp_path / "out", allow_plugin=True)
    assert "K161" in errors(report)
    assert "K161" not in codes(run(source, tmp_path / "out"))


def test_validate_says_what_the_plugin_makes_of_it() -> None:
    report = check(DRAFTERS / "f_qwen3", NEW, allow_plugin=True)
    assert report.outcome == "validated"
    alone = check(DRAFTERS / "f_qwen3", NEW)
    assert alone.outcome == "refused"
    assert any("--allow-plugin" in line for f in alone.verdicts[NEW] for line in f.fix)


# --- the package --------------------------------------------------------------------------------------------


def test_without_sglang_it_says_so() -> None:
    """And naming the package imports nothing of the rest of this project, nor what that needs."""
    code = (
        f"import sys, {PACKAGE}\n"
        "assert not {'click', 'yaml', 'torch', 'numpy', 'converter.rules', 'converter.errors'} & set(sys.modules)\n"
        f"import {PACKAGE}.drafter"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith(
        f"ModuleNotFoundError: {PACKAGE} is a plugin for SGLang, which is not installed"
    )


def test_what_it_expects_is_what_a_drafter_has() -> None:
    """Its own table of shapes, which must not import ours, against ours."""
    for name in (
        "a_plain",
        "c_nbfc",
        "d_fcnorm_normout",
        "e_2layers",
        "f_qwen3",
        "h_fullvocab",
        "j_attnbias",
        "l_defaults",
    ):
        spec = drafter(name).spec
        engine = resolve(NEW)[0].with_plugin()
        config = nested(write_config(engine, spec, (0, 2, 4)))
        wanted = Wanted.of(SimpleNamespace(**config))
        ours = {canonical: expected.shape for canonical, expected in expected_tensors(spec).items()}
        assert wanted.shapes() == ours
        assert wanted.points == spec.capture_points and wanted.windows == spec.layer_windows
        for canonical_name in ours:
            assert canonical(engine.names_for(canonical_name) or "") == canonical_name


def test_names_of_a_later_layer_s_norm() -> None:
    assert canonical("midlayer.hidden_norm.weight") == "layers.0.hidden_norm.weight"
    assert {canonical(f"layers.1.{n}.weight") for n in ("hidden_norm", "input_layernorm")} == {
        "layers.1.input_layernorm.weight"
    }
    assert canonical("layers.10.hidden_norm.weight") == "layers.10.input_layernorm.weight"


def test_a_config_that_was_not_written_for_it() -> None:
    spec = drafter("a_plain").spec
    config = nested(write_config(resolve(NEW)[0].with_plugin(), spec, (0, 2, 4)))
    for change in ({"eagle_aux_hidden_state_layer_ids": None}, {"draft_vocab_size": None}, {"layer_windows": [1, 2]}):
        with pytest.raises(ValueError, match="--allow-plugin"):
            Wanted.of(SimpleNamespace(**{**config, **change}))


def test_both_lists_are_in_the_message() -> None:
    assert not Misfit([], [], [])
    text = str(Misfit(["extra.weight"], [], ["norm.weight"]))
    assert (
        "go nowhere: extra.weight" in text and "received nothing: norm.weight" in text and "another shape: none" in text
    )

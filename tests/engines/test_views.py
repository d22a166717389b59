"""What `eagle3 inspect` says an engine would make of a folder as it is, against the engine itself.

The folders are trainers' own, converted by nobody: speculators', which vLLM lays flat and SGLang does not know, and
those of others, whose class and ids only one of the two understands.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from converter.checks.as_it_is import Seen
from converter.look.inspect import inspect
from converter.look.subject import Asked
from converter.pipeline import Request, convert, validate
from converter.report.verdict import of_engine
from tests.support import DATA, DRAFTERS, TARGET, quiet

from .conftest import Engines, Results

pytestmark = pytest.mark.engines

FOLDERS = {
    **{name: DRAFTERS / name for name in ("a_plain", "c_nbfc", "e_2layers", "f_qwen3", "l_defaults")},
    **{name: DATA / "producers" / name for name in ("specforge_hf", "angelslim", "automodel", "modelopt_layers")},
}
OUR_OWN = "a_plain converted for SGLang"
SILENT = "a_plain that states no flags"
DEFAULT_POINTS = (2, 3)  # 2, L//2, L-3 of a target of 6 layers, each once
NO_LOSS = {"t2d"}
TRAINED = (1, 3, 5)  # all of the folders


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The folders above, one whose flags are left to vLLM's defaults, and one that was converted for SGLang."""
    silent = tmp_path_factory.mktemp("silent")
    config = json.loads((FOLDERS["a_plain"] / "config.json").read_text())
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        del config[flag]
    (silent / "config.json").write_text(json.dumps(config))
    (silent / "model.safetensors").symlink_to(FOLDERS["a_plain"] / "model.safetensors")
    out = tmp_path_factory.mktemp("converted") / "out"
    convert(Request(source=str(FOLDERS["a_plain"]), out=out, target=TARGET), quiet)
    return {**FOLDERS, SILENT: silent, OUR_OWN: out}


def jobs(folders: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": n, "drafter": str(f), "target": str(TARGET), "dtype": "float32"} for n, f in folders.items()]


@pytest.fixture(scope="module")
def in_vllm(engines: Engines, folders: dict[str, Any]) -> Results:
    return engines.load_with_vllm("0.33.0", jobs(folders))


@pytest.fixture(scope="module")
def in_sglang(engines: Engines, folders: dict[str, Any]) -> Results:
    return engines.load_with_sglang("0.5.23", jobs(folders))


def view(folder: Any, engine: str) -> Seen:
    [seen] = inspect(str(folder), Asked((engine,), TARGET)).engines
    return seen


def test_what_vllm_makes_of_a_folder(in_vllm: Results, folders: dict[str, Any]) -> None:
    for name, folder in folders.items():
        seen, found = view(folder, "vllm==0.33.0"), in_vllm[name]
        assert (found["stage"] == "done") == (not seen.unreadable and not seen.stops), name
        if found["stage"] != "done":
            assert name == "automodel" and "LlamaEagle3DraftModel" in found["error"]["message"]
            continue
        assert seen.points == tuple(found["aux_layer_ids"] or DEFAULT_POINTS), name
        assert seen.spec is not None
        for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
            assert getattr(seen.spec, flag) == (found["config"].get(flag) or False), (name, flag)
        assert found["class"].endswith("Eagle3Qwen3ForCausalLM" if seen.spec.qk_norm else "Eagle3LlamaForCausalLM")
        assert list(seen.spec.layer_windows) == found["layer_windows"]
        assert set(found["not_consumed"]) <= NO_LOSS and seen.ignored == ()
        assert seen.embedding == {"checkpoint": "own", "target": "the target's"}[found["embedding"]]
        assert seen.missing == () and found["head"] == "checkpoint" and seen.head == "own"
    assert view(folders[SILENT], "vllm==0.33.0").differs == ("norm_before_residual",)


def test_the_verdict_of_validate(in_vllm: Results, in_sglang: Results, folders: dict[str, Any]) -> None:
    """What is said to work as it lies is loaded whole, and captures what was trained."""
    working: dict[str, set[str]] = {"vllm": set(), "sglang": set()}
    for release, results in (("vllm==0.33.0", in_vllm), ("sglang==0.5.23", in_sglang)):
        name, _, _ = release.partition("==")
        for folder in folders:
            aux = None if folder == OUR_OWN else TRAINED  # which settles what ids of SpecForge mean
            report = validate(Request(source=str(folders[folder]), engines=(release,), target=TARGET, aux=aux))
            [engine] = report.engines
            if of_engine(report, engine).word != "works":
                continue
            working[name].add(folder)
            found = results[folder]
            assert found["stage"] == "done" and set(found["not_consumed"]) <= NO_LOSS, (release, folder)
            step = 1 if name == "sglang" else 0
            points = tuple(i + step for i in found["aux_layer_ids"] or ())
            assert (points or DEFAULT_POINTS) == TRAINED, (release, folder)
    assert working == {
        "vllm": {"a_plain", "c_nbfc", "e_2layers", "f_qwen3", "l_defaults", OUR_OWN},
        "sglang": {"specforge_hf", "modelopt_layers", OUR_OWN},
    }


def test_what_sglang_makes_of_a_folder(in_sglang: Results, folders: dict[str, Any]) -> None:
    for name, folder in folders.items():
        seen, found = view(folder, "sglang==0.5.23"), in_sglang[name]
        if seen.unreadable:
            assert "Should have a `model_type` key" in found["error"]["message"], name
        elif seen.stops:
            assert "SGLang has no class for" in found["error"]["message"], name
        else:
            assert found["stage"] == "done", name
            assert seen.points == tuple(i + 1 for i in found["aux_layer_ids"]), name
            assert set(found["not_consumed"]) <= NO_LOSS and seen.ignored == seen.missing == ()
    stopped = {name for name, folder in folders.items() if view(folder, "sglang==0.5.23").stops}
    assert stopped == {"angelslim", "automodel"}

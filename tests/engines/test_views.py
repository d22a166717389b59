"""What `eagle3 inspect` says an engine would make of a folder as it is, against the engine itself.

The folders are trainers' own, converted by nobody: speculators', which vLLM lays flat and SGLang does not know, and
those of others, whose class and ids only one of the two understands.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from converter.look.engines import Seen
from converter.look.inspect import inspect
from converter.look.subject import Asked

from .conftest import Engines
from .drafters import DATA, TARGET

pytestmark = pytest.mark.engines

FOLDERS = {
    **{name: DATA / "drafters" / name for name in ("a_plain", "c_nbfc", "e_2layers", "f_qwen3", "l_defaults")},
    **{name: DATA / "producers" / name for name in ("specforge_hf", "angelslim", "automodel", "modelopt_layers")},
}
SILENT = "a_plain that states no flags"
DEFAULT_POINTS = (2, 3)  # 2, L//2, L-3 of a target of 6 layers, each once
NO_LOSS = {"t2d"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The folders above, and one whose flags are left to vLLM's defaults."""
    silent = tmp_path_factory.mktemp("silent")
    config = json.loads((FOLDERS["a_plain"] / "config.json").read_text())
    for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        del config[flag]
    (silent / "config.json").write_text(json.dumps(config))
    (silent / "model.safetensors").symlink_to(FOLDERS["a_plain"] / "model.safetensors")
    return {**FOLDERS, SILENT: silent}


def jobs(folders: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": n, "drafter": str(f), "target": str(TARGET), "dtype": "float32"} for n, f in folders.items()]


def view(folder: Any, engine: str) -> Seen:
    [seen] = inspect(str(folder), Asked((engine,), TARGET)).engines
    return seen


def test_vllm(engines: Engines, folders: dict[str, Any]) -> None:
    results = engines.load_with_vllm("0.33.0", jobs(folders))
    for name, folder in folders.items():
        seen, found = view(folder, "vllm==0.33.0"), results[name]
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


def test_sglang(engines: Engines, folders: dict[str, Any]) -> None:
    results = engines.load_with_sglang("0.5.23", jobs(folders))
    for name, folder in folders.items():
        seen, found = view(folder, "sglang==0.5.23"), results[name]
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

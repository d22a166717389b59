"""Drafters of other shapes, as their trainers wrote them, converted and loaded in the engines' own classes.

What they compute is not compared here: the converter's own forward pass does not know it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support import DATA, TARGET, run

from .conftest import Engines, Results

pytestmark = pytest.mark.engines

VLLM, SGLANG = "0.33.0", "0.5.23"
PARALLEL: dict[str, dict[str, Any]] = {
    "speculators_peagle": {},
    "specforge_peagle": {"given": {"mask_token_id": 3}},
}


#: With latent attention; its trainer writes no ids.
LATENT: dict[str, dict[str, Any]] = {"automodel_mla": {"aux": (1, 3, 5)}}


class Loads:
    """Converts the drafters and loads them all in one process."""

    def __init__(self, engines: Engines, scratch: Path) -> None:
        self._engines, self._scratch = engines, scratch
        self.in_vllm = cache(self._in_vllm)
        self.in_sglang = cache(self._in_sglang)

    def converted(self, name: str, engine: str, **options: Any) -> Path:
        out = self._scratch / engine / name
        if not out.exists():
            out.parent.mkdir(exist_ok=True)
            report = run(DATA / "producers" / name, out, engine, **options)
            assert report.outcome == "converted", [f.message for f in report.findings]
        return out

    def _in_vllm(self) -> Results:
        jobs = []
        for name, options in PARALLEL.items():
            folder = self.converted(name, f"vllm=={VLLM}", **options)
            job = {"drafter": str(folder), "target": str(TARGET), "dtype": "float32"}
            jobs.append({**job, "name": name, "speculative": {"parallel_drafting": True}})
            jobs.append({**job, "name": f"{name} step by step"})
        for name, options in LATENT.items():
            jobs.append({**job, "name": name, "drafter": str(self.converted(name, f"vllm=={VLLM}", **options))})
        return self._engines.load_with_vllm(VLLM, jobs)

    def _in_sglang(self) -> Results:
        jobs = []
        for name, options in LATENT.items():
            folder = self.converted(name, f"sglang=={SGLANG}", **options)
            jobs.append({"name": name, "drafter": str(folder), "target": str(TARGET), "dtype": "float32"})
        return self._engines.load_with_sglang(SGLANG, jobs)


@pytest.fixture(scope="module")
def loads(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Loads:
    return Loads(engines, tmp_path_factory.mktemp("shapes"))


@pytest.mark.parametrize("name", PARALLEL)
def test_a_p_eagle_drafter_is_loaded_whole_by_vllm(loads: Loads, name: str) -> None:
    result = loads.in_vllm()[name]
    assert result["error"] is None, result["error"]
    assert result["class"] == "vllm.model_executor.models.llama_eagle3.Eagle3LlamaForCausalLM"
    # The second layer has a hidden_norm that nothing uses.
    assert set(result["unwritten"]) == {"model.layers.1.hidden_norm.weight"}
    assert result["partly_written"] == [] and set(result["not_consumed"]) <= {"t2d"}
    assert result["aux_layer_ids"] == [1, 3, 5]
    tensors = load_file(DATA / "producers" / name / "model.safetensors")
    assert result["target_token_ids"] == tensors["t2d"].nonzero().flatten().tolist()
    assert result["mask_token"] == 3
    assert torch.equal(torch.tensor(result["mask_hidden"]), tensors["mask_hidden"].float().flatten())


@pytest.mark.parametrize("name", PARALLEL)
def test_without_the_option_of_the_launch_line_vllm_passes_over_its_states(loads: Loads, name: str) -> None:
    result = loads.in_vllm()[f"{name} step by step"]
    assert result["error"] is None, result["error"]
    assert "mask_hidden" in result["not_consumed"] and "mask_hidden" not in result


def assert_whole(result: dict[str, Any], name: str, joined: tuple[str, ...] = ()) -> None:
    """`joined` are put together before they are copied, which the watch does not follow; what they fill is seen."""
    assert result["error"] is None, result["error"]
    assert result["unwritten"] == [] and result["partly_written"] == []
    assert set(result["not_consumed"]) <= {"t2d", *(f"midlayer.self_attn.{part}.weight" for part in joined)}
    tensors = load_file(DATA / "producers" / name / "model.safetensors")
    if result["target_token_ids"] is not None:
        assert result["target_token_ids"] == tensors["t2d"].nonzero().flatten().tolist()


@pytest.mark.parametrize("name", LATENT)
def test_latent_attention_is_loaded_whole_by_vllm(loads: Loads, name: str) -> None:
    result = loads.in_vllm()[name]
    assert_whole(result, name)
    assert result["class"] == "vllm.model_executor.models.deepseek_eagle3.Eagle3DeepseekV2ForCausalLM"
    assert result["aux_layer_ids"] == [1, 3, 5]


@pytest.mark.parametrize("name", LATENT)
def test_latent_attention_is_loaded_whole_by_sglang(loads: Loads, name: str) -> None:
    result = loads.in_sglang()[name]
    assert_whole(result, name, joined=("q_a_proj", "kv_a_proj_with_mqa"))
    assert result["class"] == "sglang.srt.models.kimi_k25_eagle3.Eagle3DeepseekV2ForCausalLM"
    assert result["aux_layer_ids"] == [0, 2, 4]

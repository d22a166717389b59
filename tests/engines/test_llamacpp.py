"""Converted drafters in llama.cpp's own converter, and, where its library is at hand, in the library.

The converter (convert_hf_to_gguf.py of build b11312) makes a GGUF file of each drafter that the rules say llama.cpp
can serve, and of none that they refuse. Every tensor must arrive with its values; q and k in the order of rows that
ggml's rotation of neighbouring pairs takes, d2t as ids. See llamacpp.py for the library, which has to be compiled.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.support import DATA, DRAFTERS, SAMPLE, TARGET

from . import llamacpp
from .conftest import Engines
from .drafters import (
    LOGIT_TOLERANCE,
    Loaded,
    Workshop,
    change_config,
    collect,
    sample_inputs,
    target_token_ids,
    trained_points,
)

pytestmark = pytest.mark.engines

ENGINE = f"llama.cpp=={llamacpp.BUILD}"
SERVED = ("a_plain", "b_nbr", "c_nbfc", "g_aux024", "h_fullvocab", "i_rope_headdim", "k_embedgrad")
#: Those that the rules refuse, as converted for vLLM: the code, and what llama.cpp's converter stops at. Where it does
#: not stop, the server does, or computes something else.
REFUSED = {
    "d_fcnorm_normout": ("K105", "Can not map tensor 'fc_norm.0.weight'"),
    "e_2layers": ("K102", "Can not map tensor 'd2t'"),
    "f_qwen3": ("K107", "exit status 1"),
    "j_attnbias": ("K108", None),
    "l_defaults": ("K106", None),
}
#: name in the GGUF file: name in the drafter's.
NAMES = {
    "token_embd.weight": "embed_tokens.weight",
    "fc.weight": "fc.weight",
    "output_norm_enc.weight": "input_norm.weight",
    "enc.output_norm.weight": "input_norm.weight",
    "blk.0.attn_norm.weight": "layers.0.input_layernorm.weight",
    "blk.0.attn_norm_2.weight": "layers.0.hidden_norm.weight",
    "blk.0.attn_q.weight": "layers.0.self_attn.q_proj.weight",
    "blk.0.attn_k.weight": "layers.0.self_attn.k_proj.weight",
    "blk.0.attn_v.weight": "layers.0.self_attn.v_proj.weight",
    "blk.0.attn_output.weight": "layers.0.self_attn.o_proj.weight",
    "blk.0.ffn_norm.weight": "layers.0.post_attention_layernorm.weight",
    "blk.0.ffn_gate.weight": "layers.0.mlp.gate_proj.weight",
    "blk.0.ffn_up.weight": "layers.0.mlp.up_proj.weight",
    "blk.0.ffn_down.weight": "layers.0.mlp.down_proj.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("llamacpp"))


@pytest.fixture(scope="module")
def made(engines: Engines, workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Loaded]:
    """Every drafter through llama.cpp's converter, and the target."""
    scratch = tmp_path_factory.mktemp("gguf")
    jobs = [_job(scratch, "target", TARGET)]
    for name in SERVED:
        folder, failure = workshop.convert(name, ENGINE)
        assert failure is None, failure
        jobs.append(_job(scratch, name, folder, target=str(TARGET)))
    for name in REFUSED:
        folder, failure = workshop.convert(name, "vllm==0.33.0")
        assert failure is None, failure
        jobs.append(_job(scratch, name, folder, target=str(TARGET)))
    results = llamacpp.convert(engines.environment, jobs)
    return collect([{**job, "outputs": job["tensors"]} for job in jobs], results)


def _job(scratch: Path, name: str, folder: Path, **more: Any) -> dict[str, Any]:
    files = {"gguf": str(scratch / f"{name}.gguf"), "tensors": str(scratch / f"{name}.safetensors")}
    return {"name": name, "folder": str(folder), "type": "f32", **files, **more}


def neighbouring_pairs(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of q or k reordered from `the first half rotates with the second` to `each row with the next`."""
    heads = weight.reshape(-1, head_dim, weight.shape[1])
    order = [half * (head_dim // 2) + pair for pair in range(head_dim // 2) for half in range(2)]
    return heads[:, order].reshape(weight.shape)


@pytest.mark.parametrize("name", SERVED)
def test_every_tensor_arrives(name: str, made: dict[str, Loaded]) -> None:
    assert made[name].result["error"] is None
    arrived = made[name].outputs
    trained = {k: v.float().numpy() for k, v in load_tensors(DRAFTERS / name / "model.safetensors").items()}
    head_dim = made[name].result["values"]["eagle3.attention.key_length"]
    expected = {}
    for theirs, ours in NAMES.items():
        if ours in trained and theirs in arrived:
            permuted = theirs in ("blk.0.attn_q.weight", "blk.0.attn_k.weight")
            expected[theirs] = neighbouring_pairs(trained[ours], head_dim) if permuted else trained[ours]
    assert {NAMES[n] for n in expected} == trained.keys() - {"d2t", "t2d", "verifier_norm.weight"}
    assert arrived.keys() == expected.keys() | ({"d2t"} & trained.keys())
    for tensor, values in expected.items():
        assert np.array_equal(arrived[tensor].reshape(values.shape), values), tensor


@pytest.mark.parametrize("name", SERVED)
def test_the_map_arrives_as_ids(name: str, made: dict[str, Loaded]) -> None:
    ids = target_token_ids(name)
    arrived = made[name].outputs.get("d2t")
    assert (arrived is None) == (ids is None)
    if arrived is not None:
        assert arrived.tolist() == ids


@pytest.mark.parametrize("name", SERVED)
def test_the_wiring_arrives(name: str, made: dict[str, Loaded]) -> None:
    values = made[name].result["values"]
    assert values["general.architecture"] == "eagle3"
    assert values["eagle3.target_layers"] == trained_points(name)
    assert values["eagle3.norm_before_residual"] == (name == "b_nbr")
    assert values["eagle3.norm_before_fc"] == (name == "c_nbfc")
    assert values["eagle3.target_hidden_size"] == 64


def test_llama3_rope_arrives_as_factors(engines: Engines, workshop: Workshop, tmp_path: Path) -> None:
    """What transformers divides the frequencies by; `made` has only drafters with the plain rope."""
    factors = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}
    rope = {"rope_type": "llama3", "rope_theta": 5e5, **factors}
    folder, _ = workshop.convert("a_plain", ENGINE)
    copy = workshop.copy(folder, "llama3")
    change_config(copy, rope_parameters=rope, rope_scaling={"rope_type": "llama3", **factors}, rope_theta=5e5)
    job = _job(tmp_path, "llama3", copy, target=str(TARGET))
    result = llamacpp.convert(engines.environment, [job])["llama3"]
    assert result["error"] is None
    assert result["values"]["eagle3.rope.freq_base"] == 5e5
    config = LlamaConfig(rope_parameters=rope, hidden_size=64, num_attention_heads=4, max_position_embeddings=1024)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / 5e5 ** (torch.arange(0, 16, 2) / 16)
    found = load_file(job["tensors"])["rope_freqs.weight"].ravel()
    assert np.allclose(found, (plain / scaled).numpy(), rtol=1e-5)
    assert found.max() == pytest.approx(8) and found.min() == pytest.approx(1)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, workshop: Workshop, made: dict[str, Loaded]) -> None:
    code, message = REFUSED[name]
    _, failure = workshop.convert(name, ENGINE)
    assert failure is not None and code in failure
    error = made[name].result["error"]
    assert (error["message"] if error else None) == message


def test_bf16_is_kept(engines: Engines, workshop: Workshop, tmp_path: Path) -> None:
    """--outtype as the launch line has it: weights that were bf16 are what they were."""
    folder, _ = workshop.convert("a_plain", ENGINE)
    job = {**_job(tmp_path, "bf16", folder, target=str(TARGET)), "type": "bf16"}
    result = llamacpp.convert(engines.environment, [job])["bf16"]
    assert result["error"] is None
    trained = load_tensors(DRAFTERS / "a_plain" / "model.safetensors")["fc.weight"]
    assert np.array_equal(load_file(job["tensors"])["fc.weight"], trained.float().numpy())


# --- the library ----------------------------------------------------------------------------------------------

library = pytest.mark.skipif(llamacpp.LIBRARY not in os.environ, reason=f"no library: ${llamacpp.LIBRARY} is not set")
POINTS = tuple(range(6))


@pytest.fixture(scope="module")
def ran(engines: Engines, made: dict[str, Loaded], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Loaded]:
    scratch = tmp_path_factory.mktemp("library")
    sample = load_file(SAMPLE)
    tokens = sample["s0.input_ids"].tolist()
    jobs: list[dict[str, Any]] = []
    gguf = {name: loaded.result["values"] and str(_file(made, name)) for name, loaded in made.items() if _made(loaded)}
    for name in (None, *gguf.keys() - {"target"}):
        job = {"name": name or "target", "target": gguf["target"], "points": list(POINTS), "tokens": tokens}
        job["outputs"] = str(scratch / f"{name}.safetensors")
        if name is not None:
            states = str(scratch / f"{name}.states")
            save_file({"states": sample_inputs(name)["aux_hidden_states"]}, states)
            job |= {"drafter": gguf[name], "states": states}
        jobs.append(job)
    return collect(jobs, llamacpp.run(engines.environment, jobs))


def _made(loaded: Loaded) -> bool:
    return loaded.result["error"] is None


def _file(made: dict[str, Loaded], name: str) -> Path:
    return Path(made[name].result["file"])


@library
def test_the_target_hands_out_the_points(ran: dict[str, Loaded]) -> None:
    """Layer k's input is capture point k, the embedding among them."""
    expected = load_file(SAMPLE)["s0.hidden_states"][list(POINTS)]
    assert np.abs(ran["target"].outputs["states"] - expected).max() < LOGIT_TOLERANCE


@library
@pytest.mark.parametrize("name", SERVED)
def test_the_library_computes_what_was_trained(name: str, ran: dict[str, Loaded]) -> None:
    assert ran[name].result["error"] is None
    ids = target_token_ids(name)
    recorded = load_file(DATA / "expected" / f"{name}.safetensors")
    for step, key, every in ((0, "logits", 1), (1, "next_logits", 4)):
        logits = ran[name].outputs[key][::every]
        logits = logits if ids is None else logits[:, ids]
        expected = recorded[f"s0.draft_logits_step{step}"]
        assert logits.shape == expected.shape
        assert np.abs(logits - expected).max() < LOGIT_TOLERANCE, key


@library
def test_what_the_library_makes_of_those_refused(ran: dict[str, Loaded]) -> None:
    """Biases: it stops while loading. norm_output: the first step is right, the second is not."""
    assert "does not load" in ran["j_attnbias"].result["error"]["message"]
    recorded = load_file(DATA / "expected" / "l_defaults.safetensors")
    ids = target_token_ids("l_defaults")
    outputs = ran["l_defaults"].outputs
    assert np.abs(outputs["logits"][:, ids] - recorded["s0.draft_logits_step0"]).max() < LOGIT_TOLERANCE
    assert np.abs(outputs["next_logits"][::4, ids] - recorded["s0.draft_logits_step1"]).max() > 10 * LOGIT_TOLERANCE

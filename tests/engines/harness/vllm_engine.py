# ruff: noqa: E402, F401
"""vLLM on a CPU: importing it, and starting just enough of it to build and run its models.

Import this module before anything of vLLM or torch. Differences between the supported releases
are dealt with here, by looking at what the release offers, and nowhere else.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(
    TORCHDYNAMO_DISABLE="1",
    VLLM_CACHE_ROOT=tempfile.mkdtemp(),
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    VLLM_PLUGINS="",
    VLLM_TARGET_DEVICE="cpu",
)

# isort: split
import beginning
import stubs
import torch

#: What vLLM's files import and the environment does not have. No triton: vLLM has its own
#: placeholder for it.
STUBBED_PACKAGES = (
    "anthropic",
    "blake3",
    "cv2",
    "depyf",
    "ijson",
    "lark",
    "llguidance",
    "lmformatenforcer",
    "mcp",
    "mistral_common",
    "numba",
    "openai_harmony",
    "opentelemetry",
    "outlines",
    "outlines_core",
    "soundfile",
    "uvloop",
    "vllm._C",
    "vllm._C_stable_libtorch",
    "vllm._moe_C",
    "xgrammar",
)

stub_finder = stubs.install(STUBBED_PACKAGES)
# Called without a condition after loading; PyTorch refuses it where there is no accelerator.
torch.accelerator.empty_cache = lambda: None

import vllm.model_executor.models.deepseek_eagle3
import vllm.model_executor.models.llama_eagle3
import vllm.model_executor.models.qwen3_eagle3
from drafts import attention_over_one_sequence
from vllm.config import (
    CacheConfig,
    CompilationConfig,
    DeviceConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.distributed import parallel_state
from vllm.forward_context import get_forward_context, set_forward_context
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers import utils as layer_utils
from vllm.model_executor.layers.attention.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.models import registry
from vllm.v1.attention.backends.mla.amx_mla import AMXMLAImpl
from vllm.v1.worker.gpu.spec_decode.eagle import utils as eagle_utils

RELEASE = importlib.metadata.version("vllm")


def _inspect_in_this_process(self: Any) -> Any:
    return registry._ModelInfo.from_model_cls(self.load_model_cls())


# vLLM looks at a model class in a process of its own, which would not have the stubs.
registry._LazyRegisteredModel.inspect_model_cls = _inspect_in_this_process


def _use_plain_linear(layer: torch.nn.Module, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


# The CPU build packs weights for kernels of its own.
layer_utils.dispatch_cpu_unquantized_gemm = _use_plain_linear
AMXMLAImpl.process_weights_after_loading = lambda self, act_dtype: None


def configuration(
    target: Path | str,
    dtype: str = "auto",
    drafter: Path | str | None = None,
    **speculative_options: Any,
) -> VllmConfig:
    """The configuration of an engine for a target, and for a drafter if there is one."""
    model = ModelConfig(
        model=str(target),
        tokenizer=str(target),
        skip_tokenizer_init=True,
        dtype=dtype,
        enforce_eager=True,
        seed=0,
    )
    parallel = ParallelConfig()
    speculative = None
    if drafter is not None:
        speculative = SpeculativeConfig(
            model=str(drafter),
            method="eagle3",
            num_speculative_tokens=3,
            target_model_config=model,
            target_parallel_config=parallel,
            **speculative_options,
        )
    return VllmConfig(
        model_config=model,
        parallel_config=parallel,
        speculative_config=speculative,
        cache_config=CacheConfig(block_size=16),
        scheduler_config=SchedulerConfig.default_factory(max_model_len=model.max_model_len, is_encoder_decoder=False),
        device_config=DeviceConfig("cpu"),
        load_config=LoadConfig(),
        compilation_config=CompilationConfig(mode=0),
    )


def start_process_groups(config: VllmConfig) -> None:
    """The process groups of an engine with one rank."""
    meeting_point = Path(tempfile.mkdtemp()) / "meeting-point"
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(
            world_size=1,
            rank=0,
            local_rank=0,
            backend="gloo",
            distributed_init_method=meeting_point.as_uri(),
        )
        parallel_state.initialize_model_parallel(1, 1)


def qualified_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def replace_kernels(model: torch.nn.Module) -> None:
    """Make a model run without kernels.

    Norms, rotary embedding and activation use vLLM's own PyTorch versions, `forward_native`.
    The attention kernel, which needs a KV cache, gives way to PyTorch's over one sequence.
    """
    for module in model.modules():
        if isinstance(module, CustomOp):
            module._forward_method = module.forward_native
    Attention.forward = _attention_over_one_sequence


def add_in_place(model: torch.nn.Module) -> None:
    """Let norms that add the residual overwrite their inputs, as vLLM's kernel for it does.

    In the PyTorch version, and where vLLM compiles the model, the results are new tensors.
    """
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module._forward_method = _adding_in_place(module.forward_native)


def _adding_in_place(norm: Callable[..., Any]) -> Callable[..., Any]:
    def forward(x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is None:
            return norm(x)
        normed, total = norm(x, residual)
        return x.copy_(normed), residual.copy_(total)

    return forward


def _attention_over_one_sequence(
    self: Attention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    **kwargs: Any,
) -> torch.Tensor:
    rows = get_forward_context().attn_metadata
    return attention_over_one_sequence(query, key, value, self.head_size, self.impl.scale, rows, self.sliding_window)


def finish() -> None:
    """Leave at once: vLLM's threads and clean-up handlers have nothing left to do."""
    sys.stdout.flush()
    os._exit(0)

# ruff: noqa: E402, F401
"""SGLang on a CPU: importing it, and starting just enough of it to build and run its models.

Import this module before anything of SGLang or torch. Differences between the supported releases
are dealt with here, by looking at what the release offers, and nowhere else.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"

# isort: split
import beginning
import stubs
import torch

#: Packages which SGLang's files import and which the environment does not have.
STUBBED_PACKAGES = (
    "IPython",
    "anthropic",
    "av",
    "cuda",
    "cutlass",
    "datasets",
    "decord",
    "deep_gemm",
    "flashinfer",
    "grpc",
    "kernels",
    "llguidance",
    "modelscope",
    "mooncake",
    "nixl",
    "nvtx",
    "openai_harmony",
    "outlines",
    "pynvml",
    "quack",
    "scipy",
    "sgl_deep_gemm",
    "sgl_kernel",
    "smg_grpc_proto",
    "soundfile",
    "tilelang",
    "timm",
    "torch_memory_saver",
    "torchao",
    "torchaudio",
    "torchcodec",
    "torchvision",
    "triton",
    "tvm_ffi",
    "uvloop",
    "xgrammar",
)

stub_finder = stubs.install(STUBBED_PACKAGES)
# Called without a condition when 0.5.9 shares the target's embedding.
torch.cuda.synchronize = torch.cuda.empty_cache = lambda *args, **kwargs: None

from drafts import attention_over_one_sequence
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import parallel_state
from sglang.srt.layers import dp_attention, sampler
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding import get_rope
from sglang.srt.models import deepseek_v2
from sglang.srt.models.registry import ModelRegistry
from sglang.srt.server_args import ServerArgs

RELEASE = importlib.metadata.version("sglang")


def _rope_of_all_devices(*arguments: Any, device: Any = None, **options: Any) -> torch.nn.Module:
    return get_rope(*arguments, **options)


# On a CPU DeepSeek's attention has a rope that knows no plain kind.
deepseek_v2.get_rope_wrapper = _rope_of_all_devices

# Make the registry import its model files now, and not again in the process of every job.
ModelRegistry.get_supported_archs()


def server_arguments(model: Path | str, **options: Any) -> ServerArgs:
    """Server arguments for a CPU, made known to the whole process as a scheduler does."""
    arguments = ServerArgs(
        model_path=str(model),
        device="cpu",
        skip_tokenizer_init=True,
        disable_cuda_graph=True,
        mem_fraction_static=0.5,
        **{"attention_backend": "torch_native", **options},
    )
    try:
        from sglang.srt import runtime_context
    except ImportError:
        from sglang.srt.server_args import set_global_server_args_for_scheduler

        set_global_server_args_for_scheduler(arguments)
    else:
        ranks = runtime_context.SpawnRanks(world_rank=0)
        runtime_context.publish(arguments, role="scheduler", ranks=ranks)
    return arguments


def start_process_groups() -> None:
    """The process groups of a server with one rank."""
    meeting_point = Path(tempfile.mkdtemp()) / "meeting-point"
    parallel_state.init_distributed_environment(
        world_size=1,
        rank=0,
        local_rank=0,
        backend="gloo",
        distributed_init_method=meeting_point.as_uri(),
    )
    parallel_state.initialize_model_parallel(backend="gloo")


def start_data_parallel_attention(arguments: ServerArgs, config: ModelConfig) -> None:
    start = dp_attention.initialize_dp_attention
    takes_config = len(inspect.signature(start).parameters) == 2
    start(arguments, config) if takes_config else start(arguments)


def model_class(config: ModelConfig) -> type[torch.nn.Module]:
    """The class that SGLang's own registry has for this configuration."""
    found, architecture = ModelRegistry.resolve_model_cls(config.hf_config.architectures)
    if architecture not in config.hf_config.architectures:
        # The registry passes over model files it cannot import and takes a generic class.
        wanted = config.hf_config.architectures
        raise LookupError(f"SGLang has no class for {wanted} here, and fell back to {found}")
    return found


def qualified_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def replace_kernels(model: torch.nn.Module) -> None:
    """Make a model run without kernels.

    Norms, rotary embedding and activation use SGLang's own PyTorch versions, `forward_native`.
    The attention kernel, which needs a KV cache, gives way to PyTorch's over one sequence.
    """
    for module in model.modules():
        if hasattr(module, "_forward_method") and hasattr(module, "forward_native"):
            module._forward_method = module.forward_native
    RadixAttention.forward = _attention_over_one_sequence


def _attention_over_one_sequence(
    self: RadixAttention,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    forward_batch: ForwardBatch,
    save_kv_cache: bool = True,
    **kwargs: Any,
) -> torch.Tensor:
    """With the window that the class has set; SGLang counts it without the row's own position."""
    reach = self.sliding_window_size
    window = None if reach is None or reach < 0 else reach + 1
    return attention_over_one_sequence(q, k, v, self.head_dim, self.scaling, forward_batch.rows, window)


class ForwardMode:
    """No special mode: every `is_...()` question is answered with no."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("is_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: False


class ForwardBatch(types.SimpleNamespace):
    """What a model asks its batch for when one plain sequence is computed."""

    def __init__(self, **values: Any) -> None:
        super().__init__(forward_mode=ForwardMode(), contains_mm_inputs=lambda: False, **values)

    def __getattr__(self, name: str) -> None:
        """Everything else that a model may ask for is None."""
        if name.startswith("__"):
            raise AttributeError(name)


def finish() -> None:
    """Leave at once: SGLang's threads and clean-up handlers have nothing left to do."""
    sys.stdout.flush()
    os._exit(0)

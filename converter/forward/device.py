"""Where a forward pass runs, and in what precision."""

from __future__ import annotations

import torch

from converter.errors import UsageError


def choose_device(wanted: str) -> torch.device:
    """auto: CUDA where there is one, else CPU. Raises UsageError where the device does not exist."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        if device.type not in ("cpu", "cuda"):
            raise UsageError(f"--device {wanted}: expected auto, cpu, cuda or cuda:n")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as problem:
        raise UsageError(f"--device {wanted}: {str(problem).splitlines()[0]}") from problem
    return device


def dtype_for(device: torch.device) -> torch.dtype:
    """bf16 on CUDA, where it is several times as fast; fp32 on the CPU, where it is not."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32

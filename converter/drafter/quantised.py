"""Quantised weights: the tensors that go with one, and which weights are quantised.

Names are those of compressed-tensors (weight_packed, weight_scale, ...), of fp8 checkpoints (weight_scale_inv) and of
ModelOpt (weight_scale_2, input_scale). They follow their weight when it is renamed; their values are never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from converter.checkpoint.header import FLOATS
from converter.checkpoint.reader import Checkpoint

COMPANIONS = (
    "weight_packed", "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_shape", "weight_zero_point",
    "weight_g_idx", "weight_global_scale", "input_scale", "input_global_scale", "input_zero_point", "output_scale",
)  # fmt: skip


def weight_of(name: str) -> str | None:
    """`x.weight` for `x.weight_scale` and the like; None for a name that is no companion."""
    module, _, last = name.rpartition(".")
    return f"{module}.weight" if module and last in COMPANIONS else None


def companion_of(name: str, weight: str) -> str:
    """The companion `name` renamed as its weight was to `weight`."""
    return weight.removesuffix("weight") + name.rpartition(".")[2]


def quantised_weights(checkpoint: Checkpoint, tensors: Mapping[str, str]) -> set[str]:
    """Canonical names of weights that have companions, or of matrices stored in other than floating point."""
    found = {weight for name in tensors if (weight := weight_of(name)) is not None}
    stored = {c for c, name in tensors.items() if c.endswith("weight") and _narrow(checkpoint, name)}
    return found | stored


def _narrow(checkpoint: Checkpoint, name: str) -> bool:
    info = checkpoint.tensors[name].info
    return info.dtype not in FLOATS and len(info.shape) == 2


def only_cache(config: Any) -> bool:
    """Whether a quantization_config leaves all weights alone and speaks of keys and values: ModelOpt's `quant_algo`
    null beside `kv_cache_quant_algo`, compressed-tensors' empty `config_groups` beside `kv_cache_scheme`.
    """
    if not isinstance(config, Mapping) or not (config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme")):
        return False
    return not config.get("quant_algo") and not config.get("config_groups")

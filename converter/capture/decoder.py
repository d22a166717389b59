"""The residual stream of a target: what enters each decoder layer, and what enters the final norm.

transformers' own `hidden_states` differ in the last entry, which is after the norm; hooks read the stream itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, ModuleList

from converter.errors import InputError
from converter.findings import error

_FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "final_norm", "ln_f", "norm_f")
_OTHER_TOWERS = ("vision", "visual", "audio", "image", "encoder")


def find_stops(model: Module, layers: int) -> list[Module]:
    """The modules that capture points 0..L enter: `layers` decoder layers and the final norm.

    Raises InputError F133 where the model has no such decoder.
    """
    for module in _candidates(model):
        lists = [child for child in module.children() if isinstance(child, ModuleList) and len(child) == layers]
        norm = next((n for name in _FINAL_NORMS if isinstance(n := getattr(module, name, None), Module)), None)
        if len(lists) == 1 and norm is not None:
            return [*lists[0], norm]
    raise InputError(
        error(
            "F133",
            f"{type(model).__name__} has no decoder that this tool knows its way in",
            expected=f"a list of {layers} layers, as the config says, and a final norm: {', '.join(_FINAL_NORMS)}",
            fix=("capture the states with a program of your own: docs/samples.md has one to start from",),
        )
    )


def _candidates(model: Any) -> Iterator[Module]:
    """The decoder by its own account first, then every module but those of other towers."""
    for holder in (model, getattr(model, "language_model", None)):
        get_decoder = getattr(holder, "get_decoder", None)
        if get_decoder is not None and isinstance(decoder := get_decoder(), Module):
            yield decoder
    for name, module in model.named_modules():
        if not any(word in name for word in _OTHER_TOWERS):
            yield module


@torch.inference_mode()
def capture(model: Any, stops: Sequence[Module], tokens: Sequence[int], points: Sequence[int]) -> tuple[Tensor, Tensor]:
    """States [P, T, Ht] at `points` in the target's dtype and its choices [T] over the full vocabulary, on the CPU.

    One forward pass over `tokens`. Raises InputError F133 where the stream is not one state a token.
    """
    states: dict[int, Tensor] = {}
    with _hooks(stops, points, states):
        ids = torch.tensor([list(tokens)], device=input_device(model))
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    choices = logits[0].argmax(-1).cpu()
    shapes = {tuple(state.shape) for state in states.values()}
    if set(states) != set(points) or len(shapes) != 1 or any(len(s) != 2 or s[0] != len(tokens) for s in shapes):
        raise _no_stream(f"points {sorted(states)} with shapes {sorted(shapes)}", points, len(tokens))
    dtype = reduce(torch.promote_types, (state.dtype for state in states.values()))
    return torch.stack([states[point].to(dtype) for point in points]), choices


@contextmanager
def _hooks(stops: Sequence[Module], points: Sequence[int], states: dict[int, Tensor]) -> Iterator[None]:
    handles = [stops[p].register_forward_pre_hook(_keeper(p, states), with_kwargs=True) for p in points]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _keeper(point: int, states: dict[int, Tensor]) -> Callable[..., None]:
    def keep(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        state = args[0] if args else kwargs.get("hidden_states")
        if point in states or not isinstance(state, Tensor) or state.shape[:1] != (1,):
            raise _no_stream(f"{type(module).__name__} is given something else at point {point}", (point,), None)
        # Moved at once, so that the accelerator holds one layer; copied, because some models add to it in place.
        states[point] = state[0].detach().to("cpu", copy=True)

    return keep


def input_device(model: Any) -> torch.device:
    """Where the tokens go; weights that accelerate keeps elsewhere have no device of their own."""
    device: torch.device = model.device
    if device.type != "meta":
        return device
    places = [torch.device(d) for d in model.hf_device_map.values() if d != "disk"]
    return next((p for p in places if p.type != "cpu"), torch.device("cpu"))


def _no_stream(found: str, points: Sequence[int], length: int | None) -> InputError:
    return InputError(
        error(
            "F133",
            "the target's residual stream is not one state for each token",
            found=found,
            expected=f"[{'T' if length is None else length}, Ht] at points {', '.join(map(str, points))}",
            fix=("capture the states with a program of your own: docs/samples.md has one to start from",),
        )
    )

"""Sees from outside what an engine does with the tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Put into every parameter before loading; what still holds it afterwards was not written.
SENTINEL = -12345.0


class ParameterWatch:
    """Tells which parameters of a module were written between `begin` and `report`."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._initial: dict[str, torch.Tensor] = {}

    def begin(self) -> None:
        """Keep what the constructor put into the parameters, and mark every element."""
        for name, parameter in self._module.named_parameters():
            self._initial[name] = parameter.data.clone()
            parameter.data.fill_(SENTINEL)

    def report(self) -> dict[str, dict[str, Any]]:
        """Shape, dtype, number of elements and of written elements, by parameter."""
        return {
            name: {
                "shape": list(parameter.shape),
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "elements": parameter.numel(),
                "written": int((parameter.data != _sentinel_as(parameter)).sum()),
            }
            for name, parameter in self._module.named_parameters()
        }

    def restore_unwritten(self) -> None:
        """Put the constructor's values back where nothing was written.

        The forward pass then computes what the engine would have computed.
        """
        for name, parameter in self._module.named_parameters():
            if name in self._initial:
                untouched = parameter.data == _sentinel_as(parameter)
                parameter.data.copy_(torch.where(untouched, self._initial[name], parameter.data))


def _sentinel_as(parameter: torch.Tensor) -> torch.Tensor:
    """The sentinel as it is after rounding to the parameter's dtype."""
    return torch.tensor(SENTINEL).to(parameter.dtype)


class ConsumptionWatch(TorchDispatchMode):
    """Tells which tensors of a checkpoint an engine really reads the values of.

    `watched` hands the checkpoint's tensors on, each in a storage of its own. While the mode is
    entered, it sees every operation and notes the storages that a copy or an addition reads
    (loading copies; the vocabulary map is added to). Making views reads nothing.
    """

    READING_OPERATIONS = frozenset({"copy_", "_to_copy", "add", "add_", "index_put_"})

    def __init__(self) -> None:
        super().__init__()
        self._name_of_storage: dict[int, str] = {}
        self._kept: list[torch.Tensor] = []  # a freed storage's address could be used again
        self._consumed: set[str] = set()

    def watched(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors:
            own = tensor.detach().clone()
            self._kept.append(own)
            self._name_of_storage[own.untyped_storage().data_ptr()] = name
            yield name, own

    def not_consumed(self) -> list[str]:
        return sorted(set(self._name_of_storage.values()) - self._consumed)

    def __torch_dispatch__(
        self,
        operation: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if operation.__name__.partition(".")[0] in self.READING_OPERATIONS:
            for argument in (*args, *kwargs.values()):
                if isinstance(argument, torch.Tensor) and argument.device.type != "meta":
                    storage = argument.untyped_storage().data_ptr()
                    if storage in self._name_of_storage:
                        self._consumed.add(self._name_of_storage[storage])
        return operation(*args, **kwargs)


def dead_parameters(module: torch.nn.Module, forward: Callable[[], tuple[torch.Tensor, ...]]) -> list[str]:
    """The parameters that no result of `forward` depends on: NaN in them reaches none."""
    dead = []
    for name, parameter in module.named_parameters():
        if not parameter.dtype.is_floating_point:
            continue
        kept = parameter.data.clone()
        parameter.data.fill_(float("nan"))
        if not any(bool(result.isnan().any()) for result in forward()):
            dead.append(name)
        parameter.data.copy_(kept)
    return dead

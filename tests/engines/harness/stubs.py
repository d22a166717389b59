"""Stands in for modules that cannot be imported on a machine with no GPU.

The engines import kernel packages (triton, sgl_kernel, flashinfer, ...) at the top of files
whose plain PyTorch code is all that runs here. `install` adds a finder that answers, after all
real finders have failed, for the packages it is given. What it hands out can be imported,
subclassed, used as a decorator or in an annotation, and nothing else: a stubbed kernel that is
launched raises. No result in this harness can come from a stub.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterable
from typing import Any, NoReturn


class StubBase:
    """What a class that inherits from a stub inherits from instead."""


class StubValue:
    """Any attribute of a stubbed module: importable, and inert."""

    def __init__(self, name: str) -> None:
        self._stub_name = name
        self.__name__ = name.rsplit(".", 1)[-1]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _attribute(f"{self._stub_name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As a decorator, keep a class as it is and make a kernel of a function."""
        if len(args) == 1 and not kwargs:
            if isinstance(args[0], type):
                return args[0]
            if isinstance(args[0], types.FunctionType):
                return StubKernel(args[0])
        return StubValue(f"{self._stub_name}()")

    def __getitem__(self, key: Any) -> StubValue:
        if isinstance(key, int):  # else the old iteration protocol would never end
            raise IndexError(key)
        return StubValue(f"{self._stub_name}[]")

    def __or__(self, other: Any) -> StubValue:
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (StubBase,)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let pydantic models have fields annotated with a stub."""
        from pydantic_core import core_schema

        return core_schema.any_schema()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<stub {self._stub_name}>"


class StubKernel:
    """A function that was compiled as a kernel: it can be looked at, not run."""

    def __init__(self, function: types.FunctionType) -> None:
        self.fn = self.__wrapped__ = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StubValue(name)

    def __getitem__(self, grid: Any) -> StubKernel:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"a stubbed kernel was launched: {self.__name__}")


class StubModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full_name = f"{self.__name__}.{name}"
        if full_name in sys.modules:
            return sys.modules[full_name]
        value = _attribute(full_name)
        setattr(self, name, value)
        return value


class _NoDriver:
    """triton.runtime.driver where there is no GPU."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError("0 active drivers ([]). There should only be one.")


class _Constexpr:
    """triton.language.constexpr, used in annotations and called with values."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __class_getitem__(cls, item: Any) -> type:
        return cls


class _Config:
    """triton.Config, which lists of autotuning choices are made of."""

    def __init__(self, kwargs: dict[str, Any] | None = None, **options: Any) -> None:
        self.kwargs = kwargs or {}


def _jit(function: types.FunctionType | None = None, **options: Any) -> Any:
    return StubKernel if function is None else StubKernel(function)


def _unchanged(*args: Any, **kwargs: Any) -> Any:
    """A decorator with arguments that changes nothing."""
    return lambda function: function


#: Attributes for which an inert value will not do.
_SPECIAL: dict[str, Any] = {
    "triton.Config": _Config,
    "triton.autotune": _unchanged,
    "triton.heuristics": _unchanged,
    "triton.jit": _jit,
    "triton.language.constexpr": _Constexpr,
    "triton.runtime.driver": _NoDriver(),
}

#: Versions that the engines compare with a minimum; every other stub says 99.0.
_VERSIONS = {"triton": "3.6.0"}


def _attribute(full_name: str) -> Any:
    return _SPECIAL.get(full_name) or StubValue(full_name)


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of the packages it was given, and remembers which were asked for."""

    def __init__(self, packages: Iterable[str]) -> None:
        self.packages = frozenset(packages)
        self.served: set[str] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        parts = fullname.split(".")
        for length in range(1, len(parts) + 1):
            package = ".".join(parts[:length])
            if package in self.packages:
                self.served.add(package)
                return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = StubModule(spec.name)
        module.__version__ = _VERSIONS.get(spec.name, "99.0")
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run: attributes are made when they are asked for."""


def install(packages: Iterable[str]) -> StubFinder:
    """Answer imports of these packages (or modules, such as `vllm._C`) where nothing real does."""
    finder = StubFinder(packages)
    sys.meta_path.append(finder)
    return finder

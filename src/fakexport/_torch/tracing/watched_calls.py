"""Observe calls that a program does not contain because they are not operators.

Calls of submodules are observed by patching `call_module` of the tracer, which a non-strict export uses. A
module hook would be visible to the model, and to TorchDynamo if it traces a part of the model.

Seen on torch 2.11 to 2.15. Source, for settings: `torch/nn/attention/__init__.py:_sdpa_kernel`,
`torch/backends/cuda/__init__.py`, `torch/backends/cudnn/__init__.py` and
`torch/__init__.py:set_float32_matmul_precision`, `set_default_dtype`; for generators: `torch/random.py`,
`torch/cuda/random.py`, `torch/csrc/Generator.cpp:THPGenerator_methods`; for texts:
`__repr__` of `SymInt`, `SymFloat` and `SymBool` in `torch/__init__.py`; `torch/_tensor.py:Tensor.__repr__`,
which `Tensor.__format__` calls; for modules:
`torch/fx/experimental/proxy_tensor.py:_ModuleStackTracer.call_module`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import _AttrProxy, _ModuleStackTracer

from fakexport._torch.patching import Patches, in_force, outside_of_patches

# Every public function that selects kernels, a precision or a default dtype calls one of these.
_SETTERS = tuple(
    name
    for name in (
        *("_set_sdp_use_flash", "_set_sdp_use_mem_efficient", "_set_sdp_use_math", "_set_sdp_use_cudnn"),
        *("_set_sdp_use_overrideable", "_set_sdp_priority_order", "_set_math_sdp_allow_fp16_bf16_reduction"),
        *("_set_float32_matmul_precision", "_set_cublas_allow_tf32", "_set_fp32_precision_setter"),
        "_set_cublas_allow_fp16_reduced_precision_reduction",
        "_set_cublas_allow_bf16_reduced_precision_reduction",
        *("_set_default_dtype", "_set_default_tensor_type", "_set_deterministic_algorithms"),
        *("_set_cudnn_allow_tf32", "_set_cudnn_enabled", "_set_cudnn_benchmark", "_set_cudnn_deterministic"),
    )
    if hasattr(torch._C, name)
)
# Every public function that changes a generator or reads its seed calls a method of `torch.Generator`.
_READING = frozenset({"get_state", "clone_state", "graphsafe_get_state", "get_offset"})
_METHODS = tuple(
    name
    for name, value in vars(torch.Generator).items()
    if callable(value) and not name.startswith("__") and name not in _READING
)
# `str` of a symbolic number returns the name of its symbol, such as `s77`. `str` of a fake tensor has no
# values.
_PLACES = (
    *((kind, "__repr__") for kind in (torch.SymInt, torch.SymFloat, torch.SymBool, FakeTensor)),
    (FakeTensor, "__format__"),
)


def backend_choices_watched(seen: Callable[[FrameType | None], None]) -> Patches:
    """Return a context that calls `seen` with the frame of the torch code that changes a setting."""
    return _watched([(torch._C, name) for name in _SETTERS], lambda name, args, result, frame: seen(frame))


def default_generators_watched(seen: Callable[[str, FrameType | None], None]) -> Patches:
    """Return a context that calls `seen` for each call of a generator's method.

    `seen` gets the name of the method and the frame of the caller. Only default generators are observed,
    since other generators are arguments of the operators that draw from them.
    """

    def called(name: str, args: tuple[Any, ...], result: Any, frame: FrameType | None) -> None:
        if args[0] is torch.default_generator or args[0].device.type != "cpu":
            seen(name, frame)

    return _watched([(torch.Generator, name) for name in _METHODS], called)


def texts_watched(seen: Callable[[str, FrameType | None], None]) -> Patches:
    """Return a context that calls `seen` if a value that the trace does not know is converted to text.

    `seen` gets the text and the frame of the caller.
    """
    return _watched(_PLACES, lambda name, args, result, frame: seen(result, frame))


def _watched(
    places: Iterable[tuple[Any, str]],
    called: Callable[[str, tuple[Any, ...], Any, FrameType | None], None],
) -> Patches:
    """Return a context that reports each call to `called`: name, arguments, result and caller."""

    def watched(owner: Any, name: str) -> Callable[..., Any]:
        stock = in_force(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = stock(*args, **kwargs)
            called(name, args, result, outside_of_patches(sys._getframe(1)))
            return result

        return call

    return Patches({(owner, name): watched(owner, name) for owner, name in places})


def traced_modules(on_start: Callable[[nn.Module], None], on_end: Callable[[nn.Module], None]) -> Patches:
    """Return a context that calls functions with each module before and after a non-strict export traces it.

    `on_end` is also called if the trace of the module raises.
    """
    stock = in_force(_ModuleStackTracer, "call_module")

    def call_module(tracer: Any, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        is_stand_in = isinstance(module, _AttrProxy)  # for a module with several names
        own = module.get_base() if is_stand_in else module
        on_start(own)
        try:
            return stock(tracer, module, forward, args, kwargs)
        finally:
            on_end(own)

    return Patches({(_ModuleStackTracer, "call_module"): call_module})

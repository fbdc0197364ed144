"""Which modules a trace has been through. Seen on torch 2.13.

A non-strict export calls each submodule through the `call_module` of its tracer. The model would see a hook
on its modules, and so would TorchDynamo where it traces a part of the model.

Source: `torch/fx/experimental/proxy_tensor.py:_ModuleStackTracer.call_module`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.fx.experimental.proxy_tensor import _AttrProxy, _ModuleStackTracer

from .patching import Patches, in_force


def traced_modules(on_traced: Callable[[nn.Module], None]) -> Patches:
    """The context in which a module is announced each time that a non-strict export has traced it."""
    stock = in_force(_ModuleStackTracer, "call_module")

    def call_module(tracer: Any, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        result = stock(tracer, module, forward, args, kwargs)
        is_stand_in = isinstance(module, _AttrProxy)  # of a module with several names
        on_traced(module.get_base() if is_stand_in else module)
        return result

    return Patches({(_ModuleStackTracer, "call_module"): call_module})

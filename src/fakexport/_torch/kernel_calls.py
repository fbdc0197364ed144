"""What runs inside of torch's own operators while a program is traced. Seen on torch 2.13.

Source: `torch/fx/experimental/proxy_tensor.py:proxy_call`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor

from .patching import Patches, in_force

_OWN = frozenset({"aten", "prim", "prims"})


def around_kernels(leave: Callable[[], None], enter: Callable[[], None]) -> Patches:
    """Return a context in which `leave` is called before each of torch's operators runs, `enter` after.

    Not where a hook for the tensors that autograd saves is set: the operator calls it.
    """
    stock = in_force(proxy_tensor, "proxy_call")

    def call(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            func.namespace not in _OWN
            or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        ):
            return stock(mode, func, *args, **kwargs)
        leave()
        try:
            return stock(mode, func, *args, **kwargs)
        finally:
            enter()

    return Patches({(proxy_tensor, "proxy_call"): call})

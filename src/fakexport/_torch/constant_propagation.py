"""Folding of known constants without running anything on a device that does not exist.

Tracing folds operations on `torch.tensor` literals by really executing them, on the device they name. On
a virtual device that raises `Torch not compiled with CUDA enabled` (40 of 105 transformers architectures,
since every `torch.tensor(..., device=input.device)` in a `forward` gets there). The values do not depend
on the device, so here they are folded on the CPU; the traced graph is untouched. Seen on torch 2.11 to 2.13.

Source: `torch/fx/experimental/proxy_tensor.py:proxy_call`,
`torch/_subclasses/fake_tensor.py:FakeTensorMode._dispatch_impl`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import proxy_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from .patching import Patches

_REAL_DEVICE_TYPES = ("cpu", "meta")


class _OnCpu(TorchDispatchMode):
    """Runs every operation on the CPU, whatever device its arguments name."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map_only(torch.device, _cpu_instead, (args, dict(kwargs or {})))
        return func(*args, **kwargs)


def _cpu_instead(device: torch.device) -> torch.device:
    return device if device.type in _REAL_DEVICE_TYPES else torch.device("cpu")


@contextmanager
def _unset_fake_on_cpu() -> Iterator[Any]:
    with fake_tensor.unset_fake_temporarily() as mode, _OnCpu():  # type: ignore[no-untyped-call]
        yield mode


def _dispatch_without_device_constants(
    mode: FakeTensorMode, func: Any, types: Any, args: Any, kwargs: Mapping[str, Any]
) -> Any:
    """Return `FakeTensorMode._dispatch_impl`, where an op that creates on a virtual device folds nothing.

    Stock would run `constant.new_zeros(3, device="cuda")` on the real device, with dispatch disabled. Neither
    is anything folded of a lifted attribute that is itself fake, as stock would where one lifted attribute
    is a view of another.
    """
    device = kwargs.get("device")
    is_created_there = isinstance(device, torch.device) and device.type not in _REAL_DEVICE_TYPES
    known = [t for t in tree_iter((args, kwargs)) if isinstance(t, FakeTensor) and t.constant is not None]
    if not is_created_there and not any(isinstance(t.constant, FakeTensor) for t in known):
        return _stock_dispatch(mode, func, types, args, kwargs)
    constants = [t.constant for t in known]
    for tensor in known:
        tensor.constant = None
    try:
        return _stock_dispatch(mode, func, types, args, kwargs)
    finally:
        for tensor, constant in zip(known, constants, strict=True):
            tensor.constant = constant


_stock_dispatch = FakeTensorMode._dispatch_impl


def constants_stay_on_cpu(check_device: Callable[[torch.device], None] = lambda device: None) -> Patches:
    """Return a context in which constant folding never executes on a virtual device.

    Args:
        check_device: Called with each device that an operator on fakes names; may raise. What fake mode
            remembers from the block was checked when it was computed.
    """

    def dispatch(mode: FakeTensorMode, func: Any, types: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.device):
                check_device(value)
        return _dispatch_without_device_constants(mode, func, types, args, kwargs)

    return Patches(
        {
            (proxy_tensor, "unset_fake_temporarily"): _unset_fake_on_cpu,
            (FakeTensorMode, "_dispatch_impl"): dispatch,
        }
    )

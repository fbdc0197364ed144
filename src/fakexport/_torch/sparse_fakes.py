"""Refusing sparse COO fakes on a virtual device before torch looks for the real one.

To detach a tensor torch copies its implementation. That of a sparse COO tensor allocates its empty indices on
the tensor's own device, below fake mode: a CPU-only build says "Could not run 'aten::empty.memory_format'", a
CUDA build without a GPU "Found no NVIDIA driver", and next to a GPU the memory is allocated there. A
trace detaches every tensor it meets. Seen on torch 2.13, built for the CPU and for CUDA 13.0.

Source: `aten/src/ATen/SparseTensorImpl.cpp:SparseTensorImpl`,
`torch/fx/experimental/proxy_tensor.py:snapshot_fake`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import proxy_tensor

from fakexport.error import FakexportError

from .absent_devices import ALWAYS_THERE
from .patching import Patches, in_force

_DETACH = torch.ops.aten.detach.default
_stock_detach = fake_impls.fast_detach


class SparseOnVirtualDevice(NotImplementedError, FakexportError):
    """A sparse COO tensor on a device that does not exist cannot be traced."""


def sparse_fakes_are_refused() -> Patches:
    """Return a context in which detaching a sparse COO fake on a virtual device raises the same error."""
    stock_dispatch = in_force(FakeTensorMode, "_dispatch_impl")

    def dispatch(mode: FakeTensorMode, func: Any, types: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        if func is _DETACH:
            _refuse_sparse(args[0])
        return stock_dispatch(mode, func, types, args, kwargs)

    return Patches({(FakeTensorMode, "_dispatch_impl"): dispatch, (proxy_tensor, "fast_detach"): _detached})


def _detached(mode: FakeTensorMode, fake: FakeTensor, include_real: bool = False) -> FakeTensor:
    _refuse_sparse(fake)
    return _stock_detach(mode, fake, include_real)


def _refuse_sparse(tensor: torch.Tensor) -> None:
    is_virtual = isinstance(tensor, FakeTensor) and tensor.fake_device.type not in ALWAYS_THERE
    if is_virtual and tensor.layout is torch.sparse_coo:
        raise SparseOnVirtualDevice(
            f"a sparse COO tensor on {tensor.device} cannot be traced: torch allocates its indices on the "
            "real device"
        )

"""Keep fake mode from using the real device in operators on a virtual device.

Constants: during tracing, torch folds operations on `torch.tensor` literals by running them on the device
that they name. On a virtual device, this raises `Torch not compiled with CUDA enabled`. It affects every
`torch.tensor(..., device=input.device)` in `forward`, and thus 40 of 105 transformers architectures. The
values do not depend on the device, so they are folded on the CPU. The traced graph does not change. Source:
`torch/fx/experimental/proxy_tensor.py:proxy_call`, `torch/_subclasses/fake_tensor.py:_dispatch_impl`.

Operators without a meta kernel: fake mode runs the real kernel on zeros, on the device of the tensors. Shapes
do not depend on the device. With the patches, the CPU kernel runs instead, and its outputs are placed on the
device of the inputs. Source: `torch/_subclasses/fake_tensor.py:run_fallback_kernel`.

Sparse COO tensors: to detach such a tensor, torch allocates empty indices on the tensor's device, below fake
mode. In a CPU-only build, this fails with "Could not run 'aten::empty.memory_format'". In a CUDA build
without a GPU, it fails with "Found no NVIDIA driver". With a GPU, memory is allocated on the GPU. A trace
detaches every tensor, so sparse COO tensors on virtual devices are rejected. Source:
`aten/src/ATen/SparseTensorImpl.cpp:SparseTensorImpl`, `torch/fx/experimental/proxy_tensor.py:snapshot_fake`.

Seen on torch 2.11 to 2.13, built for the CPU and for CUDA 13.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses import fake_impls, fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import proxy_tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map, tree_map_only, tree_unflatten

from fakexport._torch.emulation.absent_devices import ALWAYS_THERE
from fakexport._torch.patching import Patches
from fakexport.error import FakexportError

# A real kernel needs real memory. If the inputs are larger than this, the operator counts as unsupported.
LARGEST_FALLBACK_BYTES = 256 * 2**20

_DETACH = torch.ops.aten.detach.default
_stock_dispatch = FakeTensorMode._dispatch_impl
_stock_fallback = fake_tensor.run_fallback_kernel
_stock_detach = fake_impls.fast_detach


class SparseOnVirtualDevice(NotImplementedError, FakexportError):
    """A sparse COO tensor on a virtual device cannot be traced."""


def virtual_operators(check_device: Callable[[torch.device], None]) -> Patches:
    """Return a context in which fake mode runs no real kernel on a virtual device.

    Args:
        check_device: Called with each device argument of an operator on fake tensors. It may raise an error.
            It is not called again for results that fake mode has cached in the block.
    """

    def dispatch(mode: FakeTensorMode, func: Any, types: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        if func is _DETACH:
            _refuse_sparse(args[0])
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.device):
                check_device(value)
        return _dispatch_without_device_constants(mode, func, types, args, kwargs)

    return Patches(
        {
            (FakeTensorMode, "_dispatch_impl"): dispatch,
            (fake_tensor, "run_fallback_kernel"): _run_fallback_on_cpu,
            (proxy_tensor, "unset_fake_temporarily"): _unset_fake_on_cpu,
            (proxy_tensor, "fast_detach"): _detached,
        }
    )


class _OnCpu(TorchDispatchMode):
    """A dispatch mode that replaces device arguments with the CPU."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map_only(torch.device, _on_cpu, (args, dict(kwargs or {})))
        return func(*args, **kwargs)


@contextmanager
def _unset_fake_on_cpu() -> Iterator[Any]:
    with fake_tensor.unset_fake_temporarily() as mode, _OnCpu():  # type: ignore[no-untyped-call]
        yield mode


def _dispatch_without_device_constants(
    mode: FakeTensorMode, func: Any, types: Any, args: Any, kwargs: Mapping[str, Any]
) -> Any:
    """Call `FakeTensorMode._dispatch_impl`, but hide constants that torch would fold on a virtual device.

    torch would run `constant.new_zeros(3, device="cuda")` on the real device, with dispatch disabled.
    Constants that are fake tensors are also hidden: torch would fold them if one lifted attribute is a view
    of another.
    """
    device = kwargs.get("device")
    is_created_there = isinstance(device, torch.device) and device.type not in ALWAYS_THERE
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


def _run_fallback_on_cpu(
    mode: FakeTensorMode, func: Any, flat_args: Sequence[Any], args_spec: Any, not_implemented: RuntimeError
) -> Any:
    fakes = [arg for arg in flat_args if mode.is_our_fake(arg)]
    device = _virtual_device(fakes)
    if device is None:
        return _stock_fallback(mode, func, flat_args, args_spec, not_implemented)
    if torch.Tag.inplace_view in func.tags or func._schema.is_mutable:
        raise not_implemented
    if sum(fake.numel() * fake.itemsize for fake in fakes) > LARGEST_FALLBACK_BYTES:
        raise not_implemented
    with no_dispatch():
        reals = [_zeros_on_cpu(arg) if mode.is_our_fake(arg) else _on_cpu(arg) for arg in flat_args]
        args, kwargs = tree_unflatten(reals, args_spec)
        result = func(*args, **kwargs)
        storages = {_storage(real) for real in reals if isinstance(real, torch.Tensor)} - {None}
        metas = tree_map(lambda leaf: _meta_of(leaf, storages, not_implemented), result)
    return tree_map(
        lambda leaf: FakeTensor(mode, leaf, device) if isinstance(leaf, torch.Tensor) else leaf, metas
    )


def _virtual_device(fakes: Sequence[FakeTensor]) -> torch.device | None:
    return next((fake.fake_device for fake in fakes if fake.fake_device.type not in ALWAYS_THERE), None)


def _zeros_on_cpu(fake: FakeTensor) -> torch.Tensor:
    if fake.layout is torch.strided:
        return torch.zeros_like(fake, device="cpu")
    if fake.layout is torch.sparse_coo:
        sizes, sparse_dim = fake.shape, fake.sparse_dim()
        indices = torch.zeros(sparse_dim, 0, dtype=torch.int64)
        values = torch.zeros(0, *sizes[sparse_dim:], dtype=fake.dtype)
        return torch.sparse_coo_tensor(indices, values, sizes, is_coalesced=fake.is_coalesced())
    # `zeros_like` would look up a kernel of the virtual device, which a CPU-only build lacks.
    return torch.zeros(fake.shape, dtype=fake.dtype, layout=fake.layout)


def _on_cpu(value: Any) -> Any:
    """Return the CPU for a virtual device, and other values unchanged."""
    is_virtual = isinstance(value, torch.device) and value.type not in ALWAYS_THERE
    return torch.device("cpu") if is_virtual else value


def _storage(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else None


def _meta_of(leaf: Any, storages: set[int | None], not_implemented: RuntimeError) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if _storage(leaf) in storages:
        raise not_implemented  # The result aliases an input, but the fake result would not.
    return leaf.to("meta")


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

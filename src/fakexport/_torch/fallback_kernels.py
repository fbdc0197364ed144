"""Fake results of operators that have no meta kernel, for tensors on a virtual device.

Fake mode answers such an operator by running its real kernel on zeros, on the tensors' device. Shapes do
not depend on the device, so for a virtual device the CPU's kernel runs instead, and its outputs are said
to be on the device of the inputs. Seen on torch 2.11 to 2.13.

Source: `torch/_subclasses/fake_tensor.py:run_fallback_kernel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map, tree_unflatten

from .patching import Patches

# Running a kernel for real needs real memory; beyond this the operator counts as having no fake kernel.
LARGEST_FALLBACK_BYTES = 256 * 2**20


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


_stock_fallback = fake_tensor.run_fallback_kernel


def _virtual_device(fakes: Sequence[FakeTensor]) -> torch.device | None:
    return next((fake.fake_device for fake in fakes if fake.fake_device.type not in ("cpu", "meta")), None)


def _zeros_on_cpu(fake: FakeTensor) -> torch.Tensor:
    if fake.layout is torch.strided:
        return torch.zeros_like(fake, device="cpu")
    if fake.layout is torch.sparse_coo:
        sizes, sparse_dim = fake.shape, fake.sparse_dim()
        indices = torch.zeros(sparse_dim, 0, dtype=torch.int64)
        values = torch.zeros(0, *sizes[sparse_dim:], dtype=fake.dtype)
        return torch.sparse_coo_tensor(indices, values, sizes, is_coalesced=fake.is_coalesced())
    # `zeros_like` would look for a kernel of the virtual device, which this wheel does not have.
    return torch.zeros(fake.shape, dtype=fake.dtype, layout=fake.layout)


def _on_cpu(arg: Any) -> Any:
    return torch.device("cpu") if isinstance(arg, torch.device) else arg


def _storage(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else None


def _meta_of(leaf: Any, storages: set[int | None], not_implemented: RuntimeError) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if _storage(leaf) in storages:
        raise not_implemented  # An alias of an input: the fake would lose that.
    return leaf.to("meta")


def fallback_kernels_on_cpu() -> Patches:
    """Return a context in which a fallback kernel for a virtual device runs on the CPU."""
    return Patches({(fake_tensor, "run_fallback_kernel"): _run_fallback_on_cpu})

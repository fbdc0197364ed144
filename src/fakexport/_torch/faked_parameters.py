"""The fakes that a trace computes with instead of the parameters and buffers of a module.

An export makes a new fake tensor of each, also where it is a fake already: a quarter of a millisecond for
each of a thousand. Those with equal metadata become copies of the first of them, which stock torch makes.
What the mode remembers of them is what stock leaves there. It saves 4 percent of a trace, and can go when
torch takes fakes as they are. Seen on torch 2.13.

Source: `torch/_export/utils.py:_fakify_params_buffers`, `torch/_subclasses/fake_tensor.py:from_real_tensor`,
`torch/_subclasses/meta_utils.py:MetaConverter`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import in_kernel_invocation_manager
from torch.export import _trace

from .fake_tensors import FakeTensor, FakeTensorMode
from .new_fakes import NewFakes
from .patching import in_force


def replacements() -> dict[tuple[Any, str], Callable[..., Any]]:
    """Return what `Patches` takes; with it, the parameters of a trace are made in less time."""
    stock = in_force(_trace, "_fakify_params_buffers")

    def fakify(mode: FakeTensorMode, module: nn.Module) -> Any:
        if mode.fake_tensor_converter.meta_converter.copy_data or peek_interpreter_stack() is not None:
            return stock(mode, module)
        named: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
        named |= dict(module.named_buffers(remove_duplicate=False))
        fakes = _Fakes(mode)
        return {name: fakes.of(value) for name, value in named.items()}

    return {(_trace, "_fakify_params_buffers"): fakify}


class _Fakes:
    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._converter = mode.fake_tensor_converter
        self._made: dict[int, FakeTensor] = {}
        self._fakes = NewFakes()
        self._known: dict[tuple[Any, ...], FakeTensor] = {}

    def of(self, value: torch.Tensor) -> FakeTensor:
        found = self._made.get(id(value))
        if found is None:
            found = self._made[id(value)] = self._fake(value)
        return found

    def _fake(self, value: torch.Tensor) -> FakeTensor:
        if not (type(value) is FakeTensor and self._is_plain(value)):
            return self._mode.from_tensor(value, static_shapes=True)
        key = value.shape, value.dtype, value.fake_device, value.requires_grad, vars(value).get("_is_param")
        like = self._known.get(key)
        if like is None:
            made = self._known[key] = self._mode.from_tensor(value, static_shapes=True)
            return made
        return self._copy(value, like)

    def _is_plain(self, value: FakeTensor) -> bool:
        """Return whether a copy can take the place of what stock torch makes."""
        if value.layout is not torch.strided:
            return False  # Sparse tensors have no memory to ask for.
        remembered = self._converter.meta_converter
        storage = value.untyped_storage()
        return (
            all(type(size) is int for size in value.shape)
            and value.is_contiguous()
            and storage.nbytes() == value.numel() * value.dtype.itemsize > 0
            and value.is_leaf
            and value.grad is None
            and value.grad_dtype in (None, value.dtype)
            and not (value._is_view() or value.is_conj() or value.is_neg() or value.is_inference())
            and not getattr(value, "_is_buffer", False)
            and self._converter._get_memo(value) is None
            and remembered.describer.lookup_storage.get(storage) not in remembered.storage_memo
        )

    def _copy(self, value: FakeTensor, like: FakeTensor) -> FakeTensor:
        with torch.no_grad(), in_kernel_invocation_manager(self._mode):
            meta = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
        made = self._fakes.new(self._mode, meta, like.fake_device)
        if value.requires_grad:
            made.requires_grad_()
        if vars(value).get("_is_param"):
            made._is_param = True
        remembered = self._converter.meta_converter
        remembered.hit += 1
        storage = remembered.describer.get_storage_id(value.untyped_storage())
        remembered.storage_memo[storage] = made.untyped_storage()
        self._converter.set_tensor_memo(value, made)
        return made

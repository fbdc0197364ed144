"""Patch methods of fake tensors that bypass dispatch modes: printing, `.numpy()`, `.data = ...`, deep copies.

Each method is patched on its class while a block runs. The patch handles tensors of one fake mode, and calls
the previous method for all other tensors. Seen on torch 2.11 to 2.13.

Writes to storages, such as `tensor.untyped_storage()[0] = 1`, also bypass operators. The storage of a fake
tensor has no data, so torch ignores such a write without a warning. In a trace, any use of a storage raises.

Source: `torch/_tensor.py:Tensor.__deepcopy__`, which reads a fake tensor's data pointer;
`torch/csrc/autograd/python_variable.cpp:THPVariable_set_data`, which leaves `fake_device` stale;
`torch/nn/modules/module.py:_apply`, which swaps fake parameters and fails if one has a weak reference;
`torch/nn/modules/rnn.py:RNNBase.flatten_parameters`, which reads data pointers if cuDNN is available;
`torch/csrc/StorageMethods.cpp`, `torch/storage.py:UntypedStorage`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.patching import Patches, in_force

from .fake_tensors import active_fake_mode

_WRITES = (
    *((torch.UntypedStorage, name) for name in ("__setitem__", "byteswap", "copy_", "fill_")),
    *((torch.TypedStorage, name) for name in ("__setitem__", "fill_")),
)
_METHODS = ("__repr__", "__deepcopy__", "numpy", "tolist", "cuda", "data")


def fake_methods(
    mode: FakeTensorMode,
    constant_value: Callable[[torch.Tensor], torch.Tensor],
    data_assigned: Callable[[torch.Tensor, torch.Tensor], None],
) -> Patches:
    """Return a context in which fakes of `mode` print, copy and move with `Module.to` like real tensors.

    Args:
        constant_value: Returns the real value of a fake tensor, or raises an error. `.numpy()` and
            `.tolist()` call it.
        data_assigned: Called after each `tensor.data = other`.
    """
    stock: dict[str, Any] = {name: in_force(FakeTensor, name) for name in _METHODS}
    stock_deep_copy: Callable[..., Any] = in_force(torch.Tensor, "__deepcopy__")
    stock_swap: Callable[..., None] = in_force(torch.utils, "swap_tensors")
    stock_flatten: Callable[..., None] = in_force(torch.nn.RNNBase, "flatten_parameters")

    def is_ours(value: object) -> bool:
        return isinstance(value, FakeTensor) and value.fake_mode is mode

    def represent(self: FakeTensor, **options: Any) -> str:
        return describe_fake(self) if is_ours(self) else stock["__repr__"](self, **options)

    def numpy(self: FakeTensor, *, force: bool = False) -> Any:
        if not is_ours(self):
            return stock["numpy"](self, force=force)
        with real_execution():
            return constant_value(self).numpy()

    def tolist(self: FakeTensor) -> Any:
        if not is_ours(self):
            return stock["tolist"](self)
        with real_execution():
            return constant_value(self).tolist()

    def set_data(self: FakeTensor, other: torch.Tensor) -> None:
        stock["data"].__set__(self, other)
        if is_ours(self) and is_ours(other):
            self.fake_device = other.device
            data_assigned(self, other)

    def cuda(self: FakeTensor, device: Any = None, **options: Any) -> Any:
        # Without a real accelerator, C++ does not know the device type of an integer.
        if is_ours(self) and type(device) is int:
            device = torch.device("cuda", device)
        return stock["cuda"](self, device, **options)

    def deep_copy(self: FakeTensor, memo: dict[int, Any]) -> Any:
        return _deep_copy(self, memo) if is_ours(self) and self.is_leaf else stock["__deepcopy__"](self, memo)

    def deep_copy_of_real(self: torch.Tensor, memo: dict[int, Any]) -> Any:
        # torch's method creates an empty tensor, which would be fake here, and then sets its storage.
        if type(self) is torch.Tensor and self.is_leaf and active_fake_mode() is mode:
            return _deep_copy(self, memo)
        return stock_deep_copy(self, memo)

    def swap_tensors(one: torch.Tensor, other: torch.Tensor) -> None:
        # `Module._apply` only needs `one` to get the data of `other` and to stay the same object. An
        # assignment to `data` does this, except from the meta device (`to_empty`, `skip_init`), where C++
        # rejects it.
        if not (is_ours(one) and is_ours(other)):
            stock_swap(one, other)
        elif one.is_meta == other.is_meta:
            one.data = other
        else:
            _swap_fakes(one, other)

    def flatten_parameters(self: torch.nn.RNNBase) -> None:
        if not any(map(is_ours, self._flat_weights)):
            stock_flatten(self)

    return Patches(
        {
            (FakeTensor, "__repr__"): represent,
            (FakeTensor, "numpy"): numpy,
            (FakeTensor, "tolist"): tolist,
            (FakeTensor, "data"): property(lambda self: stock["data"].__get__(self), set_data),
            (FakeTensor, "cuda"): cuda,
            (FakeTensor, "__deepcopy__"): deep_copy,
            (torch.Tensor, "__deepcopy__"): deep_copy_of_real,
            (torch.utils, "swap_tensors"): swap_tensors,
            (torch.nn.RNNBase, "flatten_parameters"): flatten_parameters,
        }
    )


def _swap_fakes(one: torch.Tensor, other: torch.Tensor) -> None:
    """Swap two fake tensors, even if they have weak references, which `torch.utils.swap_tensors` rejects.

    Fake mode itself keeps weak references to recognize views. After the swap, a reference to `one` still
    refers to the module's parameter.
    """
    torch._C._swap_tensor_impl(one, other)
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__


def _deep_copy(fake: torch.Tensor, memo: dict[int, Any]) -> Any:
    """Return a deep copy of a leaf tensor. Unlike `Tensor.__deepcopy__`, this reads no data pointer."""
    if id(fake) in memo:
        return memo[id(fake)]
    with torch.no_grad():
        copied = _copied(fake, memo)
    known = vars(copied).keys()
    vars(copied).update({k: copy.deepcopy(v, memo) for k, v in vars(fake).items() if k not in known})
    copied.requires_grad_(fake.requires_grad)
    if fake.grad is not None:
        copied.grad = copy.deepcopy(fake.grad, memo)
    memo[id(fake)] = copied
    return copied


def _copied(fake: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
    """Return a copy with identical strides.

    As in torch, copies of tensors that share a storage share a new storage. A copy of a parameter keeps
    neither the strides nor the shared storage, and a copy of a lazily conjugated or negated tensor gets a
    storage of its own.
    """
    if isinstance(fake, torch.nn.Parameter) or fake.layout is not torch.strided:
        return fake.clone()
    storage = fake.untyped_storage()
    # If the storage is not a whole number of elements, `_flat` cannot represent it.
    if fake.is_conj() or fake.is_neg() or storage.nbytes() % fake.itemsize:
        return fake.clone()
    _, memory = memo.get(_memory_key(storage), (storage, None))
    if memory is None:
        copied = fake.clone()
        is_whole = copied.untyped_storage().nbytes() == storage.nbytes() and copied.stride() == fake.stride()
        memory = copied.detach() if is_whole else _flat(fake.detach(), fake.dtype).clone()
        memo[_memory_key(storage)] = storage, memory
        if is_whole:
            return copied
    return _flat(memory, fake.dtype).as_strided(fake.shape, fake.stride(), fake.storage_offset()).detach()


def _memory_key(storage: torch.UntypedStorage) -> tuple[str, int]:
    return "memory", storage._cdata


def _flat(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a flat view of a tensor's whole storage."""
    elements = tensor.untyped_storage().nbytes() // tensor.itemsize
    flat = tensor.as_strided((elements,), (1,), 0)
    return flat if dtype is tensor.dtype else flat.view(dtype)


def describe_fake(fake: torch.Tensor) -> str:
    """Return the repr of a fake tensor, with the non-default properties that torch shows for real tensors."""
    parts = ["..."]
    if fake.device.type != "cpu":
        parts.append(f"device='{fake.device}'")
    parts.append(f"size={tuple(fake.shape)}")
    if fake.dtype != torch.get_default_dtype():
        parts.append(f"dtype={fake.dtype}")
    if fake.layout is not torch.strided:
        parts.append(f"layout={fake.layout}")
    if fake.grad_fn is not None:
        parts.append(f"grad_fn=<{type(fake.grad_fn).__name__}>")
    elif fake.requires_grad:
        parts.append("requires_grad=True")
    text = f"tensor({', '.join([*parts, 'fake=True'])})"
    return f"Parameter containing:\n{text}" if isinstance(fake, torch.nn.Parameter) else text


def storage_writes(written: Callable[[torch.UntypedStorage], bool]) -> Patches:
    """Return a context that calls `written` before each write to a storage without data.

    If `written` returns False, torch's own method then performs the write.
    """

    def replacement(stock: Any) -> Callable[..., Any]:
        def write(storage: Any, *args: Any, **kwargs: Any) -> Any:
            memory = storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage
            if memory.device.type == "meta" and written(memory):
                return storage
            return stock(storage, *args, **kwargs)

        return write

    return Patches({place: replacement(in_force(*place)) for place in _WRITES})

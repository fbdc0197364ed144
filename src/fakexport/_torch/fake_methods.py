"""Methods of fake tensors that never reach a dispatch mode: printing, `.numpy()`, `.data = ...`, deep copies.

Each is replaced on the class while a block runs, acts for the tensors of one mode, and leaves those of
other modes to what stood there before. Seen on torch 2.11 to 2.13.

Source: `torch/_tensor.py:Tensor.__deepcopy__`, which asks a fake tensor for its data pointer;
`torch/csrc/autograd/python_variable.cpp:THPVariable_set_data`, which leaves `fake_device` stale;
`torch/nn/modules/module.py:_apply`, which swaps fake parameters and fails on any that has a weak reference;
`torch/nn/modules/rnn.py:RNNBase.flatten_parameters`, which asks for data pointers where cuDNN is available.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .active_modes import active_fake_mode
from .fake_repr import describe_fake
from .patching import Patches, in_force
from .real_execution import real_execution

_METHODS = ("__repr__", "__deepcopy__", "numpy", "tolist", "cuda", "data")


def fake_methods(
    mode: FakeTensorMode,
    value_of: Callable[[torch.Tensor], torch.Tensor],
    data_assigned: Callable[[torch.Tensor, torch.Tensor], None],
) -> Patches:
    """Return a context in which the fakes of `mode` print, copy and move with `Module.to` like real tensors.

    Args:
        value_of: Gives the real value of a fake tensor, or raises; for `.numpy()` and `.tolist()`.
        data_assigned: Is told of `tensor.data = other` after it happened.
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
            return value_of(self).numpy()

    def tolist(self: FakeTensor) -> Any:
        if not is_ours(self):
            return stock["tolist"](self)
        with real_execution():
            return value_of(self).tolist()

    def set_data(self: FakeTensor, other: torch.Tensor) -> None:
        stock["data"].__set__(self, other)
        if is_ours(self) and is_ours(other):
            self.fake_device = other.device
            data_assigned(self, other)

    def cuda(self: FakeTensor, device: Any = None, **options: Any) -> Any:
        # Without a real accelerator, C++ does not know which type of device a bare number means.
        if is_ours(self) and type(device) is int:
            device = torch.device("cuda", device)
        return stock["cuda"](self, device, **options)

    def deep_copy(self: FakeTensor, memo: dict[int, Any]) -> Any:
        return _deep_copy(self, memo) if is_ours(self) and self.is_leaf else stock["__deepcopy__"](self, memo)

    def deep_copy_of_real(self: torch.Tensor, memo: dict[int, Any]) -> Any:
        # Stock makes an empty tensor, which is a fake here, and sets the copied memory as its own.
        if type(self) is torch.Tensor and self.is_leaf and active_fake_mode() is mode:
            return _deep_copy(self, memo)
        return stock_deep_copy(self, memo)

    def swap_tensors(one: torch.Tensor, other: torch.Tensor) -> None:
        # `Module._apply` needs `one` to hold what `other` holds and keep its identity. That needs no swap,
        # but from the meta device (`to_empty`, `skip_init`), where C++ refuses other data.
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
    """What stock does to swap two tensors, which refuses those that anything refers to weakly.

    Fake mode itself does, to tell a view from its base. What refers to `one` means the module's parameter.
    """
    torch._C._swap_tensor_impl(one, other)
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__


def _deep_copy(fake: torch.Tensor, memo: dict[int, Any]) -> Any:
    """Return what `Tensor.__deepcopy__` makes of a leaf, without asking for a data pointer."""
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
    """Return a copy with the very strides of the tensor.

    Copies of tensors that share memory share it too, as in torch, which does neither for a parameter, and
    gives what is conjugated or negated lazily memory of its own.
    """
    if isinstance(fake, torch.nn.Parameter) or fake.layout is not torch.strided:
        return fake.clone()
    storage = fake.untyped_storage()
    # Elements that do not fill the memory cannot stand for it: the copy has memory of its own.
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
    """Return all the memory that a tensor looks at."""
    elements = tensor.untyped_storage().nbytes() // tensor.itemsize
    flat = tensor.as_strided((elements,), (1,), 0)
    return flat if dtype is tensor.dtype else flat.view(dtype)

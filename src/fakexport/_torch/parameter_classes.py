"""Subclasses of `nn.Parameter` with fake data, lazy parameters among them.

Stock torch makes a plain fake tensor of `MyParameter(fake)`: its class, its methods and what its `__init__`
sets are lost, and a lazy parameter cannot be made at all. Here the fake tensor gets a class that is both.
Seen on torch 2.11 to 2.13.

Source: `torch/nn/parameter.py:Parameter.__new__`, "path for custom tensors"; `UninitializedTensorMixin`,
whose `materialize` sets `self.__class__`, which must stay a fake one.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import parameter
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from .active_modes import active_fake_mode
from .patching import Patches, in_force

_UninitializedTensorMixin: Any = vars(parameter)["UninitializedTensorMixin"]  # Not in torch's stubs.
_OWN_CLASS = "_fakexport_own_class"


def parameters_keep_their_class(mode: FakeTensorMode) -> Patches:
    """Return a context in which `MyParameter(fake)` is a fake tensor and a `MyParameter`."""
    stock_new = in_force(nn.Parameter, "__new__")
    stock_uninitialized = in_force(UninitializedParameter, "__new__")
    stock_uninitialized_buffer = in_force(UninitializedBuffer, "__new__")

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        made = stock_new(cls, data, requires_grad)
        if cls is not nn.Parameter and type(made) is FakeTensor:
            made.__class__ = _fake_class(cls)
        return made

    def new_uninitialized(cls: Any, requires_grad: bool = True, **options: Any) -> Any:
        if active_fake_mode() is not mode:
            return stock_uninitialized(cls, requires_grad, **options)
        made: Any = stock_new(nn.Parameter, torch.empty(0, **options), requires_grad)
        made.__class__ = _fake_class(cls)
        return made

    def new_uninitialized_buffer(
        cls: Any, requires_grad: bool = False, persistent: bool = True, **options: Any
    ) -> Any:
        if active_fake_mode() is not mode:
            return stock_uninitialized_buffer(cls, requires_grad, persistent=persistent, **options)
        made: Any = torch.empty(0, **options).requires_grad_(requires_grad)
        made.persistent, made._is_buffer = persistent, True
        made.__class__ = _fake_class(cls)
        return made

    return Patches(
        {
            (nn.Parameter, "__new__"): staticmethod(new),
            (UninitializedParameter, "__new__"): staticmethod(new_uninitialized),
            (UninitializedBuffer, "__new__"): staticmethod(new_uninitialized_buffer),
        }
    )


def own_class(fake: FakeTensor) -> type[torch.Tensor]:
    """Return the class that the real tensor has: a subclass of `Parameter`, `Parameter`, or `Tensor`."""
    known: type[torch.Tensor] | None = getattr(type(fake), _OWN_CLASS, None)
    if known is not None:
        return known
    return nn.Parameter if isinstance(fake, nn.Parameter) else torch.Tensor


def fake_parameter(cls: Any, fake: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Return a parameter of the class around this fake data; the constructor of the class is not called."""
    made: torch.Tensor = nn.Parameter(fake, requires_grad)
    if cls is not nn.Parameter and type(made) is FakeTensor:
        made.__class__ = _fake_class(cls)
    return made


def real_parameter(cls: Any, value: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Return a parameter of the class with this data; of a lazy class, one that still waits for its shape."""
    made: torch.Tensor
    if issubclass(cls, _UninitializedTensorMixin):
        made = cls(requires_grad=requires_grad, device=value.device, dtype=value.dtype)
    else:
        made = torch.Tensor._make_subclass(cls, value, requires_grad)  # Its constructor may want more.
    return made


@functools.cache
def _fake_class(cls: Any) -> Any:
    """Return a class of fake tensors that has the methods of `cls` as well, and its name."""
    body: dict[str, Any] = {
        _OWN_CLASS: cls,
        "__init__": cls.__init__,  # Python calls it on what `__new__` made, past that of the fake tensor.
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
    }
    if issubclass(cls, _UninitializedTensorMixin):
        body["cls_to_become"] = FakeTensor
        body["shape"] = torch.Tensor.shape  # Stock raises, and fake mode itself asks for it.
    return type(cls)(cls.__name__, (FakeTensor, cls), body)

"""Subclasses of `nn.Parameter` with fake data, including lazy parameters.

In torch, `MyParameter(fake)` returns a plain fake tensor. The class, its methods and the attributes that its
`__init__` sets are lost, and lazy parameters cannot be created at all. With the patches of this module, the
fake tensor gets a class that derives from `FakeTensor` and `MyParameter`. Seen on torch 2.11 to 2.13.

Source: `torch/nn/parameter.py:Parameter.__new__`, "path for custom tensors"; `UninitializedTensorMixin`,
whose `materialize` sets `self.__class__`, which must remain a fake class.

Wrapper subclasses: `UnwrapTensorSubclass.right_inverse` of torch and torchao stops at inner tensors whose
class is exactly `torch.Tensor`, so it mistakes an inner fake tensor for a wrapper. With the patches,
`right_inverse` is called with a wrapper around meta tensors, and each returned meta tensor is replaced with
the corresponding fake tensor. Seen on torch 2.11 to 2.13, torchao 0.18.

Source: `torch/_functorch/_aot_autograd/subclass_parametrization.py`, `torchao/utils.py`;
`torch/nn/utils/parametrize.py:ParametrizationList.__init__`, which calls `right_inverse`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import parameter
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.nn.utils.parametrize import ParametrizationList

from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.patching import Patches, in_force

from .fake_tensors import active_fake_mode, is_fake_of, meta_of
from .wrapper_subclasses import is_wrapper, rewrapped

_UninitializedTensorMixin: Any = vars(parameter)["UninitializedTensorMixin"]  # Not in torch's stubs.
_OWN_CLASS = "_fakexport_own_class"


def parameters_keep_their_class(mode: FakeTensorMode) -> Patches:
    """Return a context in which `MyParameter(fake)` is both a fake tensor and a `MyParameter`."""
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
    """Return the class that the real tensor would have: `Tensor`, `Parameter`, or a subclass of either."""
    known: type[torch.Tensor] | None = getattr(type(fake), _OWN_CLASS, None)
    if known is not None:
        return known
    return nn.Parameter if isinstance(fake, nn.Parameter) else torch.Tensor


def fake_parameter(cls: Any, fake: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Return a parameter of class `cls` with this fake data, without calling the class's constructor."""
    made: torch.Tensor = nn.Parameter(fake, requires_grad)
    if cls is not nn.Parameter and type(made) is FakeTensor:
        made.__class__ = _fake_class(cls)
    return made


def real_parameter(cls: Any, value: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Return a parameter of class `cls` with this data, or an uninitialized one if the class is lazy."""
    made: torch.Tensor
    if issubclass(cls, _UninitializedTensorMixin):
        made = cls(requires_grad=requires_grad, device=value.device, dtype=value.dtype)
    else:
        made = torch.Tensor._make_subclass(
            cls, value, requires_grad
        )  # Its constructor may need more arguments.
    return made


@functools.cache
def _fake_class(cls: Any) -> Any:
    """Return a fake tensor class that also derives from `cls` and has its name."""
    body: dict[str, Any] = {
        _OWN_CLASS: cls,
        "__init__": cls.__init__,  # Otherwise, Python would call `FakeTensor.__init__` after `__new__`.
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
    }
    if issubclass(cls, _UninitializedTensorMixin):
        body["cls_to_become"] = FakeTensor
        body["shape"] = torch.Tensor.shape  # Fake mode reads `shape`, which raises in a lazy class.
    return type(cls)(cls.__name__, (FakeTensor, cls), body)


def wrappers_can_be_unwrapped(mode: FakeTensorMode) -> Patches:
    """Return a context in which a parametrization can unwrap wrapper subclasses of fake tensors."""
    stock_init: Callable[..., None] = in_force(ParametrizationList, "__init__")

    def init(self: Any, modules: Iterable[Any], original: Any, unsafe: bool = False) -> None:
        modules = list(modules)
        if not (is_wrapper(original) and is_fake_of(original, mode)):
            return stock_init(self, modules, original, unsafe)
        inverses = [m for m in modules if hasattr(m, "right_inverse")]
        for module in inverses:
            vars(module)["right_inverse"] = _on_stand_ins(module.right_inverse)
        try:
            return stock_init(self, modules, original, unsafe)
        finally:
            for module in inverses:
                del vars(module)["right_inverse"]

    return Patches({(ParametrizationList, "__init__"): init})


def _on_stand_ins(inverse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def right_inverse(value: Any) -> Any:
        try:
            return inverse(value)
        except AttributeError as error:
            if "__tensor_flatten__" not in str(error) or not is_wrapper(value):
                raise
        stood_for: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def stand_in(fake: torch.Tensor) -> torch.Tensor:
            meta = meta_of(fake)
            stood_for[id(meta)] = (meta, fake)
            return meta

        with real_execution():
            parts = inverse(rewrapped(value, stand_in))
        return [stood_for[id(part)][1] for part in parts]

    return right_inverse

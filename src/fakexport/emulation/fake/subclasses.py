"""Check that tensors are of supported classes, and reject unsupported subclasses of `torch.Tensor`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import Buffer, UninitializedBuffer, is_lazy

from fakexport._torch.emulation.fake_tensors import FakeTensor
from fakexport._torch.emulation.parameter_classes import own_class
from fakexport._torch.emulation.wrapper_subclasses import inner_tensors, is_wrapper, rewrapped
from fakexport.error import FakexportError, type_and_line
from fakexport.rules.diagnostics import Span

from .module_tensors import Inventory, slots


class UnsupportedSubclassError(FakexportError, RuntimeError):
    """An exported program cannot preserve a tensor subclass, so nothing is exported.

    Args:
        name: The name of a weight, or a description of the tensor.
        class_name: The class of the tensor, with the Python module that defines it.
        reason: Why the class is unsupported, as a clause: "it has no `__tensor_flatten__`".
        span: The line of the model that uses the tensor, if known.
    """

    def __init__(self, name: str, class_name: str, reason: str, span: Span | None = None) -> None:
        super().__init__(f"{name} is a {class_name}, which is unsupported: {reason}")
        self.name = name
        self.class_name = class_name
        self.reason = reason
        self.span = span

    @classmethod
    def of(cls, name: str, tensor: object, reason: str, span: Span | None = None) -> UnsupportedSubclassError:
        """Return the error for a tensor."""
        kind = type(tensor)
        return cls(name, f"{kind.__module__}.{kind.__qualname__}", reason, span)


def check_class(name: str, tensor: torch.Tensor) -> None:
    """Raise `UnsupportedSubclassError` if a tensor of the model has an unsupported class.

    Supported classes are plain tensors, buffers, subclasses of `nn.Parameter` without dispatch hooks, and
    wrapper subclasses with `__tensor_flatten__`.
    """
    if _is_distributed(tensor):
        reason = (
            "a program with this tensor depends on the mesh and on the rank; `full_tensor()` returns the "
            "plain tensor"
        )
        raise UnsupportedSubclassError.of(name, tensor, reason)
    if is_wrapper(tensor):
        for path, inner in inner_tensors(tensor):
            check_class(".".join((name, *path)), inner)
        if any(not isinstance(size, int) for size in tensor.shape):
            raise UnsupportedSubclassError.of(
                name, tensor, "its shape has a symbolic size that depends on data"
            )
        return
    cls = own_class(tensor) if isinstance(tensor, FakeTensor) else type(tensor)
    if cls not in _PLAIN and not issubclass(cls, nn.Parameter):
        raise UnsupportedSubclassError.of(
            name, tensor, "it has no `__tensor_flatten__` to return its inner tensors"
        )
    if (hook := _own_hook(cls)) is not None:
        raise UnsupportedSubclassError.of(name, tensor, f"it overrides `{hook}` without `__tensor_flatten__`")


def check_initialized(module: nn.Module) -> None:
    """Raise `UnsupportedSubclassError` if the module has an uninitialized tensor of a lazy module."""
    for slot in slots(module):
        if is_lazy(slot.tensor):
            raise UnsupportedSubclassError.of(
                slot.path, slot.tensor, "the first call of a lazy module sets the shape of this tensor"
            )


def check_input(name: str, value: object) -> None:
    """Raise `UnsupportedSubclassError` for an example input that is not a plain tensor."""
    if isinstance(value, torch.Tensor) and type(value) not in _PLAIN and not isinstance(value, FakeTensor):
        reason = (
            "an exported program accepts plain tensors only; pass the inner tensors of the subclass as "
            "inputs, and construct the subclass in forward"
        )
        raise UnsupportedSubclassError.of(name, value, reason)


def changed_inside(
    name: str, tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return a copy of a wrapper tensor with changed inner tensors.

    Args:
        change: Returns the new inner tensor, of the same shape and dtype, for an inner tensor. All results
            must be on one device.
    Raises:
        UnsupportedSubclassError: the wrapper cannot be recreated from its inner tensors, or its class, shape
            or dtype then differs.
    """
    try:
        made = rewrapped(tensor, change)
    except Exception as error:
        reason = f"`__tensor_unflatten__` raised {type_and_line(error)}"
        raise UnsupportedSubclassError.of(name, tensor, reason) from error
    if (type(made), made.shape, made.dtype) != (type(tensor), tensor.shape, tensor.dtype):
        expected, returned = (f"{type(t).__name__} of {t.dtype} {tuple(t.shape)}" for t in (tensor, made))
        reason = f"`__tensor_unflatten__` returned a {returned} instead of a {expected}"
        raise UnsupportedSubclassError.of(name, tensor, reason)
    return made


def unregistered_wrapper(module: nn.Module) -> tuple[str, torch.Tensor] | None:
    """Return the first wrapper tensor of a module that is neither a parameter nor a buffer."""
    inventory = Inventory.of(module)
    registered = {slot.path for slot in inventory.slots}
    found = (held for held in inventory.held if is_wrapper(held.tensor))
    return next(((held.path, held.tensor) for held in found if held.path not in registered), None)


_HOOKS = ("__torch_function__", "__torch_dispatch__")
_PLAIN: frozenset[type[Any]] = frozenset({torch.Tensor, nn.Parameter, Buffer, UninitializedBuffer})


def _own_hook(cls: type[torch.Tensor]) -> str | None:
    """Return the name of a dispatch hook that the class overrides; fake tensors would not call it."""
    own = (kind for kind in cls.__mro__ if kind.__module__.partition(".")[0] != "torch")
    return next((hook for kind in own for hook in _HOOKS if hook in vars(kind)), None)


def _is_distributed(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # Importing it takes a second.
    return module is not None and isinstance(tensor, module.DTensor)

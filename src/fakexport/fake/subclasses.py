"""Subclasses of `torch.Tensor` in a model: which can be kept without data, and the error for the others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import Buffer, UninitializedBuffer, is_lazy

from fakexport._torch.fake_tensors import FakeTensor
from fakexport._torch.parameter_classes import own_class
from fakexport._torch.wrapper_subclasses import inner_tensors, is_wrapper, rewrapped
from fakexport.diagnostics import Span
from fakexport.error import FakexportError, type_and_line

from .module_tensors import held_tensors, slots


class SubclassNotKept(FakexportError, RuntimeError):
    """A tensor subclass that would be another tensor in the program. Nothing is exported in its place.

    Args:
        name: Which tensor: the name of a weight, or a description.
        class_name: Its class, with the module that defines it.
        reason: Why it cannot be kept, as a clause: "it has no `__tensor_flatten__`".
        span: The line of the model where it shows, if one is known.
    """

    def __init__(self, name: str, class_name: str, reason: str, span: Span | None = None) -> None:
        super().__init__(f"{name} is a {class_name}, which cannot be kept: {reason}")
        self.name = name
        self.class_name = class_name
        self.reason = reason
        self.span = span

    @classmethod
    def of(cls, name: str, tensor: object, reason: str, span: Span | None = None) -> SubclassNotKept:
        """Return the error for a tensor."""
        kind = type(tensor)
        return cls(name, f"{kind.__module__}.{kind.__qualname__}", reason, span)


def check_class(name: str, tensor: torch.Tensor) -> None:
    """Raise `SubclassNotKept` for a tensor of the model whose class cannot be kept.

    Kept are plain tensors, buffers, parameters of any class, and wrappers with `__tensor_flatten__`.
    """
    if _is_distributed(tensor):
        reason = "its program depends on the mesh and on the rank; `full_tensor()` is the plain tensor"
        raise SubclassNotKept.of(name, tensor, reason)
    if is_wrapper(tensor):
        for path, inner in inner_tensors(tensor):
            check_class(".".join((name, *path)), inner)
        if any(not isinstance(size, int) for size in tensor.shape):
            raise SubclassNotKept.of(name, tensor, "its shape has a symbolic size, which depends on data")
        return
    cls = own_class(tensor) if isinstance(tensor, FakeTensor) else type(tensor)
    if cls not in _PLAIN and not issubclass(cls, nn.Parameter):
        raise SubclassNotKept.of(name, tensor, "it has no `__tensor_flatten__` to return its inner tensors")
    if (hook := _own_hook(cls)) is not None:
        raise SubclassNotKept.of(name, tensor, f"it overrides `{hook}` without `__tensor_flatten__`")


def check_initialized(module: nn.Module) -> None:
    """Raise `SubclassNotKept` for a parameter or buffer of a lazy module that has not been called yet."""
    for slot in slots(module):
        if is_lazy(slot.tensor):
            raise SubclassNotKept.of(slot.path, slot.tensor, "a lazy module gets its shape in its first call")


def check_input(name: str, value: object) -> None:
    """Raise `SubclassNotKept` for an example input that is not a plain tensor."""
    if isinstance(value, torch.Tensor) and type(value) not in _PLAIN and not isinstance(value, FakeTensor):
        reason = "an exported program takes plain tensors; pass its parts and build it in forward"
        raise SubclassNotKept.of(name, value, reason)


def changed_inside(
    name: str, tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return the wrapper with changed inner tensors, and check that it says of itself what they say.

    Args:
        name: For the error.
        tensor: A wrapper.
        change: Gives another tensor of the same shape and dtype; of all of them on one device.
    Raises:
        SubclassNotKept: the class cannot be made again from its parts, or is then another.
    """
    try:
        made = rewrapped(tensor, change)
    except Exception as error:
        reason = f"`__tensor_unflatten__` raised {type_and_line(error)}"
        raise SubclassNotKept.of(name, tensor, reason) from error
    if (type(made), made.shape, made.dtype) != (type(tensor), tensor.shape, tensor.dtype):
        reason = f"its inner tensors make a {type(made).__name__} of {made.dtype} {tuple(made.shape)}"
        raise SubclassNotKept.of(name, tensor, reason)
    return made


def unregistered_wrapper(module: nn.Module) -> tuple[str, torch.Tensor] | None:
    """Return the first wrapper that a module holds without having it as a parameter or a buffer."""
    registered = {slot.path for slot in slots(module)}
    found = (held for held in held_tensors(module) if is_wrapper(held.tensor))
    return next(((held.path, held.tensor) for held in found if held.path not in registered), None)


_HOOKS = ("__torch_function__", "__torch_dispatch__")
_PLAIN: frozenset[type[Any]] = frozenset({torch.Tensor, nn.Parameter, Buffer, UninitializedBuffer})


def _own_hook(cls: type[torch.Tensor]) -> str | None:
    """Return the hook with which a class answers operators itself; a fake of that class does not call it."""
    own = (kind for kind in cls.__mro__ if kind.__module__.partition(".")[0] != "torch")
    return next((hook for kind in own for hook in _HOOKS if hook in vars(kind)), None)


def _is_distributed(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # Importing it takes a second.
    return module is not None and isinstance(tensor, module.DTensor)

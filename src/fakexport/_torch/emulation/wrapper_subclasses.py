"""Inspect and rebuild traceable wrapper subclasses.

Seen on torch 2.11 to 2.13.

Source: `torch/utils/_python_dispatch.py:is_traceable_wrapper_subclass`, which documents the
`__tensor_flatten__` and `__tensor_unflatten__` protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def is_wrapper(value: object) -> bool:
    """Return whether `value` is a traceable wrapper subclass: a tensor with `__tensor_flatten__`."""
    return isinstance(value, torch.Tensor) and bool(is_traceable_wrapper_subclass(value))


def inner_tensors(tensor: torch.Tensor) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    """Yield the plain tensors inside a tensor, each with its path of attributes.

    The order is the same as in `run_decompositions`. For a plain tensor, yield that tensor and an empty path.
    """
    if not is_wrapper(tensor):
        yield (), tensor
        return
    wrapper: Any = tensor
    for name in wrapper.__tensor_flatten__()[0]:
        value = getattr(wrapper, name)
        if isinstance(value, torch.Tensor):
            yield from (((name, *path), inner) for path, inner in inner_tensors(value))


def inner_name(name: str, index: int) -> str:
    """Return the name of a wrapper's inner tensor, which torch registers as a parametrization.

    Source: `unwrap_tensor_subclass_parameters`, which `run_decompositions` calls.

    Example:
        >>> inner_name("0.weight", 1)
        '0.parametrizations.weight.original1'
    """
    owner, dot, own = name.rpartition(".")
    return f"{owner}{dot}parametrizations.{own}.original{index}"


def flat_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors by name, with each wrapper replaced by its inner tensors."""
    flat: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if is_wrapper(tensor):
            flat |= {inner_name(name, i): inner for i, (_, inner) in enumerate(inner_tensors(tensor))}
        else:
            flat[name] = tensor
    return flat


def rewrapped(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return the wrapper with each plain inner tensor replaced by `change(inner)`.

    Parameters remain parameters, and attributes set by the model's code are kept. If no inner tensor
    changes, the wrapper itself is returned.

    Raises:
        Exception: Any error that the class raises.
    """
    if not is_wrapper(tensor):
        return change(tensor)
    wrapper: Any = tensor
    names, context = wrapper.__tensor_flatten__()
    before = {name: getattr(wrapper, name) for name in names}
    after = {n: rewrapped(v, change) if isinstance(v, torch.Tensor) else v for n, v in before.items()}
    if all(after[name] is before[name] for name in names):
        return tensor
    made: torch.Tensor = type(wrapper).__tensor_unflatten__(after, context, tensor.size(), tensor.stride())
    for name in vars(tensor).keys() - vars(made).keys():
        value = vars(tensor)[name]
        vars(made)[name] = rewrapped(value, change) if isinstance(value, torch.Tensor) else value
    if isinstance(tensor, nn.Parameter):
        vars(made)["_is_param"] = True
    if made.requires_grad != tensor.requires_grad and made.is_leaf:
        made.requires_grad_(tensor.requires_grad)
    return made


def held_bytes(tensor: torch.Tensor) -> int:
    """Return the size of a tensor's elements in bytes. For a wrapper, add up its inner tensors.

    The `nbytes` of a wrapper would be wrong: it is computed from the dtype that the wrapper presents.
    """
    return sum(inner.numel() * inner.itemsize for _, inner in inner_tensors(tensor))

"""Inputs whose numbers a model reads while it runs: they are fixed in a program of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fakexport._torch.fixed_shapes import check_shape


def as_numbers(
    module: nn.Module,
    name: str,
    tensor: torch.Tensor,
    numbers: list[Any],
    *,
    fits: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    inside: tuple[nn.Module, Callable[..., dict[str, Any]]] | None = None,
) -> list[Any]:
    """Return the numbers of an input, which the module takes in its place.

    The module holds the tensor in a buffer that is in no checkpoint, and passes it to its `forward` whenever
    it is called with these numbers. A trace may read a buffer whose value the code determines, and no input.

    Args:
        tensor: The input, in the mode and on the device of the module.
        numbers: Its value, or whatever else stands for it.
        fits: Shapes of other inputs, by name: the numbers are of no others.
        inside: A part of the module, and what returns its keyword arguments, given those that it is called
            with, while the module runs with these numbers.
    """
    buffer = buffer_of(name)
    is_new = buffer not in module._buffers
    module.register_buffer(buffer, tensor, persistent=False)

    running: list[bool] = []

    def passed(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if not isinstance(kwargs.get(name), list) or kwargs[name] != numbers:
            return args, kwargs
        for other, shape in fits.items():
            if isinstance(kwargs.get(other), torch.Tensor):
                check_shape(kwargs[other], shape, f"{name}={numbers} is of {other} of shape {list(shape)}")
        running.append(True)
        return args, {**kwargs, name: getattr(module, buffer)}

    if not is_new:
        return numbers
    module.register_forward_pre_hook(passed, with_kwargs=True)
    if inside is not None:
        part, changed = inside
        module.register_forward_hook(lambda *_: running.clear(), always_call=True)
        part.register_forward_pre_hook(
            lambda _, args, kwargs: (args, changed(*args, **kwargs)) if running else None, with_kwargs=True
        )
    return numbers


def buffer_of(name: str) -> str:
    """Return the name of the buffer that holds the tensor of such an input."""
    return f"fixed_{name}"


def tensors_of(module: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs with the tensors that the module takes in the place of numbers."""
    return {
        name: module._buffers.get(buffer_of(name), value) if isinstance(value, list) else value
        for name, value in inputs.items()
    }


def numbers_among(
    module: nn.Module, inputs: Mapping[str, Any], arguments: Mapping[str, Any]
) -> dict[str, str]:
    """Return which arguments of a part are numbers of the module, and the names that these have there."""
    tensors = tensors_of(module, inputs)
    fixed = {id(tensors[name]): name for name, value in inputs.items() if isinstance(value, list)}
    return {name: fixed[id(value)] for name, value in arguments.items() if id(value) in fixed}


def fixed_note(names: Iterable[str]) -> str:
    """Return a clause that tells of such inputs."""
    return f"{', '.join(names)}: numbers that are fixed in the program"

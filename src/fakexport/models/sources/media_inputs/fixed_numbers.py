"""Inputs whose values a model reads in Python. They are therefore constants in the model's program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fakexport._torch.tracing.input_shapes import check_shape


def as_numbers(
    module: nn.Module,
    name: str,
    tensor: torch.Tensor,
    numbers: list[Any],
    *,
    fits: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    inside: tuple[nn.Module, Callable[..., dict[str, Any]]] | None = None,
) -> list[Any]:
    """Make a module accept Python numbers instead of an input tensor, and return the numbers.

    The tensor is stored in a non-persistent buffer of the module. When the module is called with these
    numbers, its `forward` receives the buffer. A trace can read the value of such a buffer, but not the value
    of an input.

    Args:
        tensor: The input, in the mode and on the device of the module.
        numbers: The values of the tensor, or other numbers that represent them.
        fits: Shapes of other inputs, by name. The numbers are valid only for these shapes.
        inside: A submodule, and a function that converts the submodule's arguments while the module runs with
            these numbers.
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
                check_shape(kwargs[other], shape, f"{name}={numbers} requires {other} of shape {list(shape)}")
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
    """Return the name of the buffer that stores the tensor of a fixed input."""
    return f"fixed_{name}"


def tensors_of(module: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs with the stored tensors instead of numbers."""
    return {
        name: module._buffers.get(buffer_of(name), value) if isinstance(value, list) else value
        for name, value in inputs.items()
    }


def numbers_among(
    module: nn.Module, inputs: Mapping[str, Any], arguments: Mapping[str, Any]
) -> dict[str, str]:
    """Map each argument of a part that the whole module receives as numbers to the module's input."""
    tensors = tensors_of(module, inputs)
    fixed = {id(tensors[name]): name for name, value in inputs.items() if isinstance(value, list)}
    return {name: fixed[id(value)] for name, value in arguments.items() if id(value) in fixed}


def fixed_notes(inputs: Mapping[str, Any]) -> list[str]:
    """Return a clause for the report about inputs that are fixed numbers, if there are any."""
    names = [name for name, value in inputs.items() if isinstance(value, list)]
    return [f"{', '.join(names)}: Python numbers that are constant in the program"] if names else []

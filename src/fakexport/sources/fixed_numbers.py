"""Inputs whose numbers a model reads while it runs: they are fixed in a program of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

__all__ = ["as_numbers", "fixed_note"]


def as_numbers(module: nn.Module, name: str, tensor: torch.Tensor, numbers: list[Any]) -> list[Any]:
    """Return the numbers of an input, which the module takes in its place.

    The module holds the tensor in a buffer that is in no checkpoint, and passes it to its `forward` whenever
    it is called with these numbers. A trace may read a buffer whose value the code determines, and no input.

    Args:
        module: Gets the buffer, and a hook before its `forward`.
        name: Name of the input.
        tensor: The input, in the mode and on the device of the module.
        numbers: Its value.
    """
    buffer = f"fixed_{name}"
    is_new = buffer not in module._buffers
    module.register_buffer(buffer, tensor, persistent=False)

    def passed(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        is_numbers = kwargs.get(name) == numbers if isinstance(kwargs.get(name), list) else False
        return args, {**kwargs, name: getattr(module, buffer)} if is_numbers else kwargs

    if is_new:
        module.register_forward_pre_hook(passed, with_kwargs=True)
    return numbers


def fixed_note(names: Iterable[str]) -> str:
    """Return a clause that tells of such inputs."""
    return f"{', '.join(names)}: numbers that are fixed in the program"

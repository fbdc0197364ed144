"""Create synthetic inputs on which a Python custom operator can run."""

from __future__ import annotations

import math
from typing import Any

import torch

from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport._torch.symbolic_numbers import hint_of

LARGEST_INPUT_BYTES = 64 * 2**20


class NotComparable(Exception):
    """Why an operator cannot be run, as a clause."""


def made_up_inputs(described: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return real arguments on the CPU, like fake ones.

    Raises:
        NotComparable: a size depends on data, or there would be more than `LARGEST_INPUT_BYTES`.
    """
    leaves = tree_leaves(described)
    sizes = [
        number
        for leaf in leaves
        if isinstance(leaf, torch.Tensor)
        for number in (*leaf.shape, *leaf.stride())
    ]
    numbers = [leaf for leaf in leaves if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool))]
    if any(_number(number) is None for number in (*sizes, *numbers)):
        raise NotComparable("the size of an input depends on data")
    total = sum(
        math.prod(_number(n) for n in leaf.shape) * leaf.itemsize
        for leaf in leaves
        if isinstance(leaf, torch.Tensor)
    )
    if total > LARGEST_INPUT_BYTES:
        raise NotComparable(f"its inputs have more than {LARGEST_INPUT_BYTES // 2**20} MiB")
    generator = torch.Generator().manual_seed(0)
    real: tuple[Any, Any] = tree_map(
        lambda leaf: _real(leaf, generator) if isinstance(leaf, torch.Tensor) else _on_cpu(_number(leaf)),
        described,
    )
    return real


def _number(value: Any) -> Any:
    """Return a symbolic number's value in the example, None where only data tell it; all else as it is."""
    return hint_of(value) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value


def _on_cpu(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _real(fake: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return drawn numbers, so that a change is seen; of integers zeros, which are indices of every table."""
    sizes, strides = ([_number(n) for n in numbers] for numbers in (fake.shape, fake.stride()))
    if not fake.is_floating_point():
        return torch.zeros(sizes, dtype=fake.dtype)
    drawn = torch.randn(sizes, generator=generator).to(fake.dtype)
    return drawn if 0 in strides else torch.empty_strided(sizes, strides, dtype=fake.dtype).copy_(drawn)

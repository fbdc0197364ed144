"""Calls that set the state of a random generator, or return its seed, without being operators.

Whatever public name is called, such as `torch.manual_seed` or `torch.random.fork_rng`, a method of
`torch.Generator` is. Seen on torch 2.11 to 2.13.

Source: `torch/random.py` and `torch/cuda/random.py`; `torch/csrc/Generator.cpp:THPGenerator_methods`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from .patching import Patches, in_force, outside_of_patches

_READING = frozenset({"get_state", "clone_state", "graphsafe_get_state", "get_offset"})
_METHODS = tuple(
    name
    for name, value in vars(torch.Generator).items()
    if callable(value) and not name.startswith("__") and name not in _READING
)


def default_generators_watched(seen: Callable[[str, FrameType | None], None]) -> Patches:
    """Return a context in which `seen` gets the method and its caller's frame for each such call.

    Any other generator is an argument of each operator that draws from it.
    """
    return Patches({(torch.Generator, name): _told(name, seen) for name in _METHODS})


def _told(name: str, seen: Callable[[str, FrameType | None], None]) -> Callable[..., Any]:
    stock = in_force(torch.Generator, name)

    def call(self: torch.Generator, *args: Any, **kwargs: Any) -> Any:
        if self is torch.default_generator or self.device.type != "cpu":
            seen(name, outside_of_patches(sys._getframe(1)))
        return stock(self, *args, **kwargs)

    return call

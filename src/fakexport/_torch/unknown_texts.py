"""Texts of numbers and tensors whose values a trace does not know. Seen on torch 2.13 and 2.15.

`str` of a symbolic number is the name of its symbol, `s77` or `u0`, and that of a fake tensor has no values.

Source: `torch/__init__.py:SymInt.__repr__`, and of `SymFloat` and `SymBool`;
`torch/_tensor.py:Tensor.__repr__` and `Tensor.__format__`, which calls the former.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .patching import Patches, in_force, outside_of_patches

_PLACES = (
    *((kind, "__repr__") for kind in (torch.SymInt, torch.SymFloat, torch.SymBool, FakeTensor)),
    (FakeTensor, "__format__"),
)


def texts_watched(seen: Callable[[str, FrameType | None], None]) -> Patches:
    """Return a context in which `seen` gets each text that Python makes of such a value, and who asks."""
    return Patches({(kind, name): _told(in_force(kind, name), seen) for kind, name in _PLACES})


def _told(stock: Callable[..., str], seen: Callable[[str, FrameType | None], None]) -> Callable[..., str]:
    def text(*args: Any, **kwargs: Any) -> str:
        made = stock(*args, **kwargs)
        seen(made, outside_of_patches(sys._getframe(1)))
        return made

    return text

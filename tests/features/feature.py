"""What a feature is: a name and a function that makes a module with its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["FEATURES", "Calling", "Made", "Weighted", "feature", "ramp", "register", "register_weighted"]

Made = tuple[nn.Module, tuple[Any, ...]]

FEATURES: dict[str, Callable[[], Made]] = {}


def feature(make: Callable[[], Made]) -> Callable[[], Made]:
    """Registers a factory under its name: it returns a module and its inputs, and draws only from torch."""
    name = make.__name__
    assert name not in FEATURES, name
    FEATURES[name] = make
    return make


def ramp(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Distinct numbers between -1 and 1, the same in every process."""
    count = torch.Size(sizes).numel()
    return torch.linspace(-1, 1, count).view(sizes).to(dtype)


class Calling(nn.Module):
    """A module whose `forward` is a function of its inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Weighted(nn.Module):
    """A linear layer, and a function of what it gives: with weights, so with gradients."""

    def __init__(self, function: Callable[..., Any], width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear(x))


def register(**factories: Callable[[], Made]) -> None:
    """Registers factories under their names."""
    assert FEATURES.keys().isdisjoint(factories)
    FEATURES.update(factories)


def register_weighted(**functions: Callable[..., Any]) -> None:
    """Registers a linear layer with each function after it."""
    register(**{name: _weighted(function) for name, function in functions.items()})


def _weighted(function: Callable[..., Any]) -> Callable[[], Made]:
    return lambda: (Weighted(function), (ramp(2, 4),))

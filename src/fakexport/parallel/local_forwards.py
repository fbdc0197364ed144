"""The forwards of modules on one rank, with collectives on plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .place import Place


@dataclass(frozen=True, eq=False)
class Gathered:
    """Returns the last dimension in full, of which the module computes a part.

    Args:
        forward: That of the module.
        place: The rank.
        size: The full size.
    """

    forward: Callable[..., torch.Tensor]
    place: Place
    size: int

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.place.gather(self.forward(*args, **kwargs), self.size)


@dataclass(frozen=True, eq=False)
class Summed:
    """Returns the sum over all ranks of what the module returns."""

    forward: Callable[..., Any]
    place: Place

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.forward(*args, **kwargs)
        return None if result is None else self.place.sum(result)


@dataclass(frozen=True, eq=False)
class SummedRows:
    """A layer that multiplies a part of the last dimension of its input: sums, and adds the bias once.

    Args:
        module: The layer.
        forward: That of the layer.
        place: The rank.
        is_input_whole: Whether the input has the last dimension in full.
    """

    module: nn.Module
    forward: Callable[..., torch.Tensor]
    place: Place
    is_input_whole: bool

    def __call__(self, value: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        part = self.place.slice(value) if self.is_input_whole else value
        bias = self.module._parameters.get("bias")
        with _without_bias(self.module, bias):
            total = self.place.sum(self.forward(part, *args, **kwargs))
        return total if bias is None else total + bias


@contextmanager
def _without_bias(module: nn.Module, bias: nn.Parameter | None) -> Iterator[None]:
    if bias is None:
        yield
        return
    module._parameters["bias"] = None
    try:
        yield
    finally:
        module._parameters["bias"] = bias


@dataclass(frozen=True, eq=False)
class VocabularyRange:
    """An embedding of a range of the vocabulary: the vectors of other ranges come from other ranks.

    Args:
        forward: That of the embedding; what it does to a vector may not depend on other vectors.
        place: The rank.
        start, end: The range.
    """

    forward: Callable[..., torch.Tensor]
    place: Place
    start: int
    end: int

    def __call__(self, ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        is_elsewhere = (ids < self.start) | (ids >= self.end)
        own = self.forward((ids - self.start).masked_fill(is_elsewhere, 0), *args, **kwargs)
        return self.place.sum(own.masked_fill(is_elsewhere.unsqueeze(-1), 0))


@dataclass(frozen=True, eq=False)
class Divided:
    """Divides the input by the ranks, since their results are summed later."""

    forward: Callable[..., Any]
    place: Place

    def __call__(self, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.forward(value / self.place.ranks, *args, **kwargs)


@dataclass(frozen=True, eq=False)
class OwnExperts:
    """Runs the rank's experts on all tokens; routes to others go to a local expert that is not there.

    Args:
        forward: That of the experts, which skip that one.
        place: The rank.
        experts: How many the rank has.
    """

    forward: Callable[..., torch.Tensor]
    place: Place
    experts: int

    def __call__(self, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        is_elsewhere = (index // self.experts) != self.place.rank
        local = torch.where(is_elsewhere, self.experts, index % self.experts)
        result = self.forward(hidden, local, weights.masked_fill(is_elsewhere, 0.0))
        return self.place.sum(result).to(hidden.dtype)

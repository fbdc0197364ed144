"""The inputs in other sizes, wherever sizes may vary and the eager model accepts others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from fakexport.capture import DynamicDims

_Place = tuple[str, int]


def in_other_sizes(
    inputs: Mapping[str, Any], dynamic: DynamicDims, works: Callable[[Mapping[str, Any]], bool]
) -> dict[str, Any] | None:
    """Change as many of the sizes as the model lets vary, one after the other.

    Dimensions of one size change together where the model takes that: the length of `attention_mask` is that
    of `input_ids`. Else those that are declared change alone, and with `auto` each for itself.

    Returns:
        Inputs of other sizes; None if the model accepts no others.
    """
    found = dict(inputs)
    for places in _together(inputs, dynamic):
        for subset in _subsets(places, dynamic):
            resized = next((made for made in _candidates(found, subset, dynamic) if works(made)), None)
            if resized is not None:
                found = resized
                if subset == places:
                    break  # Else the other subsets are of other dimensions.
    shapes = [value.shape for value in inputs.values() if isinstance(value, torch.Tensor)]
    others = [value.shape for value in found.values() if isinstance(value, torch.Tensor)]
    return found if shapes != others else None


def _together(inputs: Mapping[str, Any], dynamic: DynamicDims) -> list[tuple[_Place, ...]]:
    """Return the dimensions that may vary, those of one size in one group."""
    named = {(dim.input_name, dim.dim) for dim in dynamic.dims}
    sizes = {int(inputs[name].shape[dim]) for name, dim in named}
    groups: dict[int, list[_Place]] = {}
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                if dynamic.is_auto or (name, dim) in named or (size in sizes and size > 1):
                    groups.setdefault(int(size), []).append((name, dim))
    return [tuple(places) for _, places in sorted(groups.items())]


def _subsets(places: tuple[_Place, ...], dynamic: DynamicDims) -> list[tuple[_Place, ...]]:
    named = {(dim.input_name, dim.dim) for dim in dynamic.dims}
    subsets = [places, tuple(place for place in places if place in named)]
    if dynamic.is_auto:
        subsets += [(place,) for place in places]
    return [subset for subset in dict.fromkeys(subsets) if subset]


def _candidates(
    inputs: Mapping[str, Any], places: tuple[_Place, ...], dynamic: DynamicDims
) -> Iterator[dict[str, Any]]:
    size = int(inputs[places[0][0]].shape[places[0][1]])
    ranges = [dim for dim in dynamic.dims if (dim.input_name, dim.dim) in places]
    lowest = max((dim.min for dim in ranges if dim.min is not None), default=2)
    highest = min((dim.max for dim in ranges if dim.max is not None), default=None)
    for other in dict.fromkeys((size + 1, size - 1, size + 3, size - 3, 2 * size, size // 2)):
        if other >= lowest and (highest is None or other <= highest) and other != size:
            yield {name: _resized(name, value, places, other) for name, value in inputs.items()}


def _resized(name: str, value: Any, places: tuple[_Place, ...], size: int) -> Any:
    """Return the tensor cut off, or extended by repeating its beginning, so that values stay valid."""
    for place, dim in places:
        if place == name:
            old = value.shape[dim]
            value = value.index_select(dim, torch.arange(size) % old)
    return value

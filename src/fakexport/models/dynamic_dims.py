"""Read the dynamic dimensions that the user writes. This module does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from fakexport.error import InvalidValue

AUTO = "auto"
_FORM = re.compile(
    r"(?P<name>[A-Za-z_]\w*)\.(?P<dim>\d{1,9})(?:=(?!auto\b)(?P<symbol>[A-Za-z_]\w*))?"
    r"(?:=(?P<min>\d{1,18})?\.\.(?P<max>\d{1,18})?)?"
)


@dataclass(frozen=True)
class DynamicDim:
    """A dynamic dimension.

    Args:
        input_name: Name of the argument of `forward`.
        dim: Index of the dimension, starting at 0.
        min: Smallest size, or None for torch's default bound.
        max: Largest size, or None for no bound.
        symbol: Name of the size. Dimensions with the same name always have the same size.
    """

    input_name: str
    dim: int
    min: int | None = None
    max: int | None = None
    symbol: str | None = None


@dataclass(frozen=True)
class DynamicDims:
    """The dynamic dimensions of a call.

    Args:
        dims: The dimensions that the user listed. The capture fails if the model specializes one of them.
        is_auto: Whether all other dimensions of tensor inputs are also dynamic if the model allows it.
    """

    dims: tuple[DynamicDim, ...] = ()
    is_auto: bool = False

    def equal(self) -> Iterator[tuple[DynamicDim, DynamicDim]]:
        """Yield each dimension whose name occurred before, after the first dimension with this name."""
        first: dict[str, DynamicDim] = {}
        for dim in self.dims:
            if dim.symbol is not None and (known := first.setdefault(dim.symbol, dim)) is not dim:
                yield known, dim


def parse_dynamic(texts: str | Iterable[str]) -> DynamicDims:
    """Parse the values of `--dynamic`.

    Args:
        texts: One or several of `auto`, `input_ids.1`, `input_ids.1=2..4096`, `input_ids.0=1..`, and
            `input_ids.1=seq=2..4096`, which names the size. The range of a name may be given only once.
    Raises:
        ValueError: a text does not have this form, a range is empty, a dimension is repeated, or a name has
            different ranges.

    Example:
        >>> parse_dynamic(["ids.0=1..64"]).dims
        (DynamicDim(input_name='ids', dim=0, min=1, max=64, symbol=None),)
    """
    dims: dict[tuple[str, int], DynamicDim] = {}
    is_auto = False
    for text in [texts] if isinstance(texts, str) else texts:
        if text == AUTO:
            is_auto = True
            continue
        dim = _parse_one(text)
        if (dim.input_name, dim.dim) in dims:
            raise InvalidValue(f"dimension {dim.input_name}.{dim.dim} is declared dynamic twice")
        dims[dim.input_name, dim.dim] = dim
    return DynamicDims(tuple(_with_range_of_symbol(dim, dims.values()) for dim in dims.values()), is_auto)


def _with_range_of_symbol(dim: DynamicDim, dims: Iterable[DynamicDim]) -> DynamicDim:
    if dim.symbol is None:
        return dim
    ranges = {(other.min, other.max) for other in dims if other.symbol == dim.symbol} - {(None, None)}
    if len(ranges) > 1:
        raise InvalidValue(f"the dynamic dimensions named {dim.symbol} have different ranges")
    low, high = next(iter(ranges), (None, None))
    return replace(dim, min=low, max=high)


def _parse_one(text: str) -> DynamicDim:
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise InvalidValue(
            f"invalid dynamic dimension {text!r}: write NAME.DIM=MIN..MAX, NAME.DIM, "
            "NAME.DIM=SIZE=MIN..MAX or auto"
        )
    low, high = (None if match[key] is None else int(match[key]) for key in ("min", "max"))
    if low is not None and high is not None and low >= high:
        raise InvalidValue(f"dynamic dimension {text!r} has an empty range: MIN must be less than MAX")
    return DynamicDim(match["name"], int(match["dim"]), low, high, match["symbol"])

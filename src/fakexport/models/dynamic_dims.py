"""Read the dynamic dimensions that the user writes. This module does not import torch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fakexport.error import InvalidValue

AUTO = "auto"
_FORM = re.compile(
    r"(?P<name>[A-Za-z_]\w*)\.(?P<dim>\d{1,9})(?:=(?!auto\b)(?P<symbol>[A-Za-z_]\w*))?"
    r"(?:=(?P<sizes>[\d.|]+))?"
)
_RANGE = re.compile(r"(?P<min>\d{1,18})?(?P<dots>\.\.)?(?P<max>\d{1,18})?")
_LEAST_DYNAMIC = 2  # torch assumes that a dynamic size is neither 0 nor 1.
_MOST_PROGRAMS = 64

Bounds = tuple[int | None, int | None]
"""Smallest and largest size; None for torch's default bound, and for no bound."""


@dataclass(frozen=True)
class DynamicDim:
    """A dynamic dimension.

    Args:
        input_name: Name of the argument of `forward`.
        dim: Index of the dimension, starting at 0.
        min: Smallest size, or None for torch's default bound.
        max: Largest size, or None for no bound.
        symbol: Name of the size. Dimensions with the same name always have the same size.
        ranges: The ranges, in ascending order, if several programs divide the sizes among them; `min` and
            `max` are then the bounds of all of them. Empty otherwise.
    """

    input_name: str
    dim: int
    min: int | None = None
    max: int | None = None
    symbol: str | None = None
    ranges: tuple[Bounds, ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether only one size is allowed."""
        return self.min is not None and self.min == self.max

    @property
    def place(self) -> str:
        """The dimension as the user writes it, such as `input_ids.1`."""
        return f"{self.input_name}.{self.dim}"

    def __str__(self) -> str:
        symbol = "" if self.symbol is None else f"={self.symbol}"
        return f"{self.place}{symbol}{_sizes_text(self.ranges or ((self.min, self.max),))}"


@dataclass(frozen=True)
class DynamicDims:
    """The dynamic dimensions of a call.

    Args:
        dims: The dimensions that the user listed. The capture fails if the model specializes one of them.
        is_auto: Whether all other dimensions of tensor inputs are also dynamic if the model allows it.
    """

    dims: tuple[DynamicDim, ...] = ()
    is_auto: bool = False

    @property
    def is_split(self) -> bool:
        """Whether several programs divide the sizes among them."""
        return any(dim.ranges for dim in self.dims)

    def varying(self) -> DynamicDims:
        """Return only the dimensions that can have several sizes."""
        return replace(self, dims=tuple(dim for dim in self.dims if not dim.is_fixed))

    def texts(self) -> list[str]:
        """Return the dimensions as values of `--dynamic`."""
        return [*([AUTO] if self.is_auto else []), *map(str, self.dims)]

    def parts(self, *, is_merged: bool) -> list[DynamicDims]:
        """Return the dimensions of each program that covers a part of the declared sizes.

        Each part has one range for each dimension. Together, the parts have exactly the declared sizes, and
        no two parts have a size in common. Sizes 0 and 1 are always parts of their own, because
        `torch.export` assumes that dynamic sizes are larger.

        Args:
            is_merged: Whether to join the ranges of a dimension that have more than one size into one.
        """
        names = {dim.symbol or dim.place: _parts(dim.ranges, is_merged) for dim in self.dims if dim.ranges}
        found = []
        for chosen in itertools.product(*names.values()):
            bounds = dict(zip(names, chosen, strict=True))
            dims = (_with_bounds(dim, bounds.get(dim.symbol or dim.place)) for dim in self.dims)
            found.append(replace(self, dims=tuple(dims)))
        if len(found) > _MOST_PROGRAMS:
            raise InvalidValue(
                f"--dynamic divides the sizes among {len(found)} programs: at most {_MOST_PROGRAMS} are "
                "possible"
            )
        return found

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
            Several ranges, such as `input_ids.0=1|2..64`, divide the sizes among several programs.
    Raises:
        ValueError: a text does not have this form, a range is empty, a dimension is repeated, a name has
            different ranges, or several ranges overlap or leave out sizes between them.

    Example:
        >>> parse_dynamic(["ids.0=1..64"]).dims
        (DynamicDim(input_name='ids', dim=0, min=1, max=64, symbol=None, ranges=()),)
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
    named = [other for other in dims if other.symbol == dim.symbol]
    ranges = {(other.min, other.max, other.ranges) for other in named} - {(None, None, ())}
    if len(ranges) > 1:
        raise InvalidValue(f"the dynamic dimensions named {dim.symbol} have different ranges")
    low, high, several = next(iter(ranges), (None, None, ()))
    return replace(dim, min=low, max=high, ranges=several)


def _parse_one(text: str) -> DynamicDim:
    match = _FORM.fullmatch(text.strip())
    sizes = [] if match is None or match["sizes"] is None else match["sizes"].split("|")
    found = [_RANGE.fullmatch(part) for part in sizes]
    if match is None or not all(part and part[0] for part in found):
        raise InvalidValue(
            f"invalid dynamic dimension {text!r}: write NAME.DIM=MIN..MAX, NAME.DIM, "
            "NAME.DIM=SIZE=MIN..MAX, NAME.DIM=SIZE|MIN..MAX or auto"
        )
    ranges = [_bounds(part, text) for part in found if part is not None]
    if len(ranges) > 1:
        _check_ranges(f"{match['name']}.{match['dim']}", ranges)
    low, high = (ranges[0][0], ranges[-1][1]) if ranges else (None, None)
    several = tuple(ranges) if len(ranges) > 1 else ()
    return DynamicDim(match["name"], int(match["dim"]), low, high, match["symbol"], several)


def _bounds(part: re.Match[str], text: str) -> Bounds:
    low, high = (None if part[key] is None else int(part[key]) for key in ("min", "max"))
    if part["dots"] is None:
        return low, low
    if low is not None and high is not None and low >= high:
        raise InvalidValue(f"dynamic dimension {text!r} has an empty range: MIN must be less than MAX")
    return low, high


def _check_ranges(place: str, ranges: Sequence[Bounds]) -> None:
    """Reject ranges that are not ascending, or that leave out sizes other than those between single sizes."""
    for (low, high), (start, end) in itertools.pairwise(ranges):
        both = f"{_bounds_text((low, high))[1:]} and {_bounds_text((start, end))[1:]}"
        if low is None or start is None:
            raise InvalidValue(f"--dynamic {place}: each of several ranges needs its smallest size")
        if high is None or start <= high:
            raise InvalidValue(f"--dynamic {place}: {both} overlap or are not in ascending order")
        if start > high + 1 and not (low == high and start == end):
            left = f"size {high + 1} is" if start == high + 2 else f"sizes {high + 1} to {start - 1} are"
            raise InvalidValue(f"--dynamic {place}: {left} in neither of the ranges {both}")


def _parts(ranges: Sequence[Bounds], is_merged: bool) -> list[Bounds]:
    """Return ranges with the same sizes, in which 0 and 1 are alone."""
    found: list[Bounds] = []
    for low, high in ranges:
        assert low is not None
        alone = range(low, _LEAST_DYNAMIC if high is None else min(high + 1, _LEAST_DYNAMIC))
        found += [(size, size) for size in alone]
        low = max(low, _LEAST_DYNAMIC)
        if high is not None and low > high:
            continue
        first, last = found[-1] if found else (0, 0)
        if is_merged and low != high and first != last:
            found[-1] = first, high
        else:
            found.append((low, high))
    return found


def _with_bounds(dim: DynamicDim, bounds: Bounds | None) -> DynamicDim:
    return dim if bounds is None else replace(dim, min=bounds[0], max=bounds[1], ranges=())


def _sizes_text(ranges: Iterable[Bounds]) -> str:
    return "|".join(map(_bounds_text, ranges)).replace("|=", "|")


def _bounds_text(bounds: Bounds) -> str:
    low, high = bounds
    if low is None and high is None:
        return ""
    if low == high:
        return f"={low}"
    return f"={'' if low is None else low}..{'' if high is None else high}"

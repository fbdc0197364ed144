"""The sizes to plan for, and the syntax of `--size` and `--bound`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fakexport.error import InvalidValue

_DIM = re.compile(r"(?P<name>\w+)\.(?P<dim>\d+)=(?P<size>\d+)")
_BOUND = re.compile(r"(?P<symbol>u\d+)=(?P<size>\d+)")


@dataclass(frozen=True)
class SizeRequest:
    """The sizes to plan for.

    Args:
        batch: Number of sequences or images: dimension 0 of the inputs.
        context: Number of tokens that the model attends to, including those of a cache.
        dims: Input name and dimension -> size, for all other dimensions.
        bounds: Symbol of a size that is known only at run time (`u0`) -> its maximum.
    """

    batch: int | None = None
    context: int | None = None
    dims: Mapping[tuple[str, int], int] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)


def parse_dims(texts: Sequence[str]) -> dict[tuple[str, int], int]:
    """Parse the values of `--size`.

    Example:
        >>> parse_dims(["pixel_values.2=448"])
        {('pixel_values', 2): 448}
    """
    form = "NAME.DIM=N, such as pixel_values.2=448"
    return {(m["name"], int(m["dim"])): int(m["size"]) for m in _matches(_DIM, texts, "size", form)}


def parse_bounds(texts: Sequence[str]) -> dict[str, int]:
    """Parse the values of `--bound`, such as `u0=4096`."""
    form = "SYMBOL=N, such as u0=4096"
    return {m["symbol"]: int(m["size"]) for m in _matches(_BOUND, texts, "bound", form)}


def _matches(pattern: re.Pattern[str], texts: Sequence[str], what: str, form: str) -> Iterator[re.Match[str]]:
    for text in texts:
        match = pattern.fullmatch(text.strip())
        if match is None:
            raise InvalidValue(f"cannot parse --{what} {text!r}: write {form}")
        yield match

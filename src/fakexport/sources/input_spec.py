"""The input that a user writes: `pixel_values=float32[1,3,224,224]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from fakexport.sources.source_error import SourceError, did_you_mean

_FORM = re.compile(r"\s*(\w+)\s*=\s*(\w+)\s*\[([^\[\]]*)\]\s*")
_EXAMPLE = "pixel_values=float32[1,3,224,224]"


@dataclass(frozen=True)
class InputSpec:
    """A tensor that a module is called with.

    Args:
        name: Parameter of the module's `forward`.
        dtype: Dtype of the tensor.
        shape: Sizes, each at least 1; empty for a scalar tensor.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> InputSpec:
        """Return the spec of a tensor of this name."""
        return cls(name, tensor.dtype, tuple(tensor.shape))

    def __str__(self) -> str:
        sizes = ",".join(str(size) for size in self.shape)
        return f"{self.name}={str(self.dtype).removeprefix('torch.')}[{sizes}]"


def parse_input_spec(text: str) -> InputSpec:
    """Read `NAME=DTYPE[DIMS]`.

    Args:
        text: `DTYPE` is a name of torch's, `DIMS` are sizes between commas; `[]` is a scalar tensor.
    Raises:
        SourceError: Another form, an unknown dtype (with the nearest names), or a size below 1.

    Example:
        >>> parse_input_spec("input_ids=int64[2,16]").shape
        (2, 16)
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise SourceError(f"input {text!r} does not have the form NAME=DTYPE[DIMS], as in {_EXAMPLE}")
    name, dtype, dims = match.groups()
    sizes = [size.strip() for size in dims.split(",")] if dims.strip() else []
    return InputSpec(name, _dtype(dtype, text), tuple(_size(size, text) for size in sizes))


def _dtype(name: str, text: str) -> torch.dtype:
    known = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    if name not in known:
        raise SourceError(f"input {text!r}: torch has no dtype {name!r}{did_you_mean(name, known)}")
    return known[name]


def _size(size: str, text: str) -> int:
    # More digits than any tensor has: int() refuses thousands of them with a message of its own.
    if not size.isascii() or not size.isdigit() or int(size[:20]) == 0 or len(size) > 18:
        raise SourceError(
            f"input {text!r}: {size!r} is not a size; sizes are integers from 1, as in {_EXAMPLE}"
        )
    return int(size)

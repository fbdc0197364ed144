"""Parse the inputs that a user describes, `--input pixel_values=float32[1,3,224,224]`, and create them."""

from __future__ import annotations

import inspect
import re
import typing
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import nn

from fakexport.models.sources.dtype_text import dtype_text
from fakexport.models.sources.source import ExampleInputs
from fakexport.models.sources.source_error import SourceError, did_you_mean

_FORM = re.compile(r"\s*(\w+)\s*=\s*(\w+)\s*\[([^\[\]]*)\]\s*")
_EXAMPLE = "pixel_values=float32[1,3,224,224]"


@dataclass(frozen=True)
class InputSpec:
    """An input tensor of a module.

    Args:
        name: Parameter of the module's `forward`.
        dtype: Dtype of the tensor.
        shape: Sizes, each at least 1. Empty for a scalar tensor.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> InputSpec:
        """Return the spec of a tensor."""
        return cls(name, tensor.dtype, tuple(tensor.shape))

    def __str__(self) -> str:
        sizes = ",".join(str(size) for size in self.shape)
        return f"{self.name}={dtype_text(self.dtype)}[{sizes}]"


def parse_input_spec(text: str) -> InputSpec:
    """Parse `NAME=DTYPE[DIMS]`.

    Args:
        text: The text to parse. `DTYPE` is a torch dtype, and `DIMS` are comma-separated sizes; `[]` means a
            scalar tensor.
    Raises:
        SourceError: the text has a different form, an unknown dtype (the message suggests similar names), or
            a size below 1.

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
    # Limit the number of digits, because int() rejects thousands of digits with its own message.
    if not size.isascii() or not size.isdigit() or int(size[:20]) == 0 or len(size) > 18:
        raise SourceError(
            f"input {text!r}: {size!r} is not a size; sizes are integers of at least 1, as in {_EXAMPLE}"
        )
    return int(size)


def inputs_from_specs(
    specs: Sequence[InputSpec], module: nn.Module, device: str, *, expected: ExampleInputs | None = None
) -> ExampleInputs:
    """Create exactly the inputs that the specs describe, in the order of the parameters of `forward`.

    Call this in the fake mode of the module. All values are 0, except in masks (inputs whose names end in
    `mask`) and bool tensors, whose values are 1.

    Args:
        expected: Inputs that are known to work, from the factory or the source. A spec with the name of such
            an input must have the same number of dimensions.
    Raises:
        SourceError: `forward` has no input with that name, or requires an input without a spec; a name is
            repeated; or the number of dimensions differs from the expected number.
    """
    signature = inspect.signature(module.forward)
    model = type(module).__name__
    _check_names([spec.name for spec in specs], signature, model)
    if expected is not None:
        _check_ranks(specs, signature, expected, model)
    tensors = {spec.name: _tensor(spec, device) for spec in specs}
    positional = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind is parameter.POSITIONAL_ONLY
    ]
    args = tuple(tensors.pop(name) for name in positional if name in tensors)
    in_order = [name for name in signature.parameters if name in tensors]
    others = [name for name in tensors if name not in in_order]
    return ExampleInputs(args, {name: tensors[name] for name in [*in_order, *others]})


def _tensor(spec: InputSpec, device: str) -> torch.Tensor:
    is_on = spec.dtype is torch.bool or spec.name.endswith("mask")
    return torch.empty(spec.shape, dtype=spec.dtype, device=device).fill_(int(is_on))


def _check_names(names: Sequence[str], signature: inspect.Signature, model: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise SourceError(f"input {repeated[0]!r} is given twice")
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {
        name: parameter for name, parameter in signature.parameters.items() if parameter.kind not in starred
    }
    for name in names:
        if name not in named and not _takes_keyword(name, signature, named.keys() - set(names)):
            raise SourceError(f"the forward of {model} has no input {name!r}{did_you_mean(name, named)}")
    missing = [n for n, parameter in named.items() if parameter.default is parameter.empty and n not in names]
    if missing:
        raise SourceError(
            f"the forward of {model} also requires {', '.join(missing)}: add --input {missing[0]}=DTYPE[DIMS]"
        )


def _takes_keyword(name: str, signature: inspect.Signature, unnamed: Collection[str]) -> bool:
    """Return whether `**kwargs` accepts the name: one of those that its type declares, if it declares any.

    Otherwise, it accepts any name that does not resemble an unused parameter.
    """
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            keys = [
                key
                for part in typing.get_args(parameter.annotation)
                for key in getattr(part, "__annotations__", ())
            ]
            return name in keys if keys else not get_close_matches(name, unnamed, cutoff=0.8)
    return False


def _check_ranks(
    specs: Sequence[InputSpec], signature: inspect.Signature, expected: ExampleInputs, model: str
) -> None:
    known = signature.bind_partial(*expected.args, **expected.kwargs).arguments
    for spec in specs:
        tensor = known.get(spec.name)
        if isinstance(tensor, torch.Tensor) and tensor.dim() != len(spec.shape):
            raise SourceError(
                f"input {spec.name!r} has {len(spec.shape)} dimensions, but {model} expects "
                f"{tensor.dim()}, such as {list(tensor.shape)}"
            )

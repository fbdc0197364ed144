"""Example inputs that a user names: `--input NAME=DTYPE[DIMS]`."""

from __future__ import annotations

import inspect
import typing
from collections import Counter
from collections.abc import Collection, Sequence
from difflib import get_close_matches

import torch
from torch import nn

from fakexport.sources.input_spec import InputSpec
from fakexport.sources.source import ExampleInputs
from fakexport.sources.source_error import SourceError, did_you_mean


def inputs_from_specs(
    specs: Sequence[InputSpec], module: nn.Module, device: str, *, expected: ExampleInputs | None = None
) -> ExampleInputs:
    """Return the inputs that the specs name, and no others, in the order of the module's `forward`.

    Called in the fake mode of the module. Values are 0; in masks (names that end in `mask`) and in bool
    tensors they are 1.

    Args:
        expected: Inputs that are known to fit, from the factory or the source; an input that they hold
            must have the same number of dimensions.
    Raises:
        SourceError: `forward` takes no input of that name, or requires one that no spec names; one is
            named twice; one has another number of dimensions than the expected one.
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
            f"the forward of {model} also needs {', '.join(missing)}: add --input {missing[0]}=DTYPE[DIMS]"
        )


def _takes_keyword(name: str, signature: inspect.Signature, unnamed: Collection[str]) -> bool:
    """Return whether `**kwargs` takes it: it has no list of names, and this is no misspelled name."""
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
                f"input {spec.name!r} has {len(spec.shape)} dimensions, {model} takes {tensor.dim()}, "
                f"such as {list(tensor.shape)}"
            )

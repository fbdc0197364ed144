"""Whether a model that cannot be traced runs without a trace."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from fakexport._torch.fake_tensors import mode_of
from fakexport.sources import InputSpec

from .example_run import run_with_example
from .failure import CaptureFailure

_OF_FAKES = re.compile(
    r"DispatchKey|NotImplementedError|not allocated|FakeTensor|fake tensor|DynamicOutputShape|DataDependent"
    r"|Unreplayable",
    re.IGNORECASE,
)


def raises_in_eager_mode(module: nn.Module, error: Exception | None, failure: CaptureFailure) -> bool:
    """Return whether `forward` raises without a trace too, at the line that ended a capture.

    The types may differ: where a trace runs a decomposition that raises ValueError, a kernel raises
    RuntimeError. What it raises there is a fault of the model, of its config or of the inputs.
    """
    if failure.is_of_symbols or _is_of_fakes(failure):
        return False  # Eager mode has no symbols; real tensors have data, and their devices kernels.
    if any(isinstance(each, torch.jit.ScriptModule) for each in module.modules()):
        return False
    if error is None:
        return False
    found = CaptureFailure.of(error)
    return _place(found) == _place(failure) and not _is_of_fakes(found)


def runs_with_batch_of_one(module: nn.Module, kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return inputs with a first size of 1, as `NAME=DTYPE[DIMS]`, if `forward` takes these in eager mode.

    Some models take one sample at a time, though their code names a batch (TVP).

    Returns:
        Nothing where the inputs have no batch in common, it is 1 already, or the model raises with 1 too.
    """
    tensors = {
        name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor) and value.dim()
    }
    batches = {value.shape[0] for value in tensors.values()}
    if len(tensors) < len(kwargs) or len(batches) != 1 or 1 in batches:
        return ()
    mode = mode_of(module.parameters())
    with nullcontext() if mode is None else mode:
        first = {name: value[:1].clone() for name, value in tensors.items()}
    if run_with_example(module, (), first).error is not None:
        return ()
    return named_inputs(first)


def takes_any_keyword(module: nn.Module) -> bool:
    """Return whether `forward` takes inputs of any name, in `**kwargs` without a list of names."""
    parameters = inspect.signature(module.forward).parameters.values()
    return any(each.kind is each.VAR_KEYWORD and not typing.get_args(each.annotation) for each in parameters)


def named_inputs(kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return inputs as `NAME=DTYPE[DIMS]`; nothing where one of them is not a tensor."""
    if not all(isinstance(value, torch.Tensor) for value in kwargs.values()):
        return ()
    return tuple(str(InputSpec.of(name, value)) for name, value in kwargs.items())


def _is_of_fakes(failure: CaptureFailure) -> bool:
    return any(map(_OF_FAKES.search, (*failure.error_types, *failure.messages)))


def _place(failure: CaptureFailure) -> tuple[str, int] | None:
    """Return which line raises; of an error without one, its type."""
    if not failure.spans:
        return failure.error_types[-1], 0
    return failure.spans[-1].path, failure.spans[-1].line

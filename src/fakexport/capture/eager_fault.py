"""Whether a model that cannot be traced runs without a trace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from fakexport._torch.fake_tensors import mode_of
from fakexport.history import recording

from .failure import CaptureFailure

__all__ = ["raises_in_eager_mode"]

_OF_FAKES = re.compile(
    r"DispatchKey|NotImplementedError|not allocated|FakeTensor|fake tensor|DynamicOutputShape|DataDependent"
    r"|Unreplayable",
    re.IGNORECASE,
)


def raises_in_eager_mode(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], failure: CaptureFailure
) -> bool:
    """Return whether `forward` raises without a trace too, at the line that ended a capture.

    The types may differ: where a trace runs a decomposition that raises ValueError, a kernel raises
    RuntimeError. It runs on fake tensors, under none of the patches of a trace: what it raises there is a
    fault of the model, of its config or of the inputs.

    Args:
        module, args, kwargs: As for `capture`.
        failure: What ended the capture.
    """
    if failure.is_of_symbols or _is_of_fakes(failure):
        return False  # Eager mode has no symbols; real tensors have data, and their devices kernels.
    mode = mode_of(module.parameters())
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if mode is not None:
            stack.enter_context(mode)
            stack.enter_context(recording(mode))
        try:
            module(*args, **kwargs)
        except Exception as error:  # whatever a model raises
            found = CaptureFailure.of(error)
            return _place(found) == _place(failure) and not _is_of_fakes(found)
    return False


def _is_of_fakes(failure: CaptureFailure) -> bool:
    return any(map(_OF_FAKES.search, (*failure.error_types, *failure.messages)))


def _place(failure: CaptureFailure) -> tuple[str, int] | None:
    """Return which line raises; of an error without one, its type."""
    if not failure.spans:
        return failure.error_types[-1], 0
    return failure.spans[-1].path, failure.spans[-1].line

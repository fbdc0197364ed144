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
    r"DispatchKey|NotImplementedError|not allocated|FakeTensor|fake tensor|DynamicOutputShape|Unreplayable",
    re.IGNORECASE,
)


def raises_in_eager_mode(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], failure: CaptureFailure
) -> bool:
    """Return whether `forward` raises the error of a capture without a trace too, at the same line.

    It runs on fake tensors, under none of the patches of a trace: what it raises there is a fault of the
    model, of its config or of the inputs.

    Args:
        module, args, kwargs: As for `capture`.
        failure: What ended the capture.
    """
    if failure.is_of_symbols or any("DataDependent" in name for name in failure.error_types):
        return False  # Eager mode has no symbols.
    if any(map(_OF_FAKES.search, (*failure.error_types, *failure.messages))):
        return False  # Real tensors have data, and their devices kernels.
    mode = mode_of(module.parameters())
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if mode is not None:
            stack.enter_context(mode)
            stack.enter_context(recording(mode))
        try:
            module(*args, **kwargs)
        except Exception as error:  # whatever a model raises
            return _place(CaptureFailure.of(error)) == _place(failure)
    return False


def _place(failure: CaptureFailure) -> tuple[Any, ...] | None:
    """Return what is raised, and by which line."""
    if not failure.spans:
        return None
    return failure.error_types[-1], failure.spans[-1].path, failure.spans[-1].line

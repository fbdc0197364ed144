"""Example inputs that the caller gives: as fake tensors, and by name where torch does not take one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import NoneType
from typing import Any

import torch
from torch import nn

from fakexport._torch.fake_tensors import example_to_fake
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport.error import InvalidType
from fakexport.fake import Built, check_input, is_fake
from fakexport.history import remember_value
from fakexport.sources import ExampleInputs

from .failure import CaptureFailure
from .plain_forward import bound_inputs

_UNSUPPORTED = re.compile(r"Unsupported input type (<class '.*?'>)")


def given_inputs(
    built: Built, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None
) -> ExampleInputs:
    """Return the inputs with a fake tensor for each real one, on the device of the first module.

    Raises:
        SubclassNotKept: a tensor has a class that would be lost.
        TypeError: `args` is not a tuple or a list, or `kwargs` is not a mapping.
    """
    if not isinstance(args, (tuple, list, NoneType)):
        raise InvalidType(f"args is a {type(args).__name__}; write a tuple of inputs, such as (x,)")
    if not isinstance(kwargs, (Mapping, NoneType)):
        raise InvalidType(f"kwargs is a {type(kwargs).__name__}; write inputs by name, such as {{'x': x}}")
    device = torch.device(built.placement.input_device)

    def fake(value: Any) -> Any:
        check_input("an example input", value)
        is_real = isinstance(value, torch.Tensor) and not is_fake(value)
        if not is_real:
            return value
        made = example_to_fake(built.mode, value, device)
        remember_value(made, value)
        return made

    fake_args, fake_kwargs = tree_map(fake, (tuple(args or ()), dict(kwargs or {})))
    return ExampleInputs(fake_args, fake_kwargs)


def with_unsupported_input(
    failure: CaptureFailure, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> CaptureFailure:
    """Return a failure that names the input whose class torch.export does not take."""
    found = _UNSUPPORTED.search(failure.messages[0])
    if found is None:
        return failure
    for name, value in bound_inputs(module, args, kwargs).items():
        if any(str(type(leaf)) == found[1] for leaf in tree_leaves(value)):
            said = f"the input `{name}`: {failure.messages[0]}"
            return replace(failure, messages=(said, *failure.messages[1:]))
    return failure

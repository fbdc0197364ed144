"""Convert the caller's example inputs to fake tensors. Errors name the unsupported inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import NoneType
from typing import Any

import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import example_to_fake
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport.emulation.fake import FakeModel, check_input, is_fake
from fakexport.emulation.history import set_constant_value
from fakexport.error import InvalidType
from fakexport.models.sources import ExampleInputs

from .failure import CaptureFailure
from .plain_forward import bound_inputs

_UNSUPPORTED = re.compile(r"Unsupported input type (<class '.*?'>)")


def given_inputs(
    built: FakeModel, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None
) -> ExampleInputs:
    """Return the inputs with real tensors converted to fake tensors on the device of the first module.

    Raises:
        UnsupportedSubclassError: a tensor has an unsupported class.
        TypeError: `args` is not a tuple or a list, or `kwargs` is not a mapping.
    """
    if not isinstance(args, (tuple, list, NoneType)):
        raise InvalidType(f"args is a {type(args).__name__}; pass a tuple of inputs, such as (x,)")
    if not isinstance(kwargs, (Mapping, NoneType)):
        raise InvalidType(f"kwargs is a {type(kwargs).__name__}; pass a dict of inputs, such as {{'x': x}}")
    device = torch.device(built.placement.input_device)

    def fake(value: Any) -> Any:
        check_input("an example input", value)
        is_real = isinstance(value, torch.Tensor) and not is_fake(value)
        if not is_real:
            return value
        made = example_to_fake(built.mode, value, device)
        set_constant_value(made, value)
        return made

    fake_args, fake_kwargs = tree_map(fake, (tuple(args or ()), dict(kwargs or {})))
    return ExampleInputs(fake_args, fake_kwargs)


def with_unsupported_input(
    failure: CaptureFailure, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> CaptureFailure:
    """If an input has a class that torch.export does not support, return a failure that names the input."""
    found = _UNSUPPORTED.search(failure.messages[0])
    if found is None:
        return failure
    for name, value in bound_inputs(module, args, kwargs).items():
        if any(str(type(leaf)) == found[1] for leaf in tree_leaves(value)):
            said = f"the input `{name}`: {failure.messages[0]}"
            return replace(failure, messages=(said, *failure.messages[1:]))
    return failure

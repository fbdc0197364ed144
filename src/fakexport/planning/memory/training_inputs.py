"""Create the inputs of a training step at the requested sizes, because a run needs concrete sizes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import FakeTensorMode
from fakexport.error import InvalidValue
from fakexport.planning.memory.input_dims import role_of
from fakexport.planning.memory.size_request import SizeRequest


@dataclass(frozen=True)
class TrainingInputs:
    """Fake arguments of a model's call, with the resulting batch and context, if any."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    batch: int | None
    context: int | None


def training_inputs(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    request: SizeRequest,
    mode: FakeTensorMode,
) -> TrainingInputs:
    """Return the inputs at the requested sizes; tensors of a different size are replaced by new fake tensors.

    Raises:
        ValueError: The model has no such input, or no input has a batch or a context.
    """
    names = _names(module, args)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    shapes = {name: [int(size) for size in tensor.shape] for name, tensor in tensors.items()}
    roles = {
        (name, index): role_of(name, tensor, index)
        for name, tensor in tensors.items()
        for index in range(tensor.dim())
    }
    for role, size in (("batch", request.batch), ("context", request.context)):
        if size is not None:
            _set_role(shapes, roles, role, size)
    for (name, index), size in request.dims.items():
        if (name, index) not in roles:
            known = ", ".join(f"{name}.{index}" for name, index in roles) or "none"
            raise InvalidValue(
                f"--size {name}.{index}: the model has no such input dimension; it has {known}"
            )
        shapes[name][index] = size
    made = {name: _of_shape(tensor, shapes[name], mode) for name, tensor in tensors.items()}
    return TrainingInputs(
        args=tuple(made.get(name, value) for name, value in zip(names, args, strict=False)),
        kwargs={name: made.get(name, value) for name, value in kwargs.items()},
        batch=_size(shapes, roles, "batch"),
        context=_size(shapes, roles, "context"),
    )


def _names(module: nn.Module, args: tuple[Any, ...]) -> list[str]:
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [*named, *(f"input_{index}" for index in range(len(named), len(args)))][: len(args)]


def _set_role(
    shapes: dict[str, list[int]], roles: Mapping[tuple[str, int], str], role: str, size: int
) -> None:
    found = [place for place, own in roles.items() if own == role]
    if not found:
        what = "batch dimension" if role == "batch" else "text input"
        raise InvalidValue(f"--{role} {size:,}: the model has no {what}; use --size NAME.DIM=N")
    for name, index in found:
        shapes[name][index] = size


def _of_shape(tensor: torch.Tensor, shape: list[int], mode: FakeTensorMode) -> torch.Tensor:
    if list(tensor.shape) == shape:
        return tensor
    with mode:
        return torch.empty(
            shape, dtype=tensor.dtype, device=tensor.device, requires_grad=tensor.requires_grad
        )


def _size(shapes: Mapping[str, list[int]], roles: Mapping[tuple[str, int], str], role: str) -> int | None:
    return max((shapes[name][index] for (name, index), own in roles.items() if own == role), default=None)

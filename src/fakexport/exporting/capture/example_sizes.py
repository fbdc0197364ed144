"""Change the sizes of example inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fakexport._torch.pytree import tree_flatten, tree_unflatten
from fakexport.emulation.fake import FakeModel
from fakexport.emulation.history import recording
from fakexport.error import InvalidValue
from fakexport.models.sources import ExampleInputs


def resized(
    built: FakeModel, inputs: ExampleInputs, shapes: Sequence[tuple[int, ...] | None]
) -> ExampleInputs:
    """Return example inputs with other sizes.

    A tensor is cut, or extended by repeating it, so that its values stay valid.

    Args:
        shapes: The shape of each leaf of the inputs, in the order of the program's inputs; None if the leaf
            is not a tensor.
    Raises:
        ValueError: the inputs have other leaves.
    """
    leaves, spec = tree_flatten((tuple(inputs.args), dict(inputs.kwargs)))
    if len(leaves) != len(shapes) or any(
        (shape is not None) != isinstance(leaf, torch.Tensor)
        or (shape is not None and len(shape) != leaf.dim())
        for leaf, shape in zip(leaves, shapes, strict=False)
    ):
        raise InvalidValue(
            "the example inputs cannot be changed to the sizes of another range: pass tensors, or tuples, "
            "lists and dicts of tensors"
        )
    with built.mode, recording(built.mode):
        made = [_resized(leaf, shape) for leaf, shape in zip(leaves, shapes, strict=True)]
    args, kwargs = tree_unflatten(made, spec)
    return replace(inputs, args=args, kwargs=kwargs)


def _resized(value: Any, shape: tuple[int, ...] | None) -> Any:
    for dim, size in enumerate(shape or ()):
        old = value.shape[dim]
        if size != old:
            value = value.index_select(dim, torch.arange(size, device=value.device) % max(old, 1))
    return value

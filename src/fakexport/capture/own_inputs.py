"""Copy example inputs so that each one is a separate tensor.

A trace knows a tensor by its identity. One tensor that is given for two arguments, or that is a weight of the
model, would be one input of the program: it would read the last of them for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from fakexport._torch.fake_tensors import FakeTensor, example_to_fake
from fakexport._torch.pytree import tree_leaves, tree_map


def own_inputs(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs with a new tensor for each that is given twice or that the module holds."""
    known = set(map(id, _held_tensors(module)))
    tensors = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, torch.Tensor)]
    if len({*map(id, tensors)} - known) == len(tensors):
        return args, dict(kwargs)

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = _another(leaf) if id(leaf) in known else leaf
        known.add(id(made))
        return made

    made_args, made_kwargs = tree_map(own, (args, dict(kwargs)))
    return made_args, made_kwargs


def _another(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor like another one, which shares no memory with it."""
    if isinstance(tensor, FakeTensor):
        return example_to_fake(tensor.fake_mode, tensor, tensor.device)
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _held_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    for part in module.modules():
        for held in (*part.parameters(recurse=False), *part.buffers(recurse=False), *vars(part).values()):
            if isinstance(held, torch.Tensor):
                yield held

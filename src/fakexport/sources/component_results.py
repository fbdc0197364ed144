"""What a model reads of the result of a part: taken out of the result, and put back in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fakexport._torch.pytree import tree_flatten, tree_leaves, tree_unflatten
from fakexport.sources.component_calls import Call, Unread

ALONE = "features"


@dataclass(frozen=True)
class ReadField:
    """One field of a result, of which the model uses something.

    Args:
        indices: Which leaves of the field it uses.
        is_tensor: Whether the field is a tensor.
        is_joined: Whether all that it does with several tensors is to concatenate them along the first
            dimension: then they are one tensor, and their number is free.
    """

    indices: tuple[int, ...]
    is_tensor: bool
    is_joined: bool


def read_fields(call: Call) -> dict[str, ReadField]:
    """Return what the model uses of the result of a recorded call, by name.

    A result that is not a mapping has one field, `features`.
    """
    found = {}
    for name, value in _fields(call.result).items():
        leaves = tree_leaves(value)
        indices = tuple(index for index, leaf in enumerate(leaves) if id(leaf) in call.read)
        if not indices:
            continue
        is_plain = type(value) in (list, tuple) and all(isinstance(item, torch.Tensor) for item in value)
        is_whole = is_plain and len(indices) == len(leaves)
        is_joined = is_whole and not any(id(leaf) in call.apart for leaf in leaves)
        found[name] = ReadField(indices, isinstance(value, torch.Tensor), is_joined)
    return found


def taken(result: Any, fields: Mapping[str, ReadField]) -> dict[str, Any]:
    """Return the tensors of these fields: one tensor each, or a tuple."""
    values = _fields(result)
    return {name: _taken(values[name], field) for name, field in fields.items()}


def put_back(result: Any, fields: Mapping[str, ReadField], given: Mapping[str, Any]) -> Any:
    """Return a recorded result with other tensors for what the model uses, and `Unread` for other tensors."""
    values = {
        name: _put_back(value, fields.get(name), given.get(name)) for name, value in _fields(result).items()
    }
    if not isinstance(result, Mapping):
        return values[ALONE]
    return values if type(result) is dict else type(result)(**values)


def _fields(result: Any) -> dict[str, Any]:
    return dict(result.items()) if isinstance(result, Mapping) else {ALONE: result}


def _taken(value: Any, field: ReadField) -> Any:
    if field.is_tensor:
        return value
    leaves = tree_leaves(value)
    kept = tuple(leaves[index] for index in field.indices)
    return torch.cat(kept, dim=0) if field.is_joined else kept


def _put_back(value: Any, field: ReadField | None, given: Any) -> Any:
    if field is not None and field.is_tensor:
        return given
    if field is not None and field.is_joined:
        return type(value)([given])
    leaves, spec = tree_flatten(value)
    tensors = dict(zip(field.indices, given, strict=True)) if field is not None else {}
    filled = [
        tensors.get(index, Unread() if isinstance(leaf, torch.Tensor) else leaf)
        for index, leaf in enumerate(leaves)
    ]
    return tree_unflatten(filled, spec)

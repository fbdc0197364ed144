"""Lower bounds that were declared and that torch does not check.

torch traces sizes from 2 on and checks a lower bound only above 2 (`torch/export/_unlift.py`): a program that
was declared from 2 on takes a size of 1.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import ShapesCollection

from fakexport._torch.pytree import tree_leaves
from fakexport.conditions import least_size_guard
from fakexport.program import ProgramFacts

from .dynamic_dims import DynamicDims
from .plain_forward import bound_inputs

_UNCHECKED = (1, 2)


def varying_inputs(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], facts: ProgramFacts | None
) -> dict[str, Any]:
    """Return the inputs whose sizes may vary, by name."""
    has_own_inputs = facts is not None and facts.has_own_inputs
    inputs = dict(kwargs) if has_own_inputs else bound_inputs(module, args, kwargs)
    if facts is not None and facts.adapter is not None:
        inputs = {name: value for name, value in inputs.items() if name not in facts.adapter.inputs}
    return inputs


def lower_bound_guards(dynamic: Any, inputs: Mapping[str, Any], leaves: Sequence[Any]) -> list[str]:
    """Return a guard for each declared lower bound of 1 or 2."""
    index = {id(leaf): at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    bounds = dict.fromkeys(_bounds(dynamic, inputs))
    return [least_size_guard(index[tensor], dim, least) for tensor, dim, least in bounds if tensor in index]


def _bounds(dynamic: Any, inputs: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield the identity of a tensor, a dimension of it, and its least size."""
    if isinstance(dynamic, DynamicDims):
        for dim in dynamic.dims:
            if dim.min in _UNCHECKED:
                yield id(inputs[dim.input_name]), dim.dim, dim.min
    elif isinstance(dynamic, ShapesCollection):
        shapes = copy.deepcopy(dynamic)  # It enters a tensor that it is asked for.
        for leaf in tree_leaves(dict(inputs)):
            if isinstance(leaf, torch.Tensor):
                yield from _of_spec(shapes[leaf], leaf)
    elif isinstance(dynamic, (dict, tuple, list)):
        yield from _of_spec(dynamic, dict(inputs) if isinstance(dynamic, dict) else list(inputs.values()))


def _of_spec(spec: Any, value: Any) -> Iterator[tuple[int, int, int]]:
    if not isinstance(spec, (dict, tuple, list)):
        return
    parts = spec.items() if isinstance(spec, dict) else enumerate(spec)
    if isinstance(value, torch.Tensor):
        for dim, bound in parts:
            if getattr(bound, "min", None) in _UNCHECKED:
                yield id(value), dim, bound.min
        return
    children = value.values() if isinstance(value, dict) and not isinstance(spec, dict) else value
    for key, part in parts:
        yield from _of_spec(part, _child(children, key))


def _child(value: Any, key: Any) -> Any:
    """Return a part of a container; for one of a registered class, torch's declaration lists its leaves."""
    if isinstance(value, (dict, tuple, list)):
        return value[key]
    leaves = tree_leaves(value)
    return leaves[key] if isinstance(key, int) and key < len(leaves) else None

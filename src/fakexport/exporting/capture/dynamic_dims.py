"""Convert the user's dynamic dimensions to torch's specification, and guard the bounds that torch ignores.

torch assumes sizes of at least 2 while tracing, so the program only checks lower bounds above 2
(`torch/export/_unlift.py`). A program with a declared minimum of 2 would accept a size of 1.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ShapesCollection

from fakexport._torch.pytree import tree_leaves
from fakexport.error import InvalidValue
from fakexport.exporting.guards import equal_size_guard, least_size_guard
from fakexport.exporting.program import ProgramFacts
from fakexport.models import DynamicDim, DynamicDims, parse_dynamic

from .plain_forward import bound_inputs


class ExampleSizeError(InvalidValue):
    """The example size of a dimension is not one of the declared sizes."""


_UNCHECKED = (1, 2)  # Lower bounds that torch does not check.


def dynamic_of(dynamic_shapes: Any) -> DynamicDims | Any:
    """Convert dimensions in fakexport's syntax to `DynamicDims`. Dimensions in torch's form are unchanged."""
    texts = dynamic_texts(dynamic_shapes)
    return dynamic_shapes if texts is None else parse_dynamic(texts)


def dynamic_texts(dynamic_shapes: Any) -> list[str] | None:
    """Return dimensions in fakexport's syntax as a list of strings, or None if they are in torch's form."""
    if not dynamic_shapes:
        return []
    given = [dynamic_shapes] if isinstance(dynamic_shapes, str) else dynamic_shapes
    is_list = isinstance(given, (list, tuple))
    return list(given) if is_list and all(isinstance(text, str) for text in given) else None


def as_torch_shapes(dynamic: DynamicDims, inputs: Mapping[str, Any]) -> ShapesCollection | None:
    """Return `torch.export.export(dynamic_shapes=...)` for these inputs, or None if all sizes are static.

    A listed dimension must not be specialized. Other dimensions with the same example size are `Dim.AUTO`, so
    that the length of `attention_mask` need not be declared in addition to the length of `input_ids`. A
    dimension with a single size is static.

    Args:
        dynamic: The dynamic dimensions.
        inputs: The example inputs by argument name: tensors or containers of tensors.
    Raises:
        ValueError: an input does not exist or is not a tensor, a tensor does not have the dimension, or its
            example size differs from that of a dimension with the same name.
        ExampleSizeError: an example size is outside of the range.
    """
    if not dynamic.dims and not dynamic.is_auto:
        return None
    if dynamic.is_split:
        raise InvalidValue(
            "several ranges of a size need several programs, which only `fakexport check` and "
            "`fakexport export` make: declare one range"
        )
    specs: dict[int, dict[int, Any]] = {}
    for dim in dynamic.dims:
        tensor = _tensor_named(dim, inputs)
        specs.setdefault(id(tensor), {})[dim.dim] = (
            Dim.STATIC if dim.is_fixed else Dim.DYNAMIC(min=dim.min, max=dim.max)
        )
    for first, other in dynamic.equal():
        size, expected = (int(inputs[dim.input_name].shape[dim.dim]) for dim in (other, first))
        if size != expected:
            raise InvalidValue(
                f"--dynamic {first.symbol}: the example size of {first.input_name}.{first.dim} is "
                f"{expected}, but that of {other.input_name}.{other.dim} is {size}"
            )
    named_sizes = {int(inputs[dim.input_name].shape[dim.dim]) for dim in dynamic.dims if not dim.is_fixed}
    shapes = ShapesCollection()
    for tensor in tree_leaves(dict(inputs)):
        if isinstance(tensor, torch.Tensor):
            spec = specs.get(id(tensor), {})
            for index, size in enumerate(tensor.shape):
                if index not in spec and (dynamic.is_auto or (size in named_sizes and size > 1)):
                    spec[index] = Dim.AUTO
            shapes[tensor] = spec
    return shapes


def _tensor_named(dim: DynamicDim, inputs: Mapping[str, Any]) -> torch.Tensor:
    label = dim.place
    if dim.input_name not in inputs:
        raise InvalidValue(
            f"--dynamic {label}: the model has no such input{_near(dim.input_name, list(inputs))}"
        )
    tensor = inputs[dim.input_name]
    if not isinstance(tensor, torch.Tensor):
        raise InvalidValue(f"--dynamic {label}: {dim.input_name} is a {type(tensor).__name__}, not a tensor")
    if dim.dim >= tensor.dim():
        raise InvalidValue(
            f"--dynamic {label}: {dim.input_name} has {tensor.dim()} dimensions, counted from 0 "
            f"(shape {list(tensor.shape)})"
        )
    size = int(tensor.shape[dim.dim])
    low, high = dim.min or 0, dim.max
    if size < low or (high is not None and size > high):
        wanted = high if dim.is_fixed else f"in {low}..{'' if high is None else high}"
        raise ExampleSizeError(f"--dynamic {label}: the example size {size} is not {wanted}")
    return tensor


def _near(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3) or names
    return f"; it has {', '.join(near)}" if near else ""


def varying_inputs(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], facts: ProgramFacts | None
) -> dict[str, Any]:
    """Return the inputs that can have dynamic sizes, by name. The tensors of an adapter are excluded."""
    has_own_inputs = facts is not None and facts.has_own_inputs
    inputs = dict(kwargs) if has_own_inputs else bound_inputs(module, args, kwargs)
    if facts is not None and facts.adapter is not None:
        inputs = {name: value for name, value in inputs.items() if name not in facts.adapter.inputs}
    return inputs


def declared_guards(dynamic: Any, inputs: Mapping[str, Any], leaves: Sequence[Any]) -> list[str]:
    """Return a guard for each declared lower bound of 1 or 2, and for dimensions with the same name.

    Not `torch.export.Dim`: with it, the trace fails if the model accepts fewer sizes, which FE302 reports.
    """
    index = {id(leaf): at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    bounds = dict.fromkeys(_bounds(dynamic, inputs))
    found = [least_size_guard(index[tensor], dim, least) for tensor, dim, least in bounds if tensor in index]
    for pair in dynamic.equal() if isinstance(dynamic, DynamicDims) else ():
        one, other = ((index[id(inputs[dim.input_name])], dim.dim) for dim in pair)
        found.append(equal_size_guard(one, other))
    return found


def _bounds(dynamic: Any, inputs: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield the `id` of a tensor, the index of a dimension, and the minimum size of this dimension."""
    if isinstance(dynamic, DynamicDims):
        for dim in dynamic.dims:
            if dim.min in _UNCHECKED and not dim.is_fixed:
                yield id(inputs[dim.input_name]), dim.dim, dim.min
    elif isinstance(dynamic, ShapesCollection):
        shapes = copy.deepcopy(dynamic)  # A lookup adds the tensor to the collection.
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
    """Return the item of a container for a key of torch's `dynamic_shapes`, which may be a leaf index."""
    if isinstance(value, (dict, tuple, list)):
        return value[key]
    leaves = tree_leaves(value)
    return leaves[key] if isinstance(key, int) and key < len(leaves) else None

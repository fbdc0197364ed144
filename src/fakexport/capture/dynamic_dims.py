"""Which dimensions of which inputs may vary: from the user's words to torch's specification."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim, ShapesCollection

from fakexport._torch.pytree import tree_leaves
from fakexport.error import InvalidValue

AUTO = "auto"

_FORM = re.compile(r"(?P<name>[A-Za-z_]\w*)\.(?P<dim>\d{1,9})(?:=(?P<min>\d{1,18})?\.\.(?P<max>\d{1,18})?)?")


@dataclass(frozen=True)
class DynamicDim:
    """One dimension that may vary.

    Args:
        input_name: Name of the argument of `forward`.
        dim: Index of the dimension, from 0.
        min: Smallest size, or None for torch's own bound.
        max: Largest size, or None for no bound.
    """

    input_name: str
    dim: int
    min: int | None = None
    max: int | None = None


@dataclass(frozen=True)
class DynamicDims:
    """The dimensions that may vary.

    Args:
        dims: Those named; capture fails if the model needs one of them to have one size.
        is_auto: Every dimension of every tensor input varies if the model allows it.
    """

    dims: tuple[DynamicDim, ...] = ()
    is_auto: bool = False


def parse_dynamic(texts: str | Iterable[str]) -> DynamicDims:
    """Return the dimensions that `--dynamic` names.

    Args:
        texts: `auto`, `input_ids.1`, `input_ids.1=2..4096`, `input_ids.0=1..`; several of them.
    Raises:
        ValueError: a text of another form, an empty range, a dimension named twice.

    Example:
        >>> parse_dynamic(["ids.0=1..64"]).dims
        (DynamicDim(input_name='ids', dim=0, min=1, max=64),)
    """
    dims: dict[tuple[str, int], DynamicDim] = {}
    is_auto = False
    for text in [texts] if isinstance(texts, str) else texts:
        if text == AUTO:
            is_auto = True
            continue
        dim = _parse_one(text)
        if (dim.input_name, dim.dim) in dims:
            raise InvalidValue(f"dimension {dim.input_name}.{dim.dim} is declared dynamic twice")
        dims[dim.input_name, dim.dim] = dim
    return DynamicDims(tuple(dims.values()), is_auto)


def dynamic_of(dynamic_shapes: Any) -> DynamicDims | Any:
    """Return dimensions given in fakexport's words as `DynamicDims`; what torch takes, as it is."""
    texts = dynamic_texts(dynamic_shapes)
    return dynamic_shapes if texts is None else parse_dynamic(texts)


def dynamic_texts(dynamic_shapes: Any) -> list[str] | None:
    """Return dimensions given in fakexport's words; None where they are in torch's form."""
    if not dynamic_shapes:
        return []
    given = [dynamic_shapes] if isinstance(dynamic_shapes, str) else dynamic_shapes
    is_list = isinstance(given, (list, tuple))
    return list(given) if is_list and all(isinstance(text, str) for text in given) else None


def _parse_one(text: str) -> DynamicDim:
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise InvalidValue(
            f"cannot read dynamic dimension {text!r}: write NAME.DIM=MIN..MAX, NAME.DIM or auto"
        )
    low, high = (None if match[key] is None else int(match[key]) for key in ("min", "max"))
    if low is not None and high is not None and low >= high:
        raise InvalidValue(f"dynamic dimension {text!r} has an empty range: MIN must be less than MAX")
    return DynamicDim(match["name"], int(match["dim"]), low, high)


def as_torch_shapes(dynamic: DynamicDims, inputs: Mapping[str, Any]) -> ShapesCollection | None:
    """Return `torch.export.export(dynamic_shapes=...)` for these inputs, or None if nothing varies.

    A dimension that is named may not be specialized. An unnamed dimension whose example size equals that
    of a named one follows the model (`Dim.AUTO`): the length of `attention_mask` need not be declared
    next to that of `input_ids`.

    Args:
        dynamic: The dimensions.
        inputs: Argument name -> example value, tensors or containers of them.
    Raises:
        ValueError: an unknown name, a name that is not a tensor, a dimension that the tensor does not have,
            an example size outside of the range.
    """
    if not dynamic.dims and not dynamic.is_auto:
        return None
    specs: dict[int, dict[int, Any]] = {}
    for dim in dynamic.dims:
        tensor = _tensor_named(dim, inputs)
        specs.setdefault(id(tensor), {})[dim.dim] = Dim.DYNAMIC(min=dim.min, max=dim.max)
    named_sizes = {int(inputs[dim.input_name].shape[dim.dim]) for dim in dynamic.dims}
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
    label = f"{dim.input_name}.{dim.dim}"
    if dim.input_name not in inputs:
        raise InvalidValue(
            f"--dynamic {label}: the model has no such input{_near(dim.input_name, list(inputs))}"
        )
    tensor = inputs[dim.input_name]
    if not isinstance(tensor, torch.Tensor):
        raise InvalidValue(f"--dynamic {label}: {dim.input_name} is a {type(tensor).__name__}, not a tensor")
    if dim.dim >= tensor.dim():
        raise InvalidValue(
            f"--dynamic {label}: {dim.input_name} has {tensor.dim()} dimensions, counted from 0 (shape "
            f"{list(tensor.shape)})"
        )
    size = int(tensor.shape[dim.dim])
    low, high = dim.min or 0, dim.max
    if size < low or (high is not None and size > high):
        raise InvalidValue(f"--dynamic {label}: the example's size {size} is not in {low}..{high or ''}")
    return tensor


def _near(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3) or names
    return f"; it has {', '.join(near)}" if near else ""

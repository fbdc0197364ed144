"""Check and specialize the shapes of the inputs of an export, and let sizes share a symbol.

`torch.export` creates a separate symbol for each dynamic size, and finds out during the trace which of them
are equal. For a cache, this means separate symbols for each layer. In the context `shared_sizes`, sizes with
the same label share a symbol, as with duck shaping, and the program rejects inputs in which these sizes
differ. Seen on torch 2.13 and 2.15.

Source: `torch/export/dynamic_shapes.py:_check_dynamic_shapes`, which `torch.export.export` calls while it
traces; it does not check that a tensor has the dimension. `torch/_export/non_strict_utils.py:fakify`,
`torch/fx/experimental/symbolic_shapes.py:ShapeEnv.create_symbol`, `torch/__init__.py:_check`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._dynamo.exc import UserError
from torch._dynamo.source import TensorProperty
from torch._export import non_strict_utils
from torch.export import ShapesCollection
from torch.export.dynamic_shapes import _check_dynamic_shapes
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from fakexport._torch.patching import Patches, in_force


def why_shapes_do_not_fit(inputs: Mapping[str, Any], shapes: Any) -> str | None:
    """Return why dynamic shapes do not match the inputs, as one line, or None if they match.

    Args:
        shapes: A value for `torch.export.export(dynamic_shapes=...)`. A `ShapesCollection` is not checked.
    """
    if shapes is None or isinstance(shapes, ShapesCollection):
        return None
    if not isinstance(shapes, (dict, tuple, list)):
        return f"expected a dict, a tuple or a list, not {type(shapes).__name__}"
    try:
        _check_dynamic_shapes(dict(inputs), shapes)
    except UserError as error:
        return str(error.msg).splitlines()[0].partition(" For more information")[0]
    return next(_absent_dims(inputs, shapes), None)


def _absent_dims(inputs: Mapping[str, Any], shapes: Any) -> Iterator[str]:
    named = shapes if isinstance(shapes, dict) else dict(zip(inputs, shapes, strict=False))
    for name, dims in named.items():
        tensor = inputs.get(name)
        if isinstance(tensor, torch.Tensor) and isinstance(dims, dict):
            for dim in dims:
                if isinstance(dim, int) and not 0 <= dim < tensor.dim():
                    yield f"{name} has no dimension {dim} (shape {list(tensor.shape)})"


def check_shape(tensor: torch.Tensor, shape: tuple[int, ...], message: str) -> None:
    """Raise `RuntimeError` unless a tensor has this shape. Function modes do not observe the check."""
    with torch._C.DisableTorchFunction():
        sizes = tuple(tensor.shape)
    for size, taken in zip(sizes, shape, strict=True):
        torch._check(size == taken, partial(str, message))


def shared_sizes(labelled: Sequence[tuple[torch.Tensor, Sequence[str | None]]]) -> Patches:
    """Return a context for a non-strict export in which sizes with the same label share a symbol.

    Args:
        labelled: Inputs of the export, each with the labels of its dimensions. Equal labels mean equal sizes.
            A dimension without a label is static.
    """
    stock_fakify = in_force(non_strict_utils, "fakify")
    stock_create = in_force(ShapeEnv, "create_symbol")
    labels = {id(tensor): of for tensor, of in labelled}
    symbols: WeakKeyDictionary[ShapeEnv, dict[str, dict[Any, Any]]] = WeakKeyDictionary()
    current: list[Sequence[str | None] | None] = [None]

    def fakify(mode: Any, path: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        current[0] = labels.get(id(value))
        try:
            return stock_fakify(mode, path, value, *args, **kwargs)
        finally:
            current[0] = None

    def create_symbol(
        environment: ShapeEnv,
        size: Any,
        source: Any,
        dynamic_dim: DimDynamic = DimDynamic.DUCK,
        constraint_dim: Any = None,
        **options: Any,
    ) -> Any:
        of = current[0]
        is_own = constraint_dim is not None or dynamic_dim is not DimDynamic.DYNAMIC
        if of is None or is_own or getattr(source, "prop", None) is not TensorProperty.SIZE:
            return stock_create(environment, size, source, dynamic_dim, constraint_dim, **options)
        if (label := of[source.idx]) is None:
            return stock_create(environment, size, source, DimDynamic.STATIC, None, **options)
        before = environment.val_to_var
        environment.val_to_var = symbols.setdefault(environment, {}).setdefault(label, {})
        try:
            return stock_create(environment, size, source, DimDynamic.DUCK, None, **options)
        finally:
            environment.val_to_var = before

    return Patches({(non_strict_utils, "fakify"): fakify, (ShapeEnv, "create_symbol"): create_symbol})

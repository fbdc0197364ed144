"""One symbol for sizes of several inputs that are always equal, from the start of a trace.

`torch.export` makes a symbol of its own for each size that may vary, and learns while it traces which of them
are equal. With a cache that is other symbols in each layer. Here sizes with one label are one symbol, as duck
shaping makes them: the program refuses inputs in which they differ. Seen on torch 2.13.

Source: `torch/_export/non_strict_utils.py:fakify`,
`torch/fx/experimental/symbolic_shapes.py:ShapeEnv.create_symbol`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._dynamo.source import TensorProperty
from torch._export import non_strict_utils
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from .patching import Patches, in_force


def shared_sizes(labelled: Sequence[tuple[torch.Tensor, Sequence[str | None]]]) -> Patches:
    """Return a context for a non-strict export in which sizes with the same label are one symbol.

    Args:
        labelled: Inputs of the export, each with a label for each of its dimensions. Equal labels stand for
            equal sizes; a dimension without a label is constant.
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

"""Steps of an export that find nothing in nearly every program, without the search.

Two of them look at each node of the graph: one for unbacked symbols, also where the trace made none; one
for strings to shorten, in module stacks that are nothing but strings. What they return is what stock torch
returns. Seen on torch 2.13.

Source: `torch/export/_trace.py:_replace_unbacked_bindings, _aot_export_non_strict`,
`torch/fx/experimental/symbolic_shapes.py:_free_unbacked_symbols_with_path`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch.export import _trace
from torch.fx.experimental import symbolic_shapes
from torch.utils import _pytree

from .fake_tensors import FakeTensor
from .patching import Patches, in_force


def quick_passes() -> Patches:
    """Return a context in which `torch.export.export` takes less time per node; the program is the same."""
    stock_symbols = in_force(symbolic_shapes, "_free_unbacked_symbols_with_path")
    stock_map = in_force(_pytree, "tree_map")

    def free_symbols(value: object, path: Any, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        # Symbols are found only among the pending ones.
        if type(value) is FakeTensor and kwargs.get("pending") == set():
            return {}
        found: dict[Any, Any] = stock_symbols(value, path, *args, **kwargs)
        return found

    def tree_map(function: Callable[[Any], Any], tree: Any, *rests: Any, **kwargs: Any) -> Any:
        if function is _trace._strip_root and not rests and not kwargs and _is_module_stack(tree):
            return OrderedDict((key, tuple(map(function, pair))) for key, pair in tree.items())
        return stock_map(function, tree, *rests, **kwargs)

    return Patches(
        {
            (symbolic_shapes, "_free_unbacked_symbols_with_path"): free_symbols,
            (_pytree, "tree_map"): tree_map,
        }
    )


def _is_module_stack(tree: Any) -> bool:
    return type(tree) is OrderedDict and all(
        type(pair) is tuple and set(map(type, pair)) <= {str} for pair in tree.values()
    )

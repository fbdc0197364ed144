"""Steps of an export that find little in nearly every program, without the search.

Two of them look at each node of the graph: one for unbacked symbols, also where the trace made none; one
for strings to shorten, in module stacks that are nothing but strings. A third takes the whole graph apart for
a few regions under `no_grad` (`no_grad_regions.py`), a fourth describes each parameter to make a fake of a
fake (`faked_parameters.py`). Four check the order of a graph that is checked again at the end. What they
return is what stock torch returns.
Seen on torch 2.13.

Source: `torch/export/_trace.py:_replace_unbacked_bindings, _aot_export_non_strict`,
`torch/fx/experimental/symbolic_shapes.py:_free_unbacked_symbols_with_path`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._export import utils as export_utils
from torch._export.passes import replace_autocast_with_hop_pass, replace_set_grad_with_hop_pass
from torch.export import _trace
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree

from . import faked_parameters, no_grad_regions
from .fake_tensors import FakeTensor
from .patching import Patches, in_force

# Targets that the pass removes or rewrites even if the trace made no symbols.
_ASSERTS = (
    torch._check,
    torch._assert_scalar,
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten.sym_constrain_range.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
)

_CHECKED_LATER = (
    (replace_autocast_with_hop_pass, "_replace_with_hop_pass_helper"),
    (replace_set_grad_with_hop_pass, "_replace_with_hop_pass_helper"),
)


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

    shortened: dict[tuple[Any, ...], tuple[tuple[str, ...], ...]] = {}

    def tree_map(function: Callable[[Any], Any], tree: Any, *rests: Any, **kwargs: Any) -> Any:
        if function is _trace._strip_root and not rests and not kwargs and type(tree) is OrderedDict:
            pairs = tuple(tree.values())
            try:
                short = shortened.get(pairs)  # The nodes of a call have equal stacks.
            except TypeError:  # Something in it has no hash, so it is not a stack.
                short = None
            if short is None and _is_of_strings(pairs):
                short = shortened[pairs] = tuple(tuple(map(function, pair)) for pair in pairs)
            if short is not None:
                return OrderedDict(zip(tree, short, strict=True))
        return stock_map(function, tree, *rests, **kwargs)

    stock_lint: Callable[[Graph], None] = in_force(Graph, "lint")
    passes = [0]  # Under way, whose graphs the verifier of `ExportedProgram` checks afterwards in any case.

    def lint(graph: Graph) -> None:
        if not passes[0]:
            stock_lint(graph)

    @contextmanager
    def checked_later() -> Iterator[None]:
        passes[0] += 1
        try:
            yield
        finally:
            passes[0] -= 1

    def around(stock: Callable[..., Any]) -> Callable[..., Any]:
        def replace(*args: Any) -> Any:
            with checked_later():
                return stock(*args)

        return replace

    stock_eliminate: Callable[..., bool] = in_force(Graph, "eliminate_dead_code")

    def eliminate(graph: Graph, is_impure: Callable[[Node], bool] | None = None) -> bool:
        if is_impure is None:
            return stock_eliminate(graph)
        with checked_later():
            # Only a node without users is removed, so of no other one it is asked what it does.
            return stock_eliminate(graph, lambda node: bool(node.users) or is_impure(node))

    stock_fixup: Callable[[str], str] = in_force(_trace, "_fixup_key")
    fixed: dict[str, str] = {}

    def fixup(key: str) -> str:
        found = fixed.get(key)
        if found is None:
            found = fixed[key] = stock_fixup(key)
        return found

    stock_asserts = in_force(export_utils, "insert_deferred_runtime_asserts")

    def insert_asserts(module: GraphModule, environment: ShapeEnv, *args: Any, **kwargs: Any) -> None:
        if not _has_no_symbols(environment) or any(node.target in _ASSERTS for node in module.graph.nodes):
            stock_asserts(module, environment, *args, **kwargs)

    return Patches(
        {
            (Graph, "eliminate_dead_code"): eliminate,
            (Graph, "lint"): lint,
            **{(module, name): around(in_force(module, name)) for module, name in _CHECKED_LATER},
            (export_utils, "insert_deferred_runtime_asserts"): insert_asserts,
            (symbolic_shapes, "_free_unbacked_symbols_with_path"): free_symbols,
            (_pytree, "tree_map"): tree_map,
            (_trace, "_fixup_key"): fixup,
            **no_grad_regions.replacements(),
            **faked_parameters.replacements(),
        }
    )


def _has_no_symbols(environment: ShapeEnv) -> bool:
    """Return whether the trace made no symbol, so that there is nothing to assert."""
    return not (
        environment.var_to_range
        or environment.deferred_runtime_asserts
        or environment.unbacked_symint_counter
    )


def _is_of_strings(pairs: tuple[Any, ...]) -> bool:
    return all(type(pair) is tuple and set(map(type, pair)) <= {str} for pair in pairs)

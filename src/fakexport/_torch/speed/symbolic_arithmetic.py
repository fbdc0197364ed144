"""Cache the arithmetic of symbolic sizes per pair of expressions. Seen on torch 2.13.

Each tensor with symbolic sizes multiplies and compares them to compute its number of elements and
contiguity, and sympy repeats the same computation each time. The result depends only on the two
expressions and on the symbols that were replaced. This can be removed when torch shares these results
between tensors of equal sizes.

Source: `torch/fx/experimental/sym_node.py:_make_node_magic`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor, sym_node
from torch.fx.experimental.sym_node import SymNode

from fakexport._torch.patching import Patches, in_force

# Modulo is not included, because it depends on the known ranges of its operands.
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_METHODS = ("add", "mul", "sub", "eq", "ne", "ge", "gt", "le", "lt", "and", "or", "sym_min", "sym_max")


class SymbolicArithmetic:
    """Cache the results of arithmetic with symbolic sizes.

    Attributes:
        operations: Number of results requested.
    """

    def __init__(self) -> None:
        self.operations = 0
        self._known: dict[Any, tuple[Any, type, bool, Any]] = {}

    def remembered(self) -> Patches:
        """Return a context in which results are cached. The results are the same as in stock torch."""
        names = {f"_{method}": method for method in _METHODS if hasattr(SymNode, f"_{method}")}
        return Patches({(SymNode, name): self._quick(name, method) for name, method in names.items()})

    def _quick(self, name: str, method: str) -> Callable[[SymNode, SymNode], SymNode]:
        stock: Callable[[SymNode, SymNode], SymNode] = in_force(SymNode, name)
        operator = sym_node.method_to_operator(method)
        known = self._known

        def calculate(a: SymNode, b: SymNode) -> SymNode:
            self.operations += 1
            environment = a.shape_env
            if (
                type(b) is not SymNode
                or type(a) is not SymNode
                or environment is None
                or environment is not b.shape_env
                or environment._translation_validation_enabled
                or torch._logging._internal.GET_DTRACE_STRUCTURED
                or proxy_tensor.get_proxy_mode() is not None
            ):
                return stock(a, b)
            # Keyed by id: cached results are the same objects, and hashing an expression is slow.
            left, right, replaced = a._expr, b._expr, environment._replacements_version_counter
            key = (method, id(left), id(right), a.pytype, b.pytype, id(environment), replaced)
            found = known.get(key)
            if found is None or a._optimized_summation or b._optimized_summation:
                made = stock(a, b)
                if not made._optimized_summation:
                    kept = (left, right, environment)  # Keeps their ids from being reused.
                    known[key] = (made._expr, made.pytype, made.constant is None, kept)
                return made
            expr, pytype, is_plain, _ = found
            if not is_plain:
                return stock(a, b)
            hint: Any = sym_node._NO_HINT
            if a.hint is not None and b.hint is not None:
                hint = operator(a.hint, b.hint)
                if hint is not None and not isinstance(hint, _SYMBOLIC):
                    hint = pytype(hint)
            return SymNode(expr, environment, pytype, hint)

        return calculate

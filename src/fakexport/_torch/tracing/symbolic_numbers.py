"""Read, create and evaluate symbolic numbers and their expressions. Seen on torch 2.11 to 2.15.

Source: `torch/fx/experimental/symbolic_shapes.py`, `torch/utils/_sympy/functions.py`,
`interp.py` and `reference.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import (
    ShapeEnv,
    _free_unbacked_symbols_with_path,
    free_unbacked_symbols,
)
from torch.utils._sympy import functions
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges
from torch.utils._traceback import CapturedTraceback

from fakexport._torch.pytree import tree_leaves

_SYMBOLS: tuple[dict[str, bool], ...] = (
    {"positive": True, "integer": True},
    {"integer": True},
    {"positive": True, "real": True},
    {"real": True},
    {},
)


def assumptions_of(symbol: Any) -> dict[str, bool]:
    """Return the assumptions with which torch created a symbol. sympy derives the other assumptions.

    Symbols with the same name and the same derived assumptions are equal, and sympy may return either symbol.
    """
    derived = symbol.assumptions0
    return next((kind for kind in _SYMBOLS if sympy.Symbol("x", **kind).assumptions0 == derived), derived)


def shape_functions(names: Iterable[str]) -> dict[str, Any]:
    """Return the functions of shape expressions that this torch has, by serialized name."""
    return {name: getattr(functions, name) for name in names if hasattr(functions, name)}


def infinite_integer() -> Any:
    """Return torch's integer infinity, the upper bound of an unbounded symbol."""
    return int_oo


def expression_of(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """Return the sympy expression of a symbolic number, simplified by its shape environment."""
    return number.node.expr


def noted_expression_of(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """Return the sympy expression of a symbolic number, without simplifying it.

    This is much faster than `expression_of`.
    """
    return number.node._expr


def has_unbacked_symbols(number: Any) -> bool:
    """Return whether a number contains unbacked symbols."""
    return not isinstance(number, int) and bool(free_unbacked_symbols(number))


@contextmanager
def without_new_guards(environment: ShapeEnv) -> Iterator[None]:
    """Enter a context in which computing with fake tensors adds nothing to their shape environment.

    Guards are evaluated with the sizes of the example inputs, and new unbacked symbols are ignored.
    """
    with environment.suppress_guards(), environment.ignore_fresh_unbacked_symbols():
        yield


@contextmanager
def pending_symbols_dropped(program: ExportedProgram) -> Iterator[None]:
    """Enter a context that, on exit, drops the unbacked symbols that became pending in it.

    If a pass over the program computes fake tensors and discards them, their symbols stay pending in the
    shape environment. The next pass that uses the environment would fail with `PendingUnbackedSymbolNotFound`
    at the first operator that creates unbacked symbols.
    """
    values = (node.meta.get("val") for node in program.graph.nodes)
    fakes = (leaf for value in values for leaf in tree_leaves(value) if isinstance(leaf, FakeTensor))
    environment = next((fake.fake_mode.shape_env for fake in fakes), None)
    before = [] if environment is None else list(environment.pending_fresh_unbacked_symbols)
    try:
        yield
    finally:
        if environment is not None:
            environment.pending_fresh_unbacked_symbols[:] = before


def keep_ranges(program: ExportedProgram) -> None:
    """Copy a program's range constraints to the shape environments of its inputs.

    torch stores the range of `Dim.DYNAMIC(min=2, max=8)` only in `range_constraints`. In the environment, the
    range may still be 2 to infinity, and a query for the largest size would return the size in the example
    inputs.
    """
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if not isinstance(size, torch.SymInt):
                continue
            for symbol in expression_of(size).free_symbols & program.range_constraints.keys():
                bounds = program.range_constraints[symbol]
                size.node.shape_env.constrain_symbol_range(
                    symbol, compiler_min=bounds.lower, compiler_max=bounds.upper
                )


def hint_of(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """Return the value of a symbolic number for the example inputs, or None."""
    return number.node.hint


def expression_python(expression: Any) -> str:
    """Return an expression as text, in the format in which torch prints guards, with symbols by name."""
    return str(PythonPrinter().doprint(expression))


def finite_bound(bound: Any) -> int | None:
    """Return a bound of a range as an integer, or None for infinity.

    Raises:
        ValueError: The bound is finite but not an integer.
    """
    if bound in (sympy.oo, -sympy.oo, int_oo, -int_oo):
        return None
    if not isinstance(bound, (int, sympy.Integer)):
        raise ValueError(f"the bound {bound} is not an integer")
    return int(bound)


def value_range(lower: int | None, upper: int | None) -> Any:
    """Return an integer range. A bound of None means infinity."""
    return ValueRanges(
        -int_oo if lower is None else sympy.Integer(lower), int_oo if upper is None else sympy.Integer(upper)
    )


def unbacked_index(name: str) -> tuple[str, int] | None:
    """Return the prefix and the index in an unbacked symbol's name, such as `("u", 3)` for `u3`.

    For other symbols, return None.
    """
    for prefix in ("zuf", "u"):
        if name.startswith(prefix) and name[len(prefix) :].isdecimal():
            return prefix, int(name[len(prefix) :])
    return None


class SymbolTable:
    """The symbols of a program that is being read from a file, with their shape environment and fake mode."""

    def __init__(self, ranges: Mapping[str, Any]) -> None:
        self.environment = ShapeEnv(assume_static_by_default=True)
        self.mode = FakeTensorMode(
            allow_fallback_kernels=False, allow_non_fake_inputs=True, shape_env=self.environment
        )
        self.symbols: dict[str, Any] = {}
        self._pending: set[Any] = set()
        self._ranges = ranges
        self._stack = CapturedTraceback.extract(skip=1)
        self.reserve(ranges)

    def reserve(self, names: Iterable[str]) -> None:
        """Reserve these names, so that the environment does not use them for new unbacked symbols."""
        for name in names:
            match unbacked_index(name):
                case ("u", index):
                    counter = max(self.environment.unbacked_symint_counter, index + 1)
                    self.environment.unbacked_symint_counter = counter
                case ("zuf", index):
                    counter = max(self.environment.unbacked_symfloat_counter, index + 1)
                    self.environment.unbacked_symfloat_counter = counter

    def declare(self, symbol: Any) -> None:
        """Register a symbol with its range, unless it is already registered."""
        if symbol.name in self.symbols:
            return
        self.symbols[symbol.name] = symbol
        self.environment.var_to_stack[symbol] = self._stack
        if unbacked_index(symbol.name):
            self._pending.add(symbol)
            self.reserve([symbol.name])
        if symbol.name in self._ranges:
            bounds = self._ranges[symbol.name]
            self.environment.constrain_symbol_range(
                symbol, compiler_min=bounds.lower, compiler_max=bounds.upper
            )

    def remember_hint(self, expression: Any, hint: int | float) -> None:
        """Store a symbol's value for the example inputs. Expressions other than symbols are skipped."""
        if expression.is_Symbol and expression not in self.environment.backed_var_to_val:
            self.environment.add_backed_var_to_val(expression, hint)  # type: ignore[arg-type]

    def integer(self, expression: Any, hint: int | None) -> int | torch.SymInt:
        return self.environment.create_symintnode(expression, hint=hint)

    def floating(self, expression: Any, hint: float | None) -> float | torch.SymFloat:
        return self.environment.create_symfloatnode(expression, hint=hint)

    def boolean(self, expression: Any) -> bool | torch.SymBool:
        return self.environment.create_symboolnode(expression)

    def unbacked_bindings(self, value: Any) -> dict[Any, Any]:
        """Return the unbacked symbols in `value` that no earlier value contained, with the path of each."""
        if not self._pending:
            return {}
        return _free_unbacked_symbols_with_path(
            value, (), shape_env=self.environment, pending=self._pending, simplify=True
        )

    def unbound_symbols(self) -> list[str]:
        """Return the unbacked symbols that no value has contained so far."""
        return sorted(symbol.name for symbol in self._pending)

    def keep_promise(self, node: torch.fx.Node) -> None:
        """If a node is an assertion about symbols, add the assertion to the shape environment."""
        argument = node.args[0] if node.args else None
        value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
        if node.target is torch.ops.aten._assert_scalar.default and isinstance(value, torch.SymBool):
            self.environment.guard_or_defer_runtime_assert(value.node.expr, "", node)
        is_size = node.target is torch.ops.aten.sym_constrain_range_for_size.default
        if is_size and isinstance(value, torch.SymInt):
            self.environment._constrain_range_for_size(value.node.expr)


def symbols_of(expression: Any) -> frozenset[sympy.Symbol]:
    """Return the symbols of an expression. An integer has no symbols."""
    return frozenset(getattr(expression, "free_symbols", ()))


def size_value(expression: Any, values: Mapping[str, int]) -> int:
    """Return the exact value of an expression, computed with Python integers.

    Args:
        values: Values of the expression's symbols, by name.
    """
    if isinstance(expression, int):
        return expression
    known = {symbol: values[symbol.name] for symbol in symbols_of(expression)}
    return int(sympy_interp(_Integers, known, expression))


class _Integers(PythonReferenceAnalysis):
    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        return min(a, b)

    @staticmethod
    def maximum(a: Any, b: Any) -> Any:
        return max(a, b)

    @staticmethod
    def modular_indexing(a: Any, b: Any, c: Any) -> Any:
        return a // b % c

    @staticmethod
    def identity(a: Any) -> Any:
        return a

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        return a if condition else b

    @staticmethod
    def trunc_to_int(a: Any, dtype: torch.dtype) -> Any:
        return int(a)

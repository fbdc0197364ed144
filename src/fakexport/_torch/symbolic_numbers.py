"""Symbolic numbers: their expressions, and how to make them again. Seen on torch 2.11 to 2.15.

Source: `torch/fx/experimental/symbolic_shapes.py`, `torch/utils/_sympy/functions.py`.
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
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges
from torch.utils._traceback import CapturedTraceback

from .pytree import tree_leaves

_NAMES = [
    "BitwiseFn_bitwise_and",
    "BitwiseFn_bitwise_or",
    "BitwiseFn_bitwise_xor",
    "CeilDiv",
    "CeilToInt",
    "CleanDiv",
    "FloatPow",
    "FloatTrueDiv",
    "FloorDiv",
    "FloorToInt",
    "Identity",
    "IntTrueDiv",
    "IsNonOverlappingAndDenseIndicator",
    "LShift",
    "Max",
    "Min",
    "Mod",
    "ModularIndexing",
    "OpaqueUnaryFn_acos",
    "OpaqueUnaryFn_asin",
    "OpaqueUnaryFn_atan",
    "OpaqueUnaryFn_cos",
    "OpaqueUnaryFn_cosh",
    "OpaqueUnaryFn_exp",
    "OpaqueUnaryFn_log",
    "OpaqueUnaryFn_log2",
    "OpaqueUnaryFn_sin",
    "OpaqueUnaryFn_sinh",
    "OpaqueUnaryFn_sqrt",
    "OpaqueUnaryFn_tan",
    "OpaqueUnaryFn_tanh",
    "PowByNatural",
    "PythonMod",
    "RShift",
    "RoundDecimal",
    "RoundToInt",
    "ToFloat",
    "TruncToFloat",
    "TruncToInt",
    "Where",
]


_SYMBOLS: tuple[dict[str, bool], ...] = (
    {"positive": True, "integer": True},
    {"integer": True},
    {"positive": True, "real": True},
    {"real": True},
    {},
)


def assumptions_of(symbol: Any) -> dict[str, bool]:
    """Return the assumptions that torch creates a symbol with; sympy derives the others from them.

    Two symbols are equal if the derived ones are, and sympy may return either from its caches.
    """
    derived = symbol.assumptions0
    return next((kind for kind in _SYMBOLS if sympy.Symbol("x", **kind).assumptions0 == derived), derived)


def shape_functions() -> dict[str, Any]:
    """Return the functions of shape expressions that torch adds to sympy's, by the name that it writes."""
    return {name: getattr(functions, name) for name in _NAMES if hasattr(functions, name)}


def infinite_integer() -> Any:
    """Return torch's integer infinity, the bound of a symbol without a bound."""
    return int_oo


def expression_of(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """Return the sympy expression of a symbolic number, simplified by its shape environment."""
    return number.node.expr


def noted_expression_of(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """Return the sympy expression behind a symbolic number as it was noted.

    Much faster than `expression_of`.
    """
    return number.node._expr


def has_unbacked_symbols(number: Any) -> bool:
    """Return whether only running the program tells a number."""
    return not isinstance(number, int) and bool(free_unbacked_symbols(number))


@contextmanager
def without_new_guards(environment: ShapeEnv) -> Iterator[None]:
    """Enter a context in which fakes may be computed with and the environment of their sizes learns nothing.

    Comparisons are answered from the sizes of the example inputs, and new symbols for sizes that only
    running tells belong to no one.
    """
    with environment.suppress_guards(), environment.ignore_fresh_unbacked_symbols():
        yield


@contextmanager
def pending_symbols_dropped(program: ExportedProgram) -> Iterator[None]:
    """After this context a program's shape environment waits for no unbacked symbol that came in it.

    A pass that computes fakes and throws them away leaves their symbols pending, and the next pass over the
    same environment fails with `PendingUnbackedSymbolNotFound` at the first operator that makes some.
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
    """Tell the shape environments of a program's inputs the ranges that the program has for their symbols.

    Torch keeps those of `Dim.DYNAMIC(min=2, max=8)` in `range_constraints` alone: the environment may still
    have the symbol from 2 to infinity, and anyone who asks it for the greatest size learns the example's.
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
    """Return the value that the number had in the example inputs, or None."""
    return number.node.hint


def expression_python(expression: Any) -> str:
    """Return an expression as torch prints it into guards; symbols stand for themselves."""
    return str(PythonPrinter().doprint(expression))


def finite_bound(bound: Any) -> int | None:
    """Return a bound of a range as an integer; None for infinity.

    Raises:
        ValueError: the bound is finite and no integer.
    """
    if bound in (sympy.oo, -sympy.oo, int_oo, -int_oo):
        return None
    if not isinstance(bound, (int, sympy.Integer)):
        raise ValueError(f"the bound {bound} is not an integer")
    return int(bound)


def value_range(lower: int | None, upper: int | None) -> Any:
    """Return a range of integers; None is infinity."""
    return ValueRanges(
        -int_oo if lower is None else sympy.Integer(lower), int_oo if upper is None else sympy.Integer(upper)
    )


def unbacked_index(name: str) -> tuple[str, int] | None:
    """Return `("u", 3)` for the symbol `u3`, whose value only running the program tells.

    None for other symbols.
    """
    for prefix in ("zuf", "u"):
        if name.startswith(prefix) and name[len(prefix) :].isdecimal():
            return prefix, int(name[len(prefix) :])
    return None


class SymbolTable:
    """The symbols of one program that is being read, in one shape environment and one fake mode.

    Args:
        ranges: Symbol name -> range. Applied when the symbol is first declared.
    """

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
        """New unbacked symbols of the environment shall not take these names."""
        for name in names:
            match unbacked_index(name):
                case ("u", index):
                    counter = max(self.environment.unbacked_symint_counter, index + 1)
                    self.environment.unbacked_symint_counter = counter
                case ("zuf", index):
                    counter = max(self.environment.unbacked_symfloat_counter, index + 1)
                    self.environment.unbacked_symfloat_counter = counter

    def declare(self, symbol: Any) -> None:
        """Make a symbol known, with its range. Does nothing for one that is known."""
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
        """What a symbol was in the example inputs; of other expressions torch takes none since 2.15."""
        if expression.is_Symbol and expression not in self.environment.backed_var_to_val:
            self.environment.add_backed_var_to_val(expression, hint)  # type: ignore[arg-type]

    def integer(self, expression: Any, hint: int | None) -> int | torch.SymInt:
        return self.environment.create_symintnode(expression, hint=hint)

    def floating(self, expression: Any, hint: float | None) -> float | torch.SymFloat:
        return self.environment.create_symfloatnode(expression, hint=hint)

    def boolean(self, expression: Any) -> bool | torch.SymBool:
        return self.environment.create_symboolnode(expression)

    def unbacked_bindings(self, value: Any) -> dict[Any, Any]:
        """Return where in a value the unbacked symbols are that no earlier value had."""
        if not self._pending:
            return {}
        return _free_unbacked_symbols_with_path(
            value, (), shape_env=self.environment, pending=self._pending, simplify=True
        )

    def unbound_symbols(self) -> list[str]:
        """Return unbacked symbols that no value has brought so far."""
        return sorted(symbol.name for symbol in self._pending)

    def keep_promise(self, node: torch.fx.Node) -> None:
        """Tell the shape environment what an assertion in the graph promises about symbols."""
        argument = node.args[0] if node.args else None
        value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
        if node.target is torch.ops.aten._assert_scalar.default and isinstance(value, torch.SymBool):
            self.environment.guard_or_defer_runtime_assert(value.node.expr, "", node)
        is_size = node.target is torch.ops.aten.sym_constrain_range_for_size.default
        if is_size and isinstance(value, torch.SymInt):
            self.environment._constrain_range_for_size(value.node.expr)

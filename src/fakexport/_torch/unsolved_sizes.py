"""Equations of a size that sympy cannot solve.

At the end of a trace torch solves the conditions on each size, to tell in its errors what to declare. What
sympy cannot solve does not matter then, unless one of the conditions is an equation: the trace ends in a
NotImplementedError, as that of SAM 2, where a size is 64 and a second equation divides it and rounds. Nothing
but these texts depends on the solution: the program has its conditions anyway. The example fulfils each of
them, and is the solution here where sympy finds none. So a size that is declared to vary is refused, and any
other keeps its conditions. Seen on torch 2.13 and 2.15.

Source: `torch/fx/experimental/symbolic_shapes.py:DimConstraints.solve`.
"""

from __future__ import annotations

from typing import Any

import sympy
from sympy.solvers import inequalities
from torch.fx.experimental.symbolic_shapes import DimConstraints

from .patching import Patches, in_force


def unsolved_equations_pass() -> Patches:
    """Return a context in which a trace does not end in an equation that sympy cannot solve."""
    stock = in_force(DimConstraints, "solve")
    stock_reduce = in_force(inequalities, "reduce_inequalities")

    def solve(constraints: DimConstraints) -> None:
        def reduce(conditions: Any, symbol: sympy.Symbol) -> Any:
            try:
                return stock_reduce(conditions, symbol)
            except NotImplementedError:
                if not any(isinstance(each, sympy.Eq) for each in conditions):
                    raise  # torch goes on.
                return sympy.Eq(symbol, constraints._var_to_val[symbol])

        with Patches({(inequalities, "reduce_inequalities"): reduce}):
            stock(constraints)

    return Patches({(DimConstraints, "solve"): solve})

"""What `fakexport._torch.unsolved_sizes` relies on."""

from __future__ import annotations

import pytest
import sympy
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimConstraints
from torch.utils._sympy.functions import FloorDiv

from fakexport._torch.unsolved_sizes import unsolved_equations_pass

SIZE = sympy.Symbol("s0", integer=True, positive=True)
IS_64 = sympy.Eq(SIZE / 224 + sympy.Rational(5, 7), 1)
# Found in the trace of SAM 2, of whose quotients torch rewrites all but one before it solves them.
ROUNDED = sympy.Eq(SIZE / 16, 2 * FloorDiv(SIZE / 4, 8))
AT_LEAST = sympy.Ge(SIZE, 61)


def constraints_of(*conditions: sympy.Basic, is_declared: bool) -> DimConstraints:
    """What torch solves at the end of a trace whose example size is 64."""
    made = DimConstraints(
        {SIZE: [ConstantSource("height")]},
        {SIZE: sympy.Integer(64)},
        {SIZE} if is_declared else set(),
        {"height": "height"},
    )
    made._univariate_inequalities[SIZE].update(conditions)
    if any(isinstance(condition, sympy.Eq) for condition in conditions):
        made._symbols_with_equalities.add(SIZE)
    return made


@pytest.mark.parametrize("conditions", [(IS_64, ROUNDED, AT_LEAST), (ROUNDED,)])
@pytest.mark.parametrize("is_declared", [False, True])
def test_an_equation_that_sympy_cannot_solve_ends_the_trace_in_stock_torch(
    conditions: tuple[sympy.Basic, ...], is_declared: bool
) -> None:
    with pytest.raises(NotImplementedError, match="cannot be solved"):
        constraints_of(*conditions, is_declared=is_declared).solve()

    constraints = constraints_of(*conditions, is_declared=is_declared)
    with unsolved_equations_pass():
        constraints.solve()
    assert constraints.forced_specializations() == ({"height = height": 64} if is_declared else {})


def test_what_sympy_solves_is_what_it_was() -> None:
    with unsolved_equations_pass():
        solved = constraints_of(IS_64, AT_LEAST, is_declared=True)
        solved.solve()
        compared = constraints_of(AT_LEAST, is_declared=True)
        compared.solve()

    assert solved.forced_specializations() == {"height = height": 64}
    assert compared.forced_specializations() == {}
    assert compared._dynamic_results

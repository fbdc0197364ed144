"""What `fakexport._torch.size_values` relies on: torch's functions of sizes, as Python computes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim, export

from fakexport._torch.size_values import size_value, symbols_of
from fakexport._torch.symbolic_numbers import expression_of

FORMULAS: list[Callable[[Any], Any]] = [
    lambda n: n // 3,
    lambda n: n % 5 + 1,
    lambda n: torch.sym_max(n, 9) * 2,
    lambda n: torch.sym_min(n, 9) + 1,
    lambda n: n * n - n // 2,
    lambda n: (n + 7) // 8 * 8,
    lambda n: torch.sym_int(n / 3) + 1,
    lambda n: math.ceil(n / 4),
    lambda n: -(-n // 4),
]


class _Sized(torch.nn.Module):
    def __init__(self, formula: Callable[[Any], Any]) -> None:
        super().__init__()
        self.formula = formula

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(self.formula(x.shape[0]))


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_size_comes_to_what_python_computes(formula: Callable[[Any], Any]) -> None:
    program = export(_Sized(formula), (torch.zeros(12),), dynamic_shapes=({0: Dim.AUTO},))
    size = program.graph.output_node().args[0][0].meta["val"].shape[0]  # type: ignore[index, union-attr]
    expression = expression_of(size)

    values = [
        size_value(expression, dict.fromkeys(symbols_of(expression), n)) for n in (12, 13, 1000, 10**15)
    ]

    assert values == [formula(n) for n in (12, 13, 1000, 10**15)]


def test_an_integer_is_its_own_value() -> None:
    assert (size_value(7, {}), symbols_of(7)) == (7, frozenset())

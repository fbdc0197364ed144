"""What `exact_sizes` relies on: stock torch still computes these sizes wrong or fails, and ours does not."""

from __future__ import annotations

import contextlib
import sys

import pytest
import sympy
import torch
from torch import nn
from torch._dynamo.source import ConstantSource
from torch.export import Dim
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import DimConstraints
from torch.utils._sympy.functions import CeilToInt, FloorDiv, FloorToInt
from torch.utils._sympy.numbers import int_oo

from fakexport._torch.tracing.exact_sizes import INEXACT_MODULO, exact_sizes

PLACEHOLDER = 9


class Embedded(nn.Module):
    """Puts a feature instead of each placeholder, as models of images and sounds do."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 1024)

    def forward(self, ids, features):
        embeds = self.table(ids)
        mask = (ids == PLACEHOLDER).unsqueeze(-1).expand_as(embeds)
        torch._check(embeds[mask].numel() == features.numel())
        return embeds.masked_scatter(mask, features)


def ids_with(placeholders, rows, length):
    ids = torch.zeros(rows, length, dtype=torch.long)
    ids.view(-1)[:placeholders] = PLACEHOLDER
    return ids


@pytest.mark.parametrize("strict", [False, True])
def test_a_count_of_placeholders_does_not_exceed_its_own_bounds(strict):
    model, inputs = Embedded(), (ids_with(6, 2, 16), torch.randn(6, 1024))
    options = {"dynamic_shapes": ({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO}), "strict": strict}
    with pytest.raises(Exception, match="not a subset of src_bound"):
        torch.export.export(model, inputs, **options)

    with exact_sizes():
        program = torch.export.export(model, inputs, **options)

    for made in (program, program.run_decompositions()):  # Without the context.
        for count in (4, 9):
            ids, features = ids_with(count, 3, 5), torch.randn(count, 1024)
            assert torch.equal(made.module()(ids, features), model(ids, features))
        # More features than placeholders: without the check, the rest of them would be left out.
        with pytest.raises(RuntimeError):
            made.module()(ids_with(4, 3, 5), torch.randn(5, 1024))


def test_only_quotients_of_large_integers_are_rounded_differently():
    ordinary = [
        *(sympy.Integer(7), sympy.Rational(7, 2), sympy.Rational(-7, 2), sympy.Float(2.5)),
        *(int_oo, -int_oo, sympy.Symbol("x")),
    ]
    largest = sympy.Rational(sys.maxsize - 1, 1024)

    with exact_sizes():
        for number in ordinary:
            assert symbolic_shapes.FloorToInt(number) == FloorToInt(number)
            assert symbolic_shapes.CeilToInt(number) == CeilToInt(number)
        assert symbolic_shapes.FloorToInt(largest) == (sys.maxsize - 1) // 1024
        assert symbolic_shapes.CeilToInt(largest) == (sys.maxsize - 1) // 1024 + 1
    assert FloorToInt(largest) > largest


class Chosen(nn.Module):
    """Branches on a number that it computes from a size."""

    def __init__(self, number, compared):
        super().__init__()
        self.number, self.compared = number, compared

    def forward(self, x):
        number = self.number(x.shape[0])
        if number == self.compared:
            return x * 2
        return x * 3 if number < self.compared else x * 5


class Scaled(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, x):
        return x * self.number(x.shape[0])


NUMBERS = {
    "by a float": lambda size: size % 2.5,
    "by a negative float": lambda size: size % -2.5,
    "of a negative number": lambda size: (2 - size) % 2.5,
    "of a float": lambda size: 7.5 % size,
    "of half a size": lambda size: (size / 2) % 2,
    "by half a size": lambda size: 7 % (size / 2),
    "of a product": lambda size: (size * 0.75) % 2,
    "of a sum": lambda size: (size / 4 + 0.5) % 1.5,
    "of another one": lambda size: (size % 2.5) % 1.5,
    "as an integer": lambda size: int(size % 2.5),
    "rounded to tens": lambda size: round(size, -1),
}
INEXACT = {
    "by a tenth": lambda size: size % 0.1,
    "of a third of a size": lambda size: (size / 3) % 2,
    "of a root": lambda size: size**0.5 % 2,
}
VALUES = {
    "by a float": NUMBERS["by a float"],
    "of half a size": NUMBERS["of half a size"],
    "round": lambda n: round(n * 5, -1) + 1000 * round(n, -2) + round(-n, -1) + round(n) + round(n, 2),
    "round of halves": lambda n: round(n / 2),
}


def exported(model):
    return torch.export.export(model, (torch.ones(3, 2),), dynamic_shapes=({0: Dim.AUTO},))


def answers(program, model):
    """Return what a program gives for the sizes that it takes, and what eager mode gives for them."""
    pairs, module = [], program.module()
    for size in range(2, 60):
        x = torch.ones(size, 2)
        with contextlib.suppress(AssertionError):  # The size is refused.
            pairs.append((module(x)[0, 0].item(), model(x)[0, 0].item()))
    return pairs


def test_stock_torch_takes_the_wrong_branch_and_rounds_wrong():
    model = Chosen(NUMBERS["by a float"], 0.5)
    assert (5.0, 2.0) in answers(exported(model), model)

    rounds = Scaled(VALUES["round"])
    assert any(value != expected for value, expected in answers(exported(rounds), rounds))
    halves = exported(Scaled(VALUES["round of halves"]))
    assert round in {node.target for node in halves.graph.nodes}


@pytest.mark.parametrize("compared", ["its value", 1.0])
@pytest.mark.parametrize("number", NUMBERS.values(), ids=list(NUMBERS))
def test_a_condition_is_decided_as_eager_mode_decides_it(number, compared):
    model = Chosen(number, number(3) if isinstance(compared, str) else compared)
    with exact_sizes():
        program = exported(model)

    found = answers(program, model)

    assert model(torch.ones(3, 2))[0, 0].item() in [value for value, _ in found]
    assert all(value == expected for value, expected in found)


def test_a_modulo_that_is_always_zero_fixes_no_size():
    model = Chosen(lambda size: size % 0.5, 0)
    with exact_sizes():
        program = exported(model)

    assert answers(program, model) == [(2.0, 2.0)] * 58


@pytest.mark.parametrize("number", VALUES.values(), ids=list(VALUES))
def test_the_value_of_a_number_is_that_of_eager_mode(number):
    model = Scaled(number)
    with exact_sizes():
        program = exported(model)

    found = answers(program, model)

    assert len(found) == 58
    assert all(value == expected for value, expected in found)
    assert round not in {node.target for node in program.graph.nodes}


@pytest.mark.parametrize("number", INEXACT.values(), ids=list(INEXACT))
def test_a_modulo_that_would_be_rounded_is_refused(number):
    with exact_sizes(), pytest.raises(RuntimeError, match=INEXACT_MODULO):
        exported(Chosen(number, 0.0))


def test_numbers_of_python_are_not_touched():
    with exact_sizes():
        assert (round(15, -1), round(2.5), round(2.567, 1)) == (20, 2, 2.6)


SIZE = sympy.Symbol("s0", integer=True, positive=True)
IS_64 = sympy.Eq(SIZE / 224 + sympy.Rational(5, 7), 1)
# Found in the trace of SAM 2, of whose quotients torch rewrites all but one before it solves them.
ROUNDED = sympy.Eq(SIZE / 16, 2 * FloorDiv(SIZE / 4, 8))
AT_LEAST = sympy.Ge(SIZE, 61)


def constraints_of(*conditions, is_declared):
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
def test_an_equation_that_sympy_cannot_solve_ends_the_trace_in_stock_torch(conditions, is_declared):
    with pytest.raises(NotImplementedError, match="cannot be solved"):
        constraints_of(*conditions, is_declared=is_declared).solve()

    constraints = constraints_of(*conditions, is_declared=is_declared)
    with exact_sizes():
        constraints.solve()
    assert constraints.forced_specializations() == ({"height = height": 64} if is_declared else {})


def test_what_sympy_solves_is_what_it_was():
    with exact_sizes():
        solved = constraints_of(IS_64, AT_LEAST, is_declared=True)
        solved.solve()
        compared = constraints_of(AT_LEAST, is_declared=True)
        compared.solve()

    assert solved.forced_specializations() == {"height = height": 64}
    assert compared.forced_specializations() == {}
    assert compared._dynamic_results

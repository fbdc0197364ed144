"""What `symbolic_numbers` relies on."""

from __future__ import annotations

import math

import pytest
import sympy
import torch
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import PendingUnbackedSymbolNotFound, compute_unbacked_bindings
from torch.utils._sympy.symbol import SymT, make_symbol

from fakexport._torch.tracing.symbolic_numbers import (
    SymbolTable,
    assumptions_of,
    expression_of,
    finite_bound,
    has_unbacked_symbols,
    hint_of,
    infinite_integer,
    keep_ranges,
    noted_expression_of,
    pending_symbols_dropped,
    shape_functions,
    size_value,
    symbols_of,
    unbacked_index,
    value_range,
    without_new_guards,
)
from fakexport.archive.codec.shape_tree import TORCH_FUNCTIONS


def test_a_symbol_has_the_range_and_the_hint_that_it_was_given():
    table = SymbolTable({"s0": value_range(2, 8)})
    symbol = sympy.Symbol("s0", positive=True, integer=True)
    table.declare(symbol)
    table.remember_hint(symbol, 4)

    number = table.integer(2 * symbol, 8)

    assert expression_of(number) == 2 * symbol
    assert hint_of(number) == 8
    assert table.environment.bound_sympy(symbol) == value_range(2, 8)


def test_an_unbacked_symbol_is_bound_by_the_first_value_that_has_it():
    table, symbol = SymbolTable({}), sympy.Symbol("u3", integer=True)
    table.declare(symbol)
    number = table.integer(symbol, None)

    assert table.unbound_symbols() == ["u3"]
    assert table.unbacked_bindings(number) == {symbol: ()}
    assert table.unbacked_bindings(number) == {}
    assert table.environment.unbacked_symint_counter == 4


def test_a_promise_about_a_symbol_is_kept():
    table, symbol = SymbolTable({}), sympy.Symbol("u0", integer=True)
    table.declare(symbol)
    number = table.integer(symbol, None)
    graph = torch.fx.Graph()
    size, condition = graph.placeholder("size"), graph.placeholder("condition")
    size.meta["val"], condition.meta["val"] = number, number <= 7

    table.keep_promise(graph.call_function(torch.ops.aten.sym_constrain_range_for_size.default, (size,)))
    table.keep_promise(graph.call_function(torch.ops.aten._assert_scalar.default, (condition, "")))

    assert table.environment.bound_sympy(symbol) == value_range(0, 7)


def test_bounds_names_and_functions():
    assert finite_bound(infinite_integer()) is None
    assert finite_bound(-sympy.oo) is None
    assert finite_bound(sympy.Integer(3)) == 3
    with pytest.raises(ValueError, match="not an integer"):
        finite_bound(sympy.Rational(1, 2))
    assert [unbacked_index(name) for name in ("u12", "zuf0", "s0")] == [("u", 12), ("zuf", 0), None]
    assert shape_functions(TORCH_FUNCTIONS).keys() == TORCH_FUNCTIONS


class Calls(torch.nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.function = forward

    def forward(self, x):
        return self.function(x)


def exported(forward):
    return torch.export.export(Calls(forward), (torch.zeros(3, 4),), dynamic_shapes=({0: Dim.AUTO},))


def values(program):
    return {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}


def test_only_unbacked_symbols_are_unbacked():
    found = values(exported(lambda x: x.nonzero()))
    size = found["x"].shape[0]

    assert noted_expression_of(size) == expression_of(size)
    assert has_unbacked_symbols(found["nonzero"].shape[0])
    assert not has_unbacked_symbols(size)
    assert not has_unbacked_symbols(3)


def test_an_environment_learns_nothing_from_what_is_run_without_new_guards():
    x = values(exported(lambda x: x + 1))["x"]
    environment = x.fake_mode.shape_env
    before = len(environment.guards)

    with x.fake_mode, without_new_guards(environment):
        assert x.shape[0] == 3
        x.nonzero()
    guards = len(environment.guards)
    with x.fake_mode:
        assert x.shape[0] == 3

    assert guards == before
    assert environment.pending_fresh_unbacked_symbols == []
    assert len(environment.guards) == before + 1


def test_symbols_of_fakes_that_nobody_keeps_stay_pending_unless_they_are_dropped():
    program = exported(lambda x: x + 1)
    x = values(program)["x"]
    environment = x.fake_mode.shape_env

    with pending_symbols_dropped(program), x.fake_mode:
        environment.create_unbacked_symint()
        assert len(environment.pending_fresh_unbacked_symbols) == 1
    assert environment.pending_fresh_unbacked_symbols == []

    with x.fake_mode:
        environment.create_unbacked_symint()
    with pytest.raises(PendingUnbackedSymbolNotFound):
        compute_unbacked_bindings(environment, x)


def test_an_environment_has_not_the_range_of_a_size_that_another_input_follows():
    """If the first assertion fails, torch keeps it, and `keep_ranges` can go."""

    class Sum(torch.nn.Module):
        def forward(self, x, y):
            return x + y

    dims = ({0: Dim.DYNAMIC(min=2, max=8)}, {0: Dim.AUTO})
    program = torch.export.export(Sum(), (torch.zeros(3), torch.zeros(3)), dynamic_shapes=dims)
    size = next(iter(values(program).values())).shape[0]
    environment, symbol = size.node.shape_env, expression_of(size)

    assert finite_bound(environment.var_to_range[symbol].upper) is None
    assert program.range_constraints[symbol] == value_range(2, 8)

    keep_ranges(program)

    assert environment.var_to_range[symbol] == value_range(2, 8)


@pytest.mark.parametrize(
    "made",
    [
        make_symbol(SymT.SIZE, 7, positive=True, integer=True),
        make_symbol(SymT.SIZE, 7, positive=None, integer=True),
        make_symbol(SymT.UNBACKED_INT, 0, integer=True),
        make_symbol(SymT.FLOAT, 0, positive=None, real=True),
        make_symbol(SymT.UNBACKED_FLOAT, 0),
        sympy.Symbol("x"),
    ],
    ids=str,
)
def test_the_assumptions_that_torch_makes_a_symbol_with(made):
    equal = sympy.Symbol(made.name, **made.assumptions0)

    again = sympy.Symbol(equal.name, **assumptions_of(equal))

    assert again == made
    assert sympy.srepr(again) == sympy.srepr(made)


FORMULAS = [
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


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_size_comes_to_what_python_computes(formula):
    model = Calls(lambda x: x.new_zeros(formula(x.shape[0])))
    program = torch.export.export(model, (torch.zeros(12),), dynamic_shapes=({0: Dim.AUTO},))
    expression = expression_of(program.graph.output_node().args[0][0].meta["val"].shape[0])

    for n in (12, 13, 1000, 10**15):
        assert size_value(expression, {symbol.name: n for symbol in symbols_of(expression)}) == formula(n)
    assert (size_value(7, {}), symbols_of(7)) == (7, frozenset())

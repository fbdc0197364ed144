"""What `fakexport._torch.symbolic_numbers` relies on."""

from __future__ import annotations

import pytest
import sympy
import torch

from fakexport._torch.symbolic_numbers import (
    SymbolTable,
    expression_of,
    finite_bound,
    hint_of,
    infinite_integer,
    shape_functions,
    unbacked_index,
    value_range,
)


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
    table = SymbolTable({})
    symbol = sympy.Symbol("u3", integer=True)
    table.declare(symbol)
    number = table.integer(symbol, None)

    assert table.unbound_symbols() == ["u3"]
    assert table.unbacked_bindings(number) == {symbol: ()}
    assert table.unbacked_bindings(number) == {}
    assert table.environment.unbacked_symint_counter == 4


def test_a_promise_about_a_symbol_is_kept():
    table = SymbolTable({})
    symbol = sympy.Symbol("u0", integer=True)
    table.declare(symbol)
    number = table.integer(symbol, None)
    graph = torch.fx.Graph()
    size, condition = graph.placeholder("size"), graph.placeholder("condition")
    size.meta["val"], condition.meta["val"] = number, number <= 7

    table.keep_promise(graph.call_function(torch.ops.aten.sym_constrain_range_for_size.default, (size,)))
    table.keep_promise(graph.call_function(torch.ops.aten._assert_scalar.default, (condition, "")))

    assert table.environment.bound_sympy(symbol) == value_range(0, 7)


def test_infinity_is_no_bound():
    assert finite_bound(infinite_integer()) is None
    assert finite_bound(-sympy.oo) is None
    assert finite_bound(sympy.Integer(3)) == 3
    with pytest.raises(ValueError, match="no integer"):
        finite_bound(sympy.Rational(1, 2))


def test_names_tell_which_symbols_have_no_value():
    assert unbacked_index("u12") == ("u", 12)
    assert unbacked_index("zuf0") == ("zuf", 0)
    assert unbacked_index("s0") is None


def test_torchs_functions_are_there():
    assert {"FloorDiv", "Mod", "Max", "Min", "PowByNatural", "CeilToInt"} <= shape_functions().keys()

"""What `symbolic_arithmetic` relies on: arithmetic of two expressions depends on nothing else."""

from __future__ import annotations

import operator

import pytest
import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from fakexport._torch.speed import symbolic_arithmetic
from fakexport._torch.speed.symbolic_arithmetic import SymbolicArithmetic

OPERATORS = (operator.add, operator.mul, operator.sub, operator.eq, operator.ge, operator.lt, torch.sym_max)


def sizes():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2)
    return mode.from_tensor(torch.ones(5, 7), symbolic_context=context).shape


def facts(number):
    node = number.node
    return type(number), node.expr, node.pytype, node.hint, node.constant, node._optimized_summation


@pytest.mark.parametrize("calculate", OPERATORS, ids=lambda each: each.__name__)
def test_a_remembered_result_is_that_of_stock_torch(calculate):
    a, b = sizes()
    pairs = [(a, b), (b, a), (a, 2), (a * 2, b), (a, a)]
    expected = [facts(calculate(*pair)) for pair in pairs if calculate is not operator.eq or pair[0] is not a]
    arithmetic = SymbolicArithmetic()

    with arithmetic.remembered():
        for _ in range(2):
            found = [
                facts(calculate(*pair)) for pair in pairs if calculate is not operator.eq or pair[0] is not a
            ]
            assert found == expected

    assert arithmetic.operations >= 2 * len(found)


@pytest.mark.parametrize("calculate", [operator.and_, operator.or_], ids=lambda each: each.__name__)
def test_a_remembered_condition_is_that_of_stock_torch(calculate):
    a, b = sizes()
    pairs = [(a > 9, b > 9), (b > 9, a > 9), (a > 9, a > 9), (a < 9, b > 9)]
    expected = [facts(calculate(*pair)) for pair in pairs]
    arithmetic = SymbolicArithmetic()

    with arithmetic.remembered():
        assert [facts(calculate(*pair)) for _ in range(2) for pair in pairs] == expected * 2

    assert arithmetic.operations == 2 * len(pairs)


def test_every_operation_has_its_name():
    """torch appends an underscore to some names. One that is missing is not remembered, in silence."""
    assert all(hasattr(SymNode, f"_{method}") for method in symbolic_arithmetic._METHODS)


def test_a_number_is_constant_once_its_symbol_is():
    a, _ = sizes()
    node, environment = (a * 2).node, a.node.shape_env

    with SymbolicArithmetic().remembered():
        before = [node.maybe_as_int() for _ in range(2)]
        environment._set_replacement(a.node.expr, sympy.Integer(5), "it is 5")
        after = [node.maybe_as_int() for _ in range(2)]

    assert (before, after) == ([None, None], [10, 10])


def test_results_are_nodes_of_their_own():
    a, b = sizes()

    with SymbolicArithmetic().remembered():
        first, second = a * b, a * b

    assert first.node is not second.node
    assert first.node.shape_env is a.node.shape_env


def test_contiguity_is_computed_once_for_all_copies_of_a_tensor():
    """A copy shares what a tensor knows, so the memo can ask a copy whether a tensor knows it."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2)
    x = mode.from_tensor(torch.ones(5, 7), symbolic_context=context)
    arithmetic = SymbolicArithmetic()

    def asked(tensor):
        before = arithmetic.operations
        tensor.is_contiguous()
        return arithmetic.operations - before

    with mode, arithmetic.remembered():
        fresh = torch.empty_strided(x.shape, (x.shape[1], 1))
        assert asked(fresh.data) > 0
        assert asked(fresh) > 0
        assert asked(fresh.data) == 0

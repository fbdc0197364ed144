"""The text of a shape expression without sympy, compared with the text that sympy prints."""

from __future__ import annotations

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy import functions

from fakexport.archive.codec.shape_text import shape_text
from fakexport.archive.codec.shape_tree import SYMPY_FUNCTIONS, TORCH_FUNCTIONS, is_truth, read_shape
from fakexport.archive.codec.values import _Text
from fakexport.files.documents import DocumentError

S, T = (sympy.Symbol(name, positive=True, integer=True) for name in ("s0", "s77"))
U = sympy.Symbol("u0", integer=True)


def printed(expression):
    return shape_text(read_shape(_Text().doprint(expression)))


LEAVES = st.one_of(st.sampled_from([S, T, U]), st.integers(-9, 300).map(sympy.Integer))


def combined(parts):
    """Expressions over parts, as a trace of sizes makes them."""
    return st.one_of(
        st.tuples(parts, parts).map(lambda pair: pair[0] + pair[1]),
        st.tuples(parts, parts).map(lambda pair: pair[0] * pair[1]),
        st.tuples(parts, parts).map(lambda pair: pair[0] - pair[1]),
        st.tuples(parts, st.integers(1, 3)).map(lambda pair: pair[0] ** pair[1]),
        st.tuples(parts, st.integers(2, 9)).map(lambda pair: functions.FloorDiv(*map(sympy.sympify, pair))),
        st.tuples(parts, st.integers(2, 9)).map(
            lambda pair: functions.Mod(pair[0] ** 2, sympy.Integer(pair[1]))
        ),
        st.tuples(parts, st.integers(2, 9)).map(lambda pair: functions.PythonMod(*map(sympy.sympify, pair))),
        # sympy writes the arguments of nested maxima in one order, and prints them in another.
        st.tuples(LEAVES, LEAVES).map(lambda pair: functions.Max(pair[0], 2 * pair[1] + 3)),
        st.tuples(LEAVES, LEAVES).map(lambda pair: functions.Min(*pair)),
        parts.map(lambda part: functions.CeilToInt(functions.IntTrueDiv(part, sympy.Integer(7)))),
        parts.map(lambda part: functions.TruncToInt(sympy.Float(0.75) * functions.ToFloat(part))),
    )


EXPRESSIONS = st.recursive(LEAVES, combined, max_leaves=8)


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS)
def test_an_expression_of_sizes_has_the_text_of_sympy(expression):
    assert printed(expression) == str(expression)


RELATIONS = (sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(RELATIONS), LEAVES, LEAVES), min_size=1, max_size=3), st.booleans())
def test_a_condition_has_the_text_of_sympy(parts, is_or):
    relations = [relation(left, right) for relation, left, right in parts]
    expression = (sympy.Or if is_or else sympy.And)(*relations)

    assert printed(expression) == str(expression)
    assert is_truth(read_shape(_Text().doprint(expression)))


@pytest.mark.parametrize(
    "expression",
    [
        sympy.Float(0.1) * S,
        sympy.Float(1e-7) * S,
        sympy.Float(1.5e22) * S + sympy.Float(2),
        S / 2,
        -S / 3 + sympy.Rational(1, 2),
        S**-1 * T,
        1 / (S * T),
        sympy.sqrt(S) + 1,
        1 / sympy.sqrt(S),
        sympy.Not(sympy.Or(S > 3, T > 4)),
        sympy.Piecewise((S, S > 3), (T, True)),
        functions.Identity(S + 1) * 2,
        functions.OpaqueUnaryFn_sqrt(functions.ToFloat(S)),
        sympy.true,
        sympy.oo,
    ],
    ids=str,
)
def test_a_rare_expression_has_the_text_of_sympy(expression):
    assert printed(expression) == str(expression)


def test_text_of_people_is_read_too():
    assert shape_text(read_shape("s0*2 + u1 - 3")) == "s0*2 + u1 - 3"


@pytest.mark.parametrize("name", sorted(TORCH_FUNCTIONS | SYMPY_FUNCTIONS))
def test_every_function_is_printed(name):
    assert shape_text(read_shape(f"{name}(s0, 2)"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os')", "not a supported function"),
        ("s0.__class__", "not a shape expression"),
        ("9" * 100, "too large"),
        ("Rational(1, 0)", "division by zero"),
        ("+".join(["s0"] * 5000), "nested too deeply"),
        ("-" * 9000 + "1", "nested too deeply|not an expression"),
        (f"Max({', '.join(['s0'] * 300)})", "the limit is 200"),
        ("Symbol('s0', secret=True)", "not an assumption"),
    ],
)
def test_other_text_is_refused(text, message):
    with pytest.raises(DocumentError, match=message):
        shape_text(read_shape(text))

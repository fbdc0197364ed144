"""Conditions on inputs: read from torch's text without evaluating it, computed, written and read back."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakexport.exporting.guards import conditions_of
from fakexport.exporting.interface import (
    Condition,
    InputLeaf,
    Operation,
    Question,
    UnreadableCondition,
    conditions_from_json,
    conditions_to_json,
    read_condition,
)
from fakexport.files.documents.document_error import DocumentError
from fakexport.files.documents.parsing import parse_json
from tests.guarded_models import CASES

LEAVES = (
    InputLeaf("x", ("x",), 2),
    InputLeaf("d_k_0", ("d", "k", 0), 3),
    InputLeaf("n", ("n",), None),
    InputLeaf("three", ("three",), None, 3),
    InputLeaf("args_1", ("args_1",), 1),
    InputLeaf("cache_keys_0", None, 4),
)
SIZES = {"x": (5, 12), "d_k_0": (2, 3, 4), "args_1": (7,), "cache_keys_0": (1, 2, 3, 4)}


def answer(question):
    if question.kind == "value":
        return 6
    strides = torch.empty(SIZES[question.input], device="meta").stride()
    return (SIZES[question.input] if question.kind == "size" else strides)[question.dim]


@pytest.mark.parametrize(
    ("guard", "text", "holds"),
    [
        ("(L['x'].size()[1] % 2) == 0", "x.shape[1] % 2 == 0", True),
        ("L['x'].shape[0] >= 6", "x.shape[0] >= 6", False),
        ("L['x'].stride()[0] == 12", "x.stride(0) == 12", True),
        ("L['d']['k'][0].size()[2] == 4", "d_k_0.shape[2] == 4", True),
        ("L['flat_args'][1].size()[2] == 5", "d_k_0.shape[2] == 5", False),
        ("L['args'][1].size()[0] < 8", "args_1.shape[0] < 8", True),
        ("L['cache']['keys'][0].size()[3] == 4", "cache_keys_0.shape[3] == 4", True),
        ("L['cache'].keys[0].size()[3] == 4", "cache_keys_0.shape[3] == 4", True),
        ("L['n'] >= 0 and L['n'] <= L['x'].size()[0]", "n >= 0 and n <= x.shape[0]", False),
        ("L['n'] == L['three'] + L['three']", "n == 3 + 3", True),
        ("0 <= L['n'] < 7", "0 <= n and n < 7", True),
        (
            "math.trunc(torch.sym_float(L['x'].size()[1]) ** 0.5) == 3",
            "int(float(x.shape[1]) ** 0.5) == 3",
            True,
        ),
        ("L['x'].size()[1] // (L['x'].size()[0] // 6) == 1", "x.shape[1] // (x.shape[0] // 6) == 1", False),
        ("not (max(1, L['n']) == -L['n'])", "not max(1, n) == -n", True),
        ("L['x'].size()[1] - (L['n'] - 1) == 7", "x.shape[1] - (n - 1) == 7", True),
        ("L['n'] <= math.inf", "n <= 9223372036854775807", True),
    ],
)
def test_a_guard_is_read_worded_and_computed(guard, text, holds):
    condition = read_condition(guard, LEAVES)

    assert (str(condition), condition.holds(answer)) == (text, holds)


def test_what_no_call_can_change_is_no_condition():
    assert read_condition("L['three'] == 3", LEAVES) is None


@pytest.mark.parametrize(
    "guard",
    [
        "PWNED()",
        "L['x'].size()[PWNED()]",
        "L['x'].__class__",
        "L['x'].size(PWNED())[0] > 0",
        "max(PWNED(), 1)",
        "(lambda: PWNED())()",
        "[PWNED() for _ in (1,)]",
        "L['y'].size()[0] > 0",
        "L['x'].size()[0] > 0\nPWNED()",
        "L['x'].size()[2] > 0",
        "L['x'].size()[-1] > 0",
        "L['x'] > 0 and __import__('os')",
        "(yield)",
        "x := 3",
        "9 ** 9 ** 9 > L['n']",
        "2 ** L['n'] > 0",
        "L['n'] ** 65 > 0",
        "L['n'] < 99999999999999999999",
        "L['n'] < 'a'",
        "torch.load > L['n']",
        "math.factorial(L['n']) > 0",
        "L['n'] in (1, 2)",
        "(" * 400 + "1" + ")" * 400,
        "L['n'] +" * 5000 + "1",
        "-(" * 60 + "L['n']" + ")" * 60,
        "L['n'] > 0 " + "and L['n'] > 0 " * 3000,
    ],
)
def test_what_is_no_condition_is_refused_and_never_run(guard):
    with pytest.raises(UnreadableCondition, match="fakexport cannot check the condition"):
        read_condition(guard, LEAVES)


def test_two_inputs_that_a_path_could_mean_are_not_guessed_between():
    leaves = (InputLeaf("c_k_0", None, 2), InputLeaf("c_k_0_1", None, 2))

    with pytest.raises(UnreadableCondition, match="the program has no input"):
        read_condition("L['c']['k'][0].size()[0] > 3", leaves)


numbers = st.one_of(
    st.integers(-9, 99),
    st.sampled_from([0.5, 1.5, 2.0]),
    st.sampled_from([Question("x", "size", 0), Question("x", "size", 1), Question("x", "stride", 0)]),
)
BINARY = ["-", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=", "&", "|", "^"]
FUNCTIONS = ["neg", "not", "abs", "round", "float", "floor", "ceil", "trunc", "sqrt", "log2"]
expressions = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.builds(lambda sign, a, b: Operation(sign, (a, b)), st.sampled_from(BINARY), inner, inner),
        st.builds(lambda sign, a: Operation(sign, (a,)), st.sampled_from(FUNCTIONS), inner),
        st.builds(
            lambda sign, parts: Operation(sign, tuple(parts)),
            st.sampled_from(["+", "*", "and", "or", "min", "max"]),
            st.lists(inner, min_size=2, max_size=3),
        ),
        st.builds(lambda a, b, c: Operation("if", (a, b, c)), inner, inner, inner),
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(expressions)
def test_the_words_of_a_condition_mean_to_python_what_is_computed(expression):
    condition = Condition(expression)
    try:
        wanted = bool(eval(str(condition), {"x": torch.empty(5, 12), "math": math}))
    except (ArithmeticError, ValueError, TypeError):
        wanted = False

    powers = "**" in str(condition)  # Python computes large and complex ones, which no condition may have.

    assert condition.holds(answer) == wanted or powers


@settings(max_examples=200, deadline=None)
@given(expressions)
def test_json_gives_a_condition_back(expression):
    written = json.dumps(conditions_to_json((Condition(expression),)))

    assert conditions_from_json(parse_json(written.encode()), {"x": 2}) == (Condition(expression),)


@pytest.mark.parametrize(
    "check",
    [
        None,
        "x",
        [],
        ["eval", 1],
        ["+", 1],
        ["%", 1, 2, 3],
        ["if", 1, 2],
        {"input": "y", "ask": "size", "dim": 0},
        {"input": "x", "ask": "size", "dim": 2},
        {"input": "x", "ask": "size", "dim": -1},
        {"input": "x", "ask": "__class__", "dim": 0},
        {"input": "x", "ask": "size"},
        1e300,
        ["neg", *[]],
    ],
)
def test_hostile_json_is_refused(check):
    with pytest.raises(DocumentError):
        conditions_from_json([{"text": "", "check": check}], {"x": 2})


def test_a_deep_tree_is_refused():
    check = 1
    for _ in range(60):
        check = ["neg", check]

    with pytest.raises(DocumentError, match="levels deep"):
        conditions_from_json([{"text": "", "check": check}], {"x": 2})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("parity", ["x.shape[1] % 2 == 0"]),
        ("shorter", ["x.shape[1] < y.shape[1]"]),
        ("sum", ["(x.shape[1] + y.shape[1]) % 3 == 0"]),
        ("nested", ["parts_pair_0.shape[1] % 2 == 0"]),
        ("scaled", []),
    ],
)
def test_the_conditions_of_a_program(name, words):
    assert [str(condition) for condition in conditions_of(CASES[name].export())] == words


def test_a_size_that_is_a_formula_of_others_is_a_condition():
    class Flat(torch.nn.Module):
        def forward(self, x, y):
            return x.reshape(-1, 4) + y

    auto = torch.export.Dim.AUTO
    shapes = ({0: auto, 1: auto}, {0: auto})
    program = torch.export.export(Flat(), (torch.zeros(3, 5, 4), torch.zeros(15, 4)), dynamic_shapes=shapes)
    program._guards_code = []

    assert str(conditions_of(program)[0]) in (
        "y.shape[0] == x.shape[0] * x.shape[1]",
        "y.shape[0] == x.shape[1] * x.shape[0]",
    )

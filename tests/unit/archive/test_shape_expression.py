"""The grammars of shape expressions and of conditions: what torch prints, and what it must not be told."""

from __future__ import annotations

import time

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy import functions

from fakexport.archive.codec.guard_text import checked_guard
from fakexport.archive.codec.shape_expression import ShapeExpressions
from fakexport.files.documents.document_error import DocumentError

S, T = (sympy.Symbol(name, positive=True, integer=True) for name in ("s0", "s77"))
U = sympy.Symbol("u0", integer=True)


def read(text):
    return ShapeExpressions(lambda symbol: None).read(text)


@pytest.mark.parametrize(
    "expression",
    [
        sympy.Integer(3),
        S,
        U,
        S * 16384,
        S**2 - T + 1,
        functions.FloorDiv(S + 3, 2),
        functions.FloorDiv(functions.FloorDiv(S - 1, 2) * T, 4) + 1,
        functions.Mod(S, 8),
        functions.PythonMod(U, 8),
        functions.Max(1, U),
        functions.Min(S, T),
        functions.CeilToInt(functions.IntTrueDiv(S, T)),
        functions.PowByNatural(U, 2),
        functions.ToFloat(S) * sympy.Float(0.5),
        functions.TruncToInt(functions.FloatTrueDiv(functions.ToFloat(S), sympy.Float(1.5))),
        sympy.Eq(S, T),
        sympy.And(S > 3, T <= U),
        sympy.Or(sympy.Ne(S, 4), sympy.Not(U < 2)),
        sympy.true,
    ],
    ids=str,
)
def test_what_torch_prints_is_read(expression):
    assert read(sympy.srepr(expression)) == expression


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("2*s0 + 1", 2 * S + 1),
        ("(s0 + 3)//2", functions.FloorDiv(S + 3, 2)),
        ("s0**2 - s77", S**2 - T),
        ("-s0 + 3", 3 - S),
        ("Max(1, u0)", functions.Max(1, U)),
        ("s0 % 8", functions.Mod(S, 8)),
        ("s0 >= 3", S >= 3),
    ],
)
def test_the_way_people_write_is_read(text, expression):
    assert read(text) == expression


HOSTILE = [
    "__import__('os').system('true')",
    "().__class__",
    "s0.args",
    "lambda: 0",
    "[s0]",
    "eval('1')",
    "Symbol('s0', positive=1)",
    "Symbol('s0', evil=True)",
    "Symbol('a b')",
    "Function('f')(s0)",
    "Integer('3')",
    "Integer(9)**Integer(9)**Integer(9)",
    "Pow(Integer(9), Pow(Integer(9), Integer(9)))",
    "LShift(Integer(1), Integer(1000000000000))",
    "9" * 200,
    "1e99999999999",
    "Rational(1, 0)",
    "Add(true, s0)",
    "(" * 5000,
    "-" * 5000 + "s0",
    "not " * 3000 + "s0",
    "Mul(" * 200,
    "s0 + " * 5000 + "s0",
    "2**" * 300 + "2",
    "x" * 30_000,
    "Add(s0",
    "Add(s0,)",
    "s0 s1",
    "s0 = 3",
    "'s0'",
    "Symbol('s0', positive=True) + Symbol('s0', integer=True)",
    "",
    "\x00",
    "s0; s0",
    "FloorDiv(s0, 0)",
    "Mod(s0)",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:30]))
def test_other_texts_are_refused_at_once(text):
    start = time.perf_counter()
    with pytest.raises(DocumentError):
        read(text)
    assert time.perf_counter() - start < 2


WORDS = ["s0", "u0", "3", "-", "+", "*", "**", "//", "%", "(", ")", ",", "Add(", "Pow(", "FloorDiv(", "Max("]
WORDS += ["Symbol('s1', integer=True)", "==", "<", "and", "not", "0", "Integer(7)", "LShift(", "Mod(", "or"]


@settings(max_examples=300, deadline=4000)
@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join))
def test_every_text_is_read_or_refused(text):
    message = ""
    try:
        read(text)
    except DocumentError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize(
    "text",
    [
        "L['attention_mask'].size()[1] == 1 or L['input_ids'].size()[1] == L['attention_mask'].size()[1]",
        "L['x'].size()[0] // 2 >= 3",
        "((L['a'][0]['k'].size()[0] + 3) % 8) != 0",
        "not (L['x'].stride()[0] == 1) and L['x'].storage_offset() == 0",
        "math.ceil(torch.sym_float(L['x'].size()[0]) * 0.5) <= max(4, L['y'].size()[-1])",
        "L['n'] > 2",
        "L['x'].size()[0]**2 <= 64",
        "torch.sym_float(L['x'].size()[0]) ** (-0.5) == 0.25",
        "-9 <= 3*L['x'].size()[0]",
    ],
)
def test_a_condition_of_torch_is_let_through(text):
    assert checked_guard(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "L['x'].__class__",
        "L['x'].size().__class__",
        "L['x'].data_ptr()",
        "L['x'].size(0)",
        "torch.load('x')",
        "torch.ops.aten.add(L['x'], 1)",
        "math.factorial(9)",
        "L['a\"b'].size()[0]",
        "L['a'][\"b\"]",
        "L['x y'].size()[0] == 1",
        "L['x']['a);f(b'].size()[0] == 1",
        "L['import'].size()[0] == 1",
        "open('x')",
        "lambda: 0",
        "[1]",
        "L",
        "L['x'] if 1 else 2",
        "1; 2",
        "(" * 300 + "1" + ")" * 300,
        "1 ==",
        "f'{1}'",
        "L['x'] := 1",
        "# comment",
        "9**9**9**9 == 1",
        "((9**16)**16)**16 == 1",
        "1" + "0" * 80 + " == 1",
        "9**L['n'] == 1",
        "1 << 99999999999 == 1",
        "1\n2",
    ],
)
def test_another_condition_is_refused(text):
    with pytest.raises(DocumentError):
        checked_guard(text)

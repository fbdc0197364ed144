"""Columns are found where a place has none, and conditions are told apart."""

from __future__ import annotations

import pytest

from fakexport.rules.diagnostics import Span, is_formatted, source_text, whole_comprehension, with_columns
from fakexport.rules.diagnostics.statement import condition_at, is_loop_test, is_negated

SOURCE = """
def forward(x, ä):
    if x.sum() > 0:
        ä = x.reshape(4, 2)
    while not x.all():
        x = f(
            x)
    for _ in range(int(x)):
        assert x.any()
    return [x, ä]


def other(x, y):
    if y: return x
    return -x if y else x
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(SOURCE)
    return str(file)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (3, "x.sum() > 0"),
        (4, "x.reshape(4, 2)"),
        (5, "not x.all()"),
        (8, "range(int(x))"),
        (9, "x.any()"),
        (10, "[x, ä]"),
        (14, "y"),
    ],
)
def test_a_line_without_columns_gets_those_of_what_it_computes(path, line, text):
    span = with_columns(Span(path, line, origin="guard"))

    assert source_text(span) == text
    assert span.origin == "source"


def test_a_value_on_several_lines_has_a_first_column_only(path):
    span = with_columns(Span(path, 6, origin="guard"))

    assert (span.column, span.end_column) == (13, None)


def test_columns_that_are_known_stay(path):
    span = Span(path, 3, 8, 9, origin="traceback")

    assert with_columns(span) is span


@pytest.mark.parametrize(
    ("span", "text"), [((5, 5, None), "not x.all()"), ((14, 5, 19), "y"), ((15, 12, 26), "y")]
)
def test_what_python_names_as_a_whole_becomes_its_condition(path, span, text):
    assert source_text(with_columns(Span(path, *span, origin="traceback"))) == text


@pytest.mark.parametrize("line", [1, 7, 99])
def test_a_line_where_no_statement_starts_has_no_columns(path, line):
    span = Span(path, line)

    assert with_columns(span) is span


def test_a_file_that_is_not_there_or_no_python_gives_nothing(tmp_path):
    (tmp_path / "model.py").write_text("def (")

    for span in (Span("nowhere.py", 1), Span(str(tmp_path / "model.py"), 1)):
        assert with_columns(span) is span
        assert condition_at(span) is None


def test_conditions_are_known_by_their_place(path):
    branch, loop, value = (with_columns(Span(path, line)) for line in (3, 5, 4))

    assert [condition_at(span) is not None for span in (branch, loop, value)] == [True, True, False]
    assert [is_loop_test(span) for span in (branch, loop, value)] == [False, True, False]
    assert [is_negated(span) for span in (branch, loop, value)] == [False, True, False]


TEXTS = """
def forward(x):
    a = f"{x.mean().item():.2f} {x}"
    b = f'''
        {x.item()}
    '''
    c = int(x); d = "text"
    return a, b
"""


@pytest.mark.parametrize(
    ("line", "column", "end_column", "is_inside"),
    [
        (3, 9, 37, True),
        (3, 11, 32, True),
        (3, 33, 36, True),
        (3, 5, 37, False),
        (3, None, None, True),
        (5, 9, 19, True),
        (7, 9, 15, False),
        (7, 21, 27, False),
        (8, None, None, False),
    ],
)
def test_an_f_string_covers_its_parts(tmp_path, line, column, end_column, is_inside):
    path = tmp_path / "model.py"
    path.write_text(TEXTS)

    assert is_formatted(Span(str(path), line, column, end_column, origin="traceback")) == is_inside


LOOPS = """
def forward(x, ids):
    y = [x * i for i in ids.unique()]
    for i in ids.unique():
        y = y + i
    return y, {i: x for i in ids}, sum(i for i in [j for j in x.tolist()])
"""


@pytest.mark.parametrize(
    ("line", "columns", "text"),
    [
        (3, (25, 37), "[x * i for i in ids.unique()]"),
        (3, (9, 38), "[x * i for i in ids.unique()]"),
        (3, (10, 15), "x * i"),
        (4, (14, 26), "ids.unique()"),
        (6, (30, 33), "{i: x for i in ids}"),
        (6, (63, 73), "[j for j in x.tolist()]"),
        (6, (51, 74), "[j for j in x.tolist()]"),
    ],
)
def test_what_a_comprehension_runs_over_stands_for_the_whole(tmp_path, line, columns, text):
    path = tmp_path / "model.py"
    path.write_text(LOOPS)

    span = whole_comprehension(Span(str(path), line, *columns, origin="traceback"))

    assert source_text(span) == text

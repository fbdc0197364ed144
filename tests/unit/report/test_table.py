"""Text in columns."""

from fakexport.report.table import layout, wide_layout, wrapped

ROWS = [("target", "nodes", "device"), ("cpu", "1,340", "cpu"), ("H100", "9", "cuda:0")]


def test_columns_are_aligned_without_trailing_blanks():
    assert layout(ROWS, right=[1], indent="  ") == [
        "  target  nodes  device",
        "  cpu     1,340  cpu",
        "  H100        9  cuda:0",
    ]


def test_a_table_that_fits_stays_in_one_piece():
    assert wide_layout(ROWS, width=21, right=[1]) == layout(ROWS, right=[1])


def test_a_table_that_is_too_wide_goes_on_below_with_its_first_column():
    assert wide_layout(ROWS, width=20, right=[1]) == [
        "target  nodes",
        "cpu     1,340",
        "H100        9",
        "",
        "target  device",
        "cpu     cpu",
        "H100    cuda:0",
    ]


def test_a_column_that_fits_nowhere_still_appears():
    assert wide_layout([("a", "b" * 50, "c")], width=10) == [f"a  {'b' * 50}", "", "a  c"]


def test_no_rows_are_no_lines():
    assert layout([]) == wide_layout([], width=80) == []


def test_long_words_are_not_broken():
    assert wrapped("one aten._grouped_mm.default", 12, first="- ", later="  ") == [
        "- one",
        "  aten._grouped_mm.default",
    ]

"""The figures of SECURITY.md are those of the tests."""

from tests.hostile.figures import PAGE, parts, table


def test_the_page_counts_the_cases_that_there_are() -> None:
    assert parts(PAGE.read_text(encoding="utf-8"))[1] == table(), "run `python -m tests.hostile.figures`"

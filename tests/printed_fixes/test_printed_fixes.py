"""What `docs/printed_fixes.md` says of each printed fix is so."""

from __future__ import annotations

import pytest

from .harvest import BY_HAND, FAILS, VERIFIED, cases, rows
from .page import PAGE, line

LEAST_RATE = 0.95
UPDATE = "run `.venv/bin/python -m tests.printed_fixes` (2 minutes) or `make rules`"
CASES = cases()
PUBLISHED = PAGE.read_text().splitlines()


# The rest by `make test-all`.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if index % 8 else ())
        for index, name in enumerate(CASES)
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_each_row_of_a_model_is_so(name):
    shown = [each for each in PUBLISHED if each.startswith(f"| {name} |")]

    expected = [line(row).rstrip("\n") for row in rows(CASES[name])]
    assert shown == expected, f"{PAGE.name} is out of date: {UPDATE}"


def test_the_rate_is_that_of_the_rows_and_high_enough():
    table = [each.rstrip(" |").rpartition("| ")[2] for each in PUBLISHED if each.startswith("| ")][2:]
    working = table.count(VERIFIED) + table.count(BY_HAND)
    tried = working + table.count(FAILS)

    rate = f"**{working} of {tried} printed fixes work ({working / tried:.0%})**"
    assert rate in PAGE.read_text(), f"{PAGE.name} is out of date: {UPDATE}"
    assert working / tried >= LEAST_RATE

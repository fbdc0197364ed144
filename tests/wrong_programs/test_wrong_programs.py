"""What `docs/wrong_programs.md` says of each model is so."""

from __future__ import annotations

import pytest

from . import cases as cases
from .case import CASES
from .outcome import EQUAL, of_fakexport, of_stock
from .page import PAGE, published, render

pytestmark = pytest.mark.filterwarnings("ignore")  # What torch thinks of them, where it says so.

ROWS = published()


def test_the_page_has_every_case_and_is_what_is_rendered():
    assert ROWS.keys() == CASES.keys()
    assert PAGE.read_text() == render(ROWS)


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_so(name):
    assert (of_stock(CASES[name]), of_fakexport(CASES[name])) == ROWS[name]


def test_every_program_of_torch_is_wrong_and_none_passes_here():
    assert all(stock != EQUAL and not stock.startswith("refused") for stock, _ in ROWS.values())
    assert all(stock != ours for stock, ours in ROWS.values())

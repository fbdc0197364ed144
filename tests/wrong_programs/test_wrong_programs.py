"""Each row and each fix of `docs/wrong_programs.md` is true."""

from __future__ import annotations

import pytest

from . import fixes as fixes
from .case import CASES, FIXES
from .outcome import EQUAL, FAILED, of_fakexport, of_stock, same_as_eager
from .page import PAGE, published, render

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about some of the models.

ROWS = published()


def test_the_page_has_every_case_and_is_what_is_rendered():
    assert ROWS.keys() == CASES.keys() == FIXES.keys()
    assert PAGE.read_text() == render(ROWS)


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_so(name):
    assert (of_stock(CASES[name]), of_fakexport(CASES[name])) == ROWS[name]


@pytest.mark.parametrize("name", CASES)
def test_torch_exports_the_fixed_model_correctly(name):
    assert of_stock(FIXES[name]) == EQUAL
    assert FIXES[name].draws or same_as_eager(CASES[name], FIXES[name])


def test_every_program_of_torch_is_wrong_and_none_passes_here():
    assert all(stock != EQUAL and not stock.startswith(FAILED) for stock, _ in ROWS.values())
    assert all(stock != ours for stock, ours in ROWS.values())

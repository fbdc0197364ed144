"""The picture of a report in the README is what the command prints."""

import html
import re

import pytest

from tests.e2e.test_documented_commands import without_numbers
from tools.report_picture import PICTURE, drawn, report


def text_of(svg: str) -> str:
    drawing = svg.partition("</defs>")[2]
    return without_numbers(html.unescape(re.sub(r"<[^>]+>", " ", drawing)))


@pytest.mark.slow
def test_the_picture_shows_what_the_command_prints():
    shown = text_of(PICTURE.read_text(encoding="utf-8"))

    assert "fails at capture" in shown
    assert shown == text_of(drawn(report())), "draw it again: python tools/report_picture.py"

"""One workflow command per diagnostic, and nothing in it that can break out."""

from __future__ import annotations

import re

from fakexport.rules.diagnostics import Diagnostic, Label, Span, render_github


def test_golden_with_the_least() -> None:
    assert render_github(Diagnostic("FE503", "warning", "too big")) == "::warning title=FE503::too big"
    assert render_github(Diagnostic("FE503", "note", "too big")).startswith("::notice ")


def test_properties_and_text_are_escaped() -> None:
    label = Label(Span("C:\\a,b%\r\n.py", 1), "50%\r\n::error::forged, and: fine")

    command = render_github(Diagnostic("FE201", "error", "m", labels=(label,)))

    assert "file=C%3A\\a%2Cb%25%0D%0A.py,line=1," in command
    assert command.endswith("::m%0A50%25%0D%0A::error::forged, and: fine")
    assert len(re.findall("[\r\n]", command)) == 0

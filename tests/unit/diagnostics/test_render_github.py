"""One workflow command per diagnostic, and nothing in it that can break out."""

from __future__ import annotations

import re

import pytest

from fakexport.diagnostics import Diagnostic, Fix, Label, Span, render_github


def test_golden_with_every_part() -> None:
    diagnostic = Diagnostic(
        "FE201",
        "error",
        "data-dependent branch: condition depends on tensor values",
        labels=(Label(Span("src/model.py", 7, 12, 20), "x.sum() > 0 has no value"),),
        notes=("torch: Could not guard",),
        fix=Fix("use torch.where", command="fakexport explain FE201"),
        count=2,
        targets=("cpu", "H100"),
    )

    assert render_github(diagnostic) == (
        "::error file=src/model.py,line=7,col=12,title=FE201::"
        "data-dependent branch: condition depends on tensor values (2 times)%0A"
        "x.sum() > 0 has no value%0A"
        "note: torch: Could not guard%0A"
        "targets: cpu, H100%0A"
        "fix: use torch.where%0A"
        "run: fakexport explain FE201"
    )


def test_golden_with_the_least() -> None:
    assert render_github(Diagnostic("FE503", "warning", "too big")) == "::warning title=FE503::too big"
    assert render_github(Diagnostic("FE503", "note", "too big")).startswith("::notice ")


def test_a_place_without_a_column_has_no_col() -> None:
    diagnostic = Diagnostic("FE201", "error", "m", labels=(Label(Span("m.py", 3), ""),))

    assert render_github(diagnostic) == "::error file=m.py,line=3,title=FE201::m"


def test_properties_and_text_are_escaped() -> None:
    label = Label(Span("C:\\a,b%\r\n.py", 1), "50%\r\n::error::forged, and: fine")

    command = render_github(Diagnostic("FE201", "error", "m", labels=(label,)))

    assert "file=C%3A\\a%2Cb%25%0D%0A.py,line=1," in command
    assert command.endswith("::m%0A50%25%0D%0A::error::forged, and: fine")
    assert len(re.findall("[\r\n]", command)) == 0


@pytest.mark.parametrize("text", ["%0A", "a%2525", "\n\n", "100 %"])
def test_the_runner_reads_back_what_was_written(text: str) -> None:
    command = render_github(Diagnostic("FE201", "error", "m", notes=(text,)))

    body = command.split("::", 2)[2].replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")

    assert body == f"m\nnote: {text}"

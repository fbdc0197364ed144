"""The text form, golden by golden."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fakexport.rules.diagnostics import Diagnostic, Label, Span, render_text
from fakexport.rules.diagnostics.text import source_line


def test_without_a_place_module_and_node_are_named() -> None:
    diagnostic = Diagnostic("FE401", "note", "headline", module_path="head", node="scale_rows")

    assert render_text(diagnostic) == "note[FE401]: headline\n  --> module head, node scale_rows"
    assert render_text(Diagnostic("FE401", "note", "headline")) == "note[FE401]: headline"


@pytest.mark.parametrize(
    ("source", "column", "end_column", "carets"),
    [
        ("\tx = y", 2, 3, "|     ^ !"),
        ("名前 = y", 6, 7, "|        ^ !"),
        ("e\u0301 = y", 6, 7, "|     ^ !"),
        ("x = y", 5, 99, "|     ^ !"),
        ("x = y", 90, 99, "|      ^ !"),
    ],
    ids=["tab", "wide characters", "combining accent", "end behind the line", "start behind the line"],
)
def test_carets_stand_below_their_characters(source: str, column: int, end_column: int, carets: str) -> None:
    label = Label(Span("m.py", 1, column, end_column), "!")

    text = render_text(Diagnostic("FE201", "error", "m", labels=(label,)), read_source=lambda *_: source)

    assert text.splitlines()[-1].strip() == carets


def test_text_of_a_stranger_cannot_steer_the_terminal() -> None:
    label = Label(Span("m\x1b]0;owned\x07.py", 1), "a\x1b[2Jb")
    diagnostic = Diagnostic("FE201", "error", "m", labels=(label,), notes=("c\rd\u202ee",))

    text = render_text(diagnostic, read_source=lambda *_: "\x1b[31mred")

    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(text)
    assert "\\x1b[2J" in text
    assert "\\u202e" in text


def test_the_default_reader_reads_python_files_only(tmp_path: Path) -> None:
    model, secret, pipe = tmp_path / "model.py", tmp_path / "secret", tmp_path / "pipe.py"
    for file in (model, secret):
        file.write_text("first\n    second\n")
    os.mkfifo(pipe)

    assert source_line(str(model), 2) == "    second"
    assert source_line(str(model), 3) is None
    assert source_line(str(secret), 1) is None
    assert source_line(str(pipe), 1) is None
    assert source_line(str(tmp_path / "absent.py"), 1) is None

"""The text form, golden by golden."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fakexport.diagnostics import Diagnostic, Fix, Label, Span, render_text
from fakexport.diagnostics.text import source_line


def reader(sources: dict[tuple[str, int], str]) -> Callable[[str, int], str | None]:
    return lambda path, line: sources.get((path, line))


def lines(text: str) -> str:
    """A golden without the line ends that frame it in the test file."""
    return text.strip("\n")


def test_the_example_of_the_house_style() -> None:
    span = Span("modeling_gpt2.py", 571, 20, 32, origin="stack_trace")
    diagnostic = Diagnostic(
        "FE501",
        "error",
        "tensor created on a burned-in device",
        labels=(Label(span, "device=cpu came from the export, not from the inputs"),),
        notes=("4 nodes use it; aten.embedding would fail on cuda:0: indices on cpu, weight on cuda:0",),
        fix=Fix("pass position_ids, or retarget", command="fakexport retarget model.pt2 --to cpu=cuda:0"),
        module_path="transformer",
    )
    source = "    position_ids = torch.arange(0, input_shape[-1], ...)"

    text = render_text(diagnostic, read_source=reader({("modeling_gpt2.py", 571): source}))

    assert text == lines("""
error[FE501]: tensor created on a burned-in device
  --> modeling_gpt2.py:571:20  (transformer)
    |
571 |     position_ids = torch.arange(0, input_shape[-1], ...)
    |                    ^^^^^^^^^^^^ device=cpu came from the export, not from the inputs
    = note: 4 nodes use it; aten.embedding would fail on cuda:0: indices on cpu, weight on cuda:0
    = fix: pass position_ids, or retarget
    = run: fakexport retarget model.pt2 --to cpu=cuda:0
""")


def test_several_labels_in_two_files_with_count_fault_and_targets() -> None:
    diagnostic = Diagnostic(
        "FE502",
        "error",
        "device mismatch between tensors of an operator",
        labels=(
            Label(Span("blocks.py", 3, 5, 10), "made on cpu", is_primary=False),
            Label(Span("model.py", 12, 16, 17), "left: cuda:0", is_primary=False),
            Label(Span("model.py", 12, 12, 13, function="forward"), "cuda:0 and cpu meet"),
            Label(Span("model.py", 9, 9), "x came in here", is_primary=False),
        ),
        notes=("Expected all tensors\nto be on the same device",),
        module_path="layers.0",
        count=126,
        fault="operator library",
        targets=("cpu+H100", "2xT4"),
    )
    sources = {
        ("blocks.py", 3): "    table = torch.ones(3)",
        ("model.py", 9): "        x = self.embed(x)",
        ("model.py", 12): "    return h * w",
    }

    assert render_text(diagnostic, read_source=reader(sources)) == lines("""
error[FE502]: device mismatch between tensors of an operator (126 times)
  --> model.py:12:12  (layers.0, in forward)
    |
  9 |         x = self.embed(x)
    |         - x came in here
...
 12 |     return h * w
    |            ^ cuda:0 and cpu meet
    |                - left: cuda:0
  ::: blocks.py:3:5
    |
  3 |     table = torch.ones(3)
    |     ----- made on cpu
    = note: Expected all tensors
            to be on the same device
    = cause: the operator library
    = targets: cpu+H100, 2xT4
""")


def test_without_a_column_there_are_no_carets() -> None:
    label = Label(Span("m.py", 1234, function="forward"), "u0 is\nunknown")
    diagnostic = Diagnostic("FE201", "error", "a branch", labels=(label,))

    assert render_text(diagnostic, read_source=lambda *_: "    if x.sum() > 0:") == lines("""
error[FE201]: a branch
   --> m.py:1234  (forward)
     |
1234 |     if x.sum() > 0:
     |     here: u0 is
     |           unknown
""")


def test_a_missing_source_file_leaves_the_place_and_the_words() -> None:
    labels = (
        Label(Span("gone.py", 3, 5, 8), "the branch"),
        Label(Span("lost.py", 4, 1, function="make"), "made here", is_primary=False),
    )
    diagnostic = Diagnostic("FE201", "warning", "a branch", labels=labels, targets=("cpu",))

    assert render_text(diagnostic) == lines("""
warning[FE201]: a branch
  --> gone.py:3:5
    = here: the branch
    = at lost.py:4:1  (make): made here
    = target: cpu
""")


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

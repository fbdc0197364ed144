"""The comparison of answers with real conversions, on small models, and its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import runtime_answers
from tests.architectures import ARCHITECTURES


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnx", "coreml"])
@pytest.mark.parametrize(("name", "dynamic"), [("bert", "static"), ("vit", "auto")])
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:Implicitly:ResourceWarning"
)
def test_what_is_taken_is_really_converted(tmp_path: Path, name: str, dynamic: str, runtime: str) -> None:
    pytest.importorskip("onnxruntime" if runtime == "onnx" else "coremltools")
    architecture = next(each for each in ARCHITECTURES if each.model_type == name)

    def compared() -> runtime_answers.Row:
        model = runtime_answers.Model.of(architecture, dynamic, tmp_path)
        return runtime_answers.compared(model, runtime, tmp_path)

    row = runtime_answers.in_a_process(compared)

    assert "answer" in row, row
    assert not runtime_answers.is_false_pass(row), row
    assert not runtime_answers.is_false_refusal(row), row


def row(answer: str, real: str) -> runtime_answers.Row:
    return {
        "model": "bert",
        "dynamic": "static",
        "runtime": "onnx",
        "answer": answer,
        "real": real,
        "reason": "it does not load",
        "seconds": 1.0,
    }


def test_false_answers_are_counted_and_listed() -> None:
    rows = [
        row("taken", "taken"),
        row("partly", "refused"),
        row("refused", "refused"),
        row("refused", "taken"),
        row("taken", "differs"),
    ]

    text = runtime_answers.section(
        [*rows, {"model": "vit", "dynamic": "static", "reason": "no", "runtime": "onnx"}]
    )

    assert "| `onnx` | static | 5 | 1 | 1 | 2 | 1 | 1.0 s |" in text
    assert "- `bert`, `onnx`, static: answered partly, really refused. it does not load" in text
    assert "- `bert`, `onnx`, static: answered taken, really differs. it does not load" in text
    assert "took more than five minutes: `vit` (onnx, static)." in text


def test_the_page_has_the_figures_of_the_benchmark() -> None:
    page = runtime_answers.PAGE.read_text(encoding="utf-8")

    assert page.count(runtime_answers.HEADING) == 1
    assert "| runtime | sizes | models |" in page.partition(runtime_answers.HEADING)[2]

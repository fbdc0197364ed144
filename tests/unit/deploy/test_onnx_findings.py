"""What ONNX cannot express is FE802, with the operator and the user's line, all of it in one go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

import fakexport as fe
from fakexport.deploy import CompileFailure
from fakexport.deploy.onnx import compile_onnx, open_onnx

pytestmark = pytest.mark.usefixtures("torchlib_read_once")


def findings(program: Any, folder: Path) -> Any:
    with pytest.raises(CompileFailure) as raised:
        compile_onnx(program, folder / "m.onnx")
    assert not (folder / "m.onnx").exists()
    assert {diagnostic.code for diagnostic in raised.value.diagnostics} == {"FE802"}
    return raised.value.diagnostics


def line_of(mark: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


class Many(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)  # written
        inverse = torch.linalg.inv(x)  # inverted
        return inverse + x.median() + x.median() + self.calls  # median


def test_everything_is_found_in_one_go(tmp_path: Path) -> None:
    program = fe.export(Many, (torch.ones(2, 2),))

    written, inverse, check, median = findings(program, tmp_path)

    assert "the buffer calls would keep its old value in the next call" in written.notes[0]
    assert "aten.linalg_inv_ex.default" in inverse.notes[0]
    assert "aten._linalg_check_errors.default" in check.notes[0]
    assert "aten.median.default" in median.notes[0]
    assert (written.count, inverse.count, median.count) == (1, 1, 2)
    places = [diagnostic.primary.span.line for diagnostic in (written, check, median)]
    assert places == [line_of("written"), line_of("inverted"), line_of("median")]


class Histogram(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.histc(x, 4)  # counted


@pytest.mark.slow
def test_a_call_that_has_no_translation_is_named_with_its_reason(tmp_path: Path) -> None:
    (diagnostic,) = findings(fe.export(Histogram, (torch.ones(3),)), tmp_path)

    assert diagnostic.primary.span.line == line_of("counted")
    assert "aten.histc.default: NotImplementedError: aten_histc with min == max" in diagnostic.notes[0]


class Waves(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * torch.view_as_complex(y)  # waves


def test_complex_inputs_and_outputs_are_found(tmp_path: Path) -> None:
    program = fe.export(Waves, (torch.ones(3, dtype=torch.complex64), torch.ones(3, 2)))

    output, given = findings(program, tmp_path)

    assert output.primary.span.line == line_of("waves")
    assert "the output mul is complex" in output.notes[0]
    assert "the input x is complex" in given.notes[0]


class Low(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos()  # low


def test_a_dtype_that_an_operator_of_onnx_does_not_take_is_found_by_its_checker(tmp_path: Path) -> None:
    (diagnostic,) = findings(fe.export(Low, (torch.ones(3, dtype=torch.bfloat16),)), tmp_path)

    assert diagnostic.primary.span.line == line_of("low")
    assert diagnostic.primary.span.path == __file__
    assert "tensor(bfloat16)" in diagnostic.notes[0]


@pytest.fixture
def scale() -> Any:
    """A custom operator, `acme_onnx::scale`."""
    library = torch.library.Library("acme_onnx", "FRAGMENT")
    library.define("scale(Tensor x, float by) -> Tensor")
    library.impl("scale", lambda x, by: x * by, "CompositeExplicitAutograd")
    yield torch.ops.acme_onnx.scale
    library._destroy()


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.acme_onnx.scale(x, 3.0)  # scaled


@pytest.mark.slow
def test_an_operator_of_a_library_is_named_and_takes_a_translation(scale: Any, tmp_path: Path) -> None:
    from onnxscript import opset18

    program = fe.export(Scaled, (torch.ones(3),))

    def translation(x: Any, by: float) -> Any:
        return opset18.Mul(x, opset18.CastLike(by, x))

    (diagnostic,) = findings(program, tmp_path)
    compile_onnx(program, tmp_path / "m.onnx", custom_translation_table={scale.default: translation})

    assert diagnostic.primary.span.line == line_of("scaled")
    assert diagnostic.fault == "operator library"
    assert "custom_translation_table={torch.ops.acme_onnx.scale.default: ...}" in diagnostic.fix.message
    found = open_onnx(tmp_path / "m.onnx")({"x": torch.ones(3)})
    torch.testing.assert_close(found, {"output": torch.full((3,), 3.0)})

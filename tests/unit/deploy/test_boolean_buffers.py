"""Columns that a boolean buffer chooses are those of eager mode, in compiled forms too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

import fakexport as fe
from fakexport.deploy import CompileFailure
from fakexport.deploy.onnx import compile_onnx

pytestmark = pytest.mark.usefixtures("torchlib_read_once")


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keep", torch.tensor([True, False, True, True, False]))
        self.linear = nn.Linear(3, 4)


class Chosen(Kept):
    def forward(self, x, y):
        a, b = x[:, self.keep], y[:, self.keep]
        mixed = torch.cat([a, b], 1)
        chosen = torch.where(a > b, a, b), x[:, ~self.keep].sum()
        return a, b, a + b, self.linear(a) - self.linear(b), a @ b.T, mixed, *chosen


class Selected(Kept):
    def forward(self, x, y):
        return x[:, self.keep] + y[:, self.keep], x.masked_select(self.keep)


def program_of(model):
    def factory():
        return model().eval(), (torch.zeros(2, 5), torch.zeros(2, 5))

    return fe.export(factory, dynamic_shapes=["x.0=2..9", "y.0=2..9"])


@pytest.mark.parametrize("form", ["onnx", pytest.param("aoti", marks=pytest.mark.slow)])
def test_compiled_code_returns_the_chosen_columns(form, tmp_path: Path) -> None:
    if form == "aoti" and shutil.which("g++") is None:
        pytest.skip("needs g++")
    model = Chosen().eval()
    path = tmp_path / ("m.onnx" if form == "onnx" else "m.pt2")
    fe.compile(program_of(Chosen), path, to=form)

    artifact = fe.open_program(path, dict(model.state_dict()), trust=True)

    for rows in (2, 5):
        x, y = torch.randn(rows, 5), torch.randn(rows, 5)
        with torch.no_grad():
            expected = model(x, y)
        torch.testing.assert_close(tuple(artifact({"x": x, "y": y}).values()), expected)


def test_an_operator_without_a_translation_is_a_finding(tmp_path: Path) -> None:
    """A failed conversion leaves symbols behind, which must not stop the search for its operators."""
    with pytest.raises(CompileFailure) as raised:
        compile_onnx(program_of(Selected), tmp_path / "m.onnx")

    (found,) = raised.value.diagnostics
    assert found.code == "FE802"
    assert "masked_select" in str(found)

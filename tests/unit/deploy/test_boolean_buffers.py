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
from fakexport.deploy.aoti import compile_aoti, open_aoti
from fakexport.deploy.onnx import compile_onnx, open_onnx

pytestmark = pytest.mark.usefixtures("torchlib_read_once")


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keep", torch.tensor([True, False, True, True, False]))
        self.linear = nn.Linear(3, 4)


class Two(Kept):
    def forward(self, x, y):
        return x[:, self.keep], y[:, self.keep]


class Added(Kept):
    def forward(self, x, y):
        return x[:, self.keep] + y[:, self.keep]


class Projected(Kept):
    def forward(self, x, y):
        return self.linear(x[:, self.keep]) - self.linear(y[:, self.keep])


class Multiplied(Kept):
    def forward(self, x, y):
        a, b = x[:, self.keep], y[:, self.keep]
        return a @ b.T, torch.cat([a, b], 1)


class Chosen(Kept):
    def forward(self, x, y):
        a, b = x[:, self.keep], y[:, self.keep]
        return torch.where(a > b, a, b), x[:, ~self.keep].sum()


class Selected(Kept):
    def forward(self, x, y):
        return x[:, self.keep] + y[:, self.keep], x.masked_select(self.keep)


def program_of(model):
    def factory():
        return model().eval(), (torch.zeros(2, 5), torch.zeros(2, 5))

    return fe.export(factory, dynamic_shapes=["x.0=2..9", "y.0=2..9"])


def assert_equal_to_eager(artifact, model) -> None:
    for rows in (2, 5):
        x, y = torch.randn(rows, 5), torch.randn(rows, 5)
        expected = model(x, y)
        given = list(artifact({"x": x, "y": y}).values())
        for one, other in zip(given, expected if isinstance(expected, tuple) else [expected], strict=True):
            torch.testing.assert_close(torch.as_tensor(one), other)


MODELS = [Two, Added, Projected, Multiplied, Chosen]


@pytest.mark.parametrize(
    "made", [Added, *(pytest.param(each, marks=pytest.mark.slow) for each in MODELS if each is not Added)]
)
def test_onnx_returns_the_chosen_columns(made, tmp_path: Path) -> None:
    compile_onnx(program_of(made), tmp_path / "m.onnx")
    model = made().eval()

    with torch.no_grad():
        assert_equal_to_eager(open_onnx(tmp_path / "m.onnx", checkpoint=dict(model.state_dict())), model)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("made", [Two, Projected])
def test_aoti_returns_the_chosen_columns(made, tmp_path: Path) -> None:
    compile_aoti(program_of(made), tmp_path / "m.pt2")
    model = made().eval()

    with torch.no_grad():
        assert_equal_to_eager(open_aoti(tmp_path / "m.pt2", checkpoint=dict(model.state_dict())), model)


def test_an_operator_without_a_translation_is_a_finding(tmp_path: Path) -> None:
    """A failed conversion leaves symbols behind, which must not stop the search for its operators."""
    with pytest.raises(CompileFailure) as raised:
        compile_onnx(program_of(Selected), tmp_path / "m.onnx")

    (found,) = raised.value.diagnostics
    assert found.code == "FE802"
    assert "masked_select" in str(found)

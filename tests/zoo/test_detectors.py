"""Detectors of transformers that return as many rows as there are objects, next to eager mode."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

import onnxruntime
import transformers

import fakexport as fe
from fakexport.deploy import run
from tests.architectures import ARCHITECTURES

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from detection import Detections

pytestmark = [pytest.mark.zoo, pytest.mark.usefixtures("torchlib_read_once")]

_WITH_BACKGROUND = {"detr", "yolos"}
_OTHERS = ("yolos", "rt_detr", "conditional_detr", "deformable_detr")


def small(name: str) -> Any:
    """A small detector whose scores are far enough apart that rounding does not change their order."""
    torch.manual_seed(0)
    return with_noise(next(each for each in ARCHITECTURES if str(each) == name).build().eval())


def with_noise(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def between(scores: torch.Tensor, count: int) -> torch.Tensor:
    """A threshold that this many scores exceed."""
    ordered = torch.cat([scores.new_tensor([1.0]), scores.sort(descending=True).values, scores.new_zeros(1)])
    return (ordered[count] + ordered[count + 1]) / 2


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("detr", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in _OTHERS),
    ],
)
def test_none_one_and_many_objects_are_those_of_eager(name: str, tmp_path: Path) -> None:
    model = Detections(small(name), has_background=name in _WITH_BACKGROUND)
    example = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    report = fe.check(model, (example, torch.tensor(0.5)), target=["cpu"])
    assert report.is_clean, [each.message for each in report.diagnostics]
    fe.save(report.verdicts[0].program, tmp_path / "detector.pt2")
    program = fe.bind(fe.load(tmp_path / "detector.pt2"), dict(model.state_dict()))
    fe.compile(program, tmp_path / "detector.onnx", to="onnx", names="optimum")
    session = onnxruntime.InferenceSession(tmp_path / "detector.onnx", providers=["CPUExecutionProvider"])

    pixels = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        scores = model(pixels, torch.tensor(0.0))["score"]
    for count in (0, 1, len(scores) // 2, len(scores)):
        inputs = {"pixel_values": pixels, "threshold": between(scores, count)}
        with torch.no_grad():
            expected = model(**inputs)
        assert len(expected["score"]) == count
        found = run(program, inputs)
        arrays = session.run(list(expected), {key: value.numpy() for key, value in inputs.items()})
        for key, array in zip(expected, arrays, strict=True):
            torch.testing.assert_close(found[key], expected[key], rtol=0, atol=0)
            torch.testing.assert_close(torch.from_numpy(array), expected[key], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_the_masks_of_mask2former_are_those_of_eager(tmp_path: Path) -> None:
    config = small("mask2former").config
    model: Any = with_noise(transformers.Mask2FormerForUniversalSegmentation(config).eval())
    model.save_pretrained(tmp_path)
    spec = f"hf:{tmp_path}:Mask2FormerForUniversalSegmentation"
    fe.save(fe.export(spec, dynamic_shapes=["pixel_values.0=2..8"]), tmp_path / "masks.pt2")

    fe.compile(tmp_path / "masks.pt2", tmp_path / "masks.onnx", tmp_path, to="onnx", names="optimum")

    session = onnxruntime.InferenceSession(tmp_path / "masks.onnx", providers=["CPUExecutionProvider"])
    for batch in (3, 5):
        pixels = torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(batch))
        with torch.no_grad():
            expected = model(pixels)
        names = ["class_queries_logits", "masks_queries_logits"]
        for name, array in zip(names, session.run(names, {"pixel_values": pixels.numpy()}), strict=True):
            tolerance = 1e-4 * max(1.0, expected[name].abs().max().item())
            torch.testing.assert_close(torch.from_numpy(array), expected[name], rtol=0, atol=tolerance)

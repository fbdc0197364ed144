"""onnxscript's rules are tried only where they can match, and the graph is the same."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("onnxscript")

from onnxscript.rewriter._matcher import SimplePatternMatcher

import fakexport as fe
from fakexport.deploy.onnx import compile_onnx, conversion

pytestmark = pytest.mark.usefixtures("torchlib_read_once")


class Rewritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(8, 8)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(torch.relu(self.norm(self.conv(nn.functional.pad(image, (1, 1, 1, 1))))))
        x = x.clamp(min=0.5).clamp(max=2.0).transpose(1, 2).transpose(2, 3)
        first, second = x[..., :2], x[..., 2:]
        x = torch.cat((-second, first), -1) * 1 + 0
        x = x.reshape(-1, 4).reshape(-1, 2, 4).unsqueeze(0).unsqueeze(1).float()
        return self.linear(x.reshape(-1, 8)).reshape(-1).double().float()


def test_rules_are_tried_only_at_their_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Rewritten().eval()
    program = fe.bind(fe.export(model, (torch.rand(2, 3, 6, 6),)), model.state_dict())
    tried: list[str] = []
    match = SimplePatternMatcher.match

    def counted(matcher: SimplePatternMatcher, *args: object, **options: object) -> object:
        tried.append(type(matcher).__name__)
        return match(matcher, *args, **options)

    monkeypatch.setattr(SimplePatternMatcher, "match", counted)
    compile_onnx(program, tmp_path / "quick.onnx")
    quick, tried[:] = len(tried), []
    monkeypatch.setattr(conversion, "rules_tried_where_they_match", contextlib.nullcontext)
    compile_onnx(program, tmp_path / "stock.onnx")

    assert (tmp_path / "quick.onnx").read_bytes() == (tmp_path / "stock.onnx").read_bytes()
    assert 0 < quick < len(tried) / 3

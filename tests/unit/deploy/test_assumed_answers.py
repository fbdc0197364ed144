"""What was assumed of data for a program, in the code that AOTInductor makes of it."""

from __future__ import annotations

import shutil

import pytest
import torch

import fakexport as fe
from fakexport.deploy.aoti import compile_aoti, open_aoti

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]

MODEL = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, steps):
        rows = x[x > 0]
        if rows.numel() == 0:
            return x
        if x.max() > 9:
            x = x / 2
        for _ in range(int(steps.max())):
            x = x - rows[:1]
        return x


def factory():
    return Model(), (torch.ones(2, 4), torch.tensor([1, 3]))
"""


def test_compiled_code_refuses_other_inputs(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    assume = ["model.py:8=False", "model.py:10=False", "model.py:12=3"]
    program = fe.export(f"{path}:factory", assume=assume)
    made = compile_aoti(fe.bind(program, {}), tmp_path / "model.aoti.pt2", cache=tmp_path / "cache")

    run = open_aoti(made.path)

    x, steps = torch.arange(8.0).view(2, 4), torch.tensor([1, 3])
    (result,) = run({"x": x, "steps": steps}).values()
    assert torch.equal(result, x - 3)
    for refused in ({"x": -x, "steps": steps}, {"x": 9 * x, "steps": steps}, {"x": x, "steps": steps + 1}):
        with pytest.raises(Exception, match="failed on these inputs: Expected"):
            run(refused)

"""A program for the CPU is compiled for the GPU that is here, and computes there what it does here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.deploy import DeployError, run
from fakexport.deploy.aoti import compile_aoti, open_aoti

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_a_program_is_retargeted_and_compiled_for_the_gpu(weights: str, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    batch = {0: torch.export.Dim("batch", max=64)}
    program = fe.export(lambda: module, (torch.zeros(3, 16),), dynamic_shapes=(batch,))
    bound = fe.bind(program, module.state_dict())

    made = compile_aoti(bound, tmp_path / "m.pt2", target="cuda", weights=weights)

    (name,) = (tensor.name for tensor in open_aoti(made.path).signature.inputs)
    x = torch.randn(7, 16)
    (got,) = open_aoti(made.path)({name: x}).values()
    (wanted,) = run(bound, {name: x}).values()
    assert got.device.type == "cuda"
    assert torch.allclose(got.cpu(), wanted, atol=1e-4)


def test_a_package_for_a_gpu_of_another_kind_is_compiled_but_not_opened(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    here = torch.cuda.get_device_capability()
    target = "T4" if here != (7, 5) else "H100"
    program = fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))

    made = compile_aoti(program, tmp_path / "m.pt2", target=target)

    with pytest.raises(DeployError, match="was compiled for a GPU with sm_"):
        open_aoti(made.path, checkpoint={"weight": torch.ones(2, 4), "bias": torch.zeros(2)})

"""A program for the CPU is compiled for the GPU that is here, and computes there what it does here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.deploy import DeployError, run
from fakexport.deploy.aoti import compile_aoti, open_aoti
from fakexport.deploy.aoti.package import KERNELS
from fakexport.files.container import read_container

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


def test_kernels_are_chosen_by_timing_them(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.LayerNorm(512)).eval()
    batch = {0: torch.export.Dim("batch", max=64)}
    program = fe.export(lambda: module, (torch.zeros(3, 64),), dynamic_shapes=(batch,))

    made = compile_aoti(program, tmp_path / "m.pt2", target="cuda", tune=True)

    with read_container(made.path, trust=True) as package:
        kernels = json.loads(package.record(KERNELS))
    changed = [kernel for kernel in kernels if kernel["untimed"]]
    opened, x = open_aoti(made.path, checkpoint=module.state_dict()), torch.randn(7, 64)
    (got,) = opened({opened.signature.inputs[0].name: x}).values()
    assert torch.allclose(got.cpu(), module(x), atol=1e-4)
    assert kernels
    assert any(kernel["microseconds"] for kernel in kernels)
    assert all(kernel["microseconds"] <= kernel["untimed_microseconds"] for kernel in changed)
    assert made.notes[0] == f"timing changed the configuration of {len(changed)} of {len(kernels)} kernels"
    assert len(made.notes) == 1 + len(changed) + 1

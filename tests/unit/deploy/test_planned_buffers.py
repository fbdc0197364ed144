"""The buffers that AOTInductor plans, next to what a compiled program allocates."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

import fakexport as fe
from fakexport.deploy import DeployError
from fakexport.deploy.aoti import compile_aoti
from fakexport.error import InvalidValue
from fakexport.planning.memory import ProgramSizes, SizeRequest, sizes_at
from fakexport.planning.planned_buffers import planned_buffers
from fakexport.report import render_plan
from tests.measured_memory import measured_peak


class Block(nn.Module):
    """Convolution, attention and a linear layer: kernels of torch that take memory for themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.last = nn.Conv2d(3, 32, 4, stride=4), nn.Linear(32, 8)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.patches(pixels).flatten(2).transpose(1, 2)
        heads = rows.unflatten(2, (2, 16)).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(heads, heads, heads)
        rows = rows + mixed.transpose(1, 2).flatten(2)
        return self.last(functional.gelu(rows)), rows.mean(1)


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return fe.export(lambda: (Block(), (torch.ones(2, 3, 32, 32),)), dynamic_shapes="auto")


@pytest.mark.slow
def test_a_plan_has_a_column_for_it(program):
    report = fe.plan(program, batch=(2, 6), aoti=True)

    first, last = report.points
    assert [name for name, _ in first.executions] == ["module()", "AOTInductor"]
    assert first.aoti[0].weights == first.devices[0].weights
    assert first.aoti[0].tensor_bytes != first.devices[0].tensor_bytes
    assert last.aoti[0].activations > first.aoti[0].activations
    text = render_plan(report, width=200)
    assert "peak of the program's module() and of the program that AOTInductor compiles for the CPU" in text
    assert any("memory of its generated kernels" in left for left in report.left_out)
    assert not any("--aoti counts them" in left for left in report.left_out)
    assert any("--aoti counts them" in left for left in fe.plan(program).left_out)


@pytest.mark.slow
def test_control_flow_is_refused():
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    with pytest.raises(DeployError, match="cannot be planned: the program has data-dependent control flow"):
        planned_buffers(fe.export(lambda: (Branch(), (torch.ones(4),))))


def test_a_gpu_and_a_search_are_refused_in_one_line():
    with pytest.raises(InvalidValue, match="AOTInductor's buffers can be planned only for the CPU: for cuda"):
        fe.plan(lambda: (Block(), (torch.ones(2, 3, 32, 32),)), target="H100", aoti=True)
    with pytest.raises(InvalidValue, match="--max, --smallest, --parallel and --workload"):
        fe.plan(lambda: (Block(), (torch.ones(2, 3, 32, 32),)), aoti=True, maximum=("batch",))


@pytest.mark.slow
def test_it_is_what_the_compiled_program_allocates(program, tmp_path):
    bound = fe.bind(program, dict(Block().state_dict()))
    planned = planned_buffers(bound)
    compile_aoti(bound, tmp_path / "block.pt2")
    compiled = torch._inductor.aoti_load_package(str(tmp_path / "block.pt2"))

    for batch in (2, 7):
        measured = measured_peak(functools.partial(compiled, torch.ones(batch, 3, 32, 32)))
        values = ProgramSizes(bound).chosen(SizeRequest(batch=batch)).values
        assert sizes_at(planned, values).peak("cpu").run_bytes == measured

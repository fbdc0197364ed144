"""What `inductor_buffers` relies on: Inductor's plan is read from its lines, without a compiler."""

from __future__ import annotations

import torch
from torch import nn
from torch._inductor import cpp_builder, cpu_vec_isa
from torch._inductor.codegen import wrapper
from torch._inductor.graph import GraphLowering

from fakexport._torch.costs.inductor_buffers import planned_wrapper


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x @ x).relu() @ x).softmax(-1)


def test_the_lines_that_are_read_exist() -> None:
    names = "Allocate Reuse Reinterpret FreeIfNotReused Free KernelCall ExternKernelAlloc ExternKernelOut"
    names += " ExternKernelMultiOut IndexPutFallback ScatterFallback EnterSubgraph "
    names += "Conditional" if hasattr(wrapper, "ConditionalLine") else "Switch"
    for name in names.split():
        assert issubclass(getattr(wrapper, f"{name}Line"), wrapper.WrapperLine), name


def test_the_plan_needs_no_compiler_and_leaves_inductor_as_it_was() -> None:
    own = (GraphLowering.codegen_with_cpp_wrapper, cpu_vec_isa.pick_vec_isa, cpp_builder.get_cpp_compiler)
    batch = torch.export.Dim("batch")
    program = torch.export.export(Twice(), (torch.ones(8, 8),), dynamic_shapes=({0: batch, 1: batch},))

    with torch._inductor.config.patch({"cpp.cxx": (None, "/bin/false")}):
        planned = planned_wrapper(
            program.module(check_guards=False), (torch.ones(8, 8),), {}, lambda *call: [], has_weights=False
        )

    taken = [line for line in planned.lines if line.act == "take"]
    assert {str(size) for line in taken for size in line.shape} <= {*map(str, taken[0].shape), "1"}
    assert not isinstance(taken[0].shape[0], int)
    assert [line.name for line in planned.lines if line.act == "call"].count("aten.mm.out") == 2
    assert [*map(bool, planned.returned)] == [True]
    assert own == (
        GraphLowering.codegen_with_cpp_wrapper, cpu_vec_isa.pick_vec_isa, cpp_builder.get_cpp_compiler
    )  # fmt: skip

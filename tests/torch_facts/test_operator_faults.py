"""What `operator_faults` relies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

from fakexport._torch.tracing.operator_faults import TraceFinished, ended_after_trace, traced_past_faults


@torch.library.custom_op("fx_faults::pair", mutates_args=())
def pair(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return x + y, [x - y]


torch.library.define("fx_faults::in_place", "(Tensor(a!) x, int n) -> Tensor(a!)")


@torch.library.impl("fx_faults::in_place", "cpu")
def in_place(x, n):
    return x.mul_(n)


def faults(forward, *args):
    found = []

    def note(fault):
        found.append((fault.kind, fault.operator, fault.remedy))
        return True

    class Model(nn.Module):
        def forward(self, *inputs):
            return forward(*inputs)

    with traced_past_faults(note, before_each=lambda: None):
        program = torch.export.export(Model(), args)
    return found, program


def test_an_operator_of_python_without_a_fake_kernel_gives_what_its_schema_says():
    found, program = faults(lambda x, y: pair(x, y), torch.ones(2, 3), torch.ones(2, 3))

    assert found == [("kernel", "fx_faults::pair", "a tensor like its first argument")]
    assert [tuple(node.meta["val"].shape) for node in program.graph.output_node().args[0]] == [(2, 3), (2, 3)]


def test_an_operator_without_a_meta_kernel_gives_the_tensor_that_it_writes_to():
    found, program = faults(lambda x: torch.ops.fx_faults.in_place(x + 1, 2), torch.ones(4))

    assert [kind for kind, *_ in found] == ["kernel"]
    assert program.graph.output_node().args[0][0].meta["val"].shape == (4,)


def test_tensors_of_two_devices_come_to_the_accelerator():
    with torch.device("meta"):
        weight = torch.ones(3)

    found, program = faults(lambda x: x * weight.detach(), torch.ones(2, 3))

    assert found == [("devices", "aten::mul", "`self` on meta")]
    assert program.graph.output_node().args[0][0].meta["val"].device.type == "meta"


def test_a_value_that_only_data_gives_has_the_type_of_the_schema():
    found, _ = faults(lambda x: x + (1 if torch.equal(x, -x) else 2), torch.ones(2))

    assert found == [("value", "aten::equal", "False")]


def test_an_ordinary_error_is_left_alone():
    with pytest.raises(RuntimeError, match=r"same reduction dim|shapes cannot be multiplied"):
        faults(lambda x: x @ x, torch.ones(2, 3))


def test_an_export_ends_after_its_trace_and_torch_is_whole_afterwards():
    with ended_after_trace(), pytest.raises(TraceFinished):
        torch.export.export(nn.Linear(2, 3), (torch.ones(1, 2),))

    program = torch.export.export(nn.Linear(2, 3), (torch.ones(1, 2),))
    assert program.module()(torch.ones(1, 2)).shape == (1, 3)


def test_declared_dimensions_are_checked_before_the_end():
    class OneSize(nn.Module):
        def forward(self, x):
            return x.reshape(4, 2)

    with ended_after_trace(), pytest.raises(torch._dynamo.exc.UserError, match="Constraints violated"):
        torch.export.export(OneSize(), (torch.ones(4, 2),), dynamic_shapes=({0: Dim.DYNAMIC},))

"""Literals in a traced `forward`: which nodes torch makes of them, and what `fold_lifted_moves` leaves.

The oracle is the CPU program of the same model, which is what the device's program must look like but for
the device literals.
"""

import pytest
import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import new_fake_mode
from fakexport._torch.emulation.lifted_constants import fold_lifted_moves, note_lifted_value
from fakexport.emulation.devices import emulate


class Calling(nn.Module):
    def __init__(self, function, device):
        super().__init__()
        self.function = function
        self.linear = nn.Linear(3, 3, device=device)

    def forward(self, x):
        return self.function(self.linear(x))


def export_on(device, function, strict=False):
    with new_fake_mode():
        model, x = Calling(function, device), torch.empty(3, 3, device=device)
    return torch.export.export(model, (x,), strict=strict)


def operators(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


LITERALS = {
    "tensor": lambda x: x + torch.tensor([1.0, 2.0, 3.0], device=x.device),
    "scalar": lambda x: x + torch.tensor(2.0, device=x.device),
    "with_dtype": lambda x: x + torch.tensor([1, 2, 3], device=x.device, dtype=x.dtype),
    "as_tensor": lambda x: x * torch.as_tensor([1.0, 2.0, 3.0], device=x.device),
    "new_tensor": lambda x: x - x.new_tensor([1.0, 2.0, 3.0]),
    "index": lambda x: x[torch.tensor([0, 2], device=x.device)],
    "two": lambda x: x + torch.tensor(1.0, device=x.device) * torch.tensor([4.0, 5.0, 6.0], device=x.device),
    "read": lambda x: x * torch.tensor(3, device=x.device).item(),
    "empty": lambda x: torch.cat([torch.tensor([], device=x.device), x.flatten()]),
    "arange": lambda x: x + torch.arange(3, device=x.device),
}
CASES = [
    *((name, "H100", "cuda:0", False) for name in LITERALS),
    *((name, "H100", "cuda:0", True) for name in ("tensor", "scalar", "index")),
    *(("two", spec, f"{spec}:0", False) for spec in ("xpu", "mps")),
]


@pytest.mark.parametrize(("name", "spec", "device", "strict"), CASES)
def test_a_literal_takes_the_same_operators_as_on_the_cpu(name, spec, device, strict):
    on_cpu = export_on("cpu", LITERALS[name], strict)

    with emulate(spec):
        program = export_on(device, LITERALS[name], strict)
        fold_lifted_moves(program)

    assert operators(program) == operators(on_cpu)
    values = [node.meta.get("val") for node in program.graph.nodes]
    assert {str(value.device) for value in values if isinstance(value, torch.Tensor)} == {device}


def test_stock_lifts_a_literal_on_the_cpu_and_the_values_of_folded_ones_are_handed_out():
    with emulate("H100"):
        program = export_on("cuda:0", LITERALS["tensor"])
        lifts = program.graph.find_nodes(op="call_function", target=torch.ops.aten.lift_fresh_copy.default)
        assert [str(node.meta["val"].device) for node in lifts] == ["cpu"]
        folded = fold_lifted_moves(program)

    assert [value.tolist() for value in folded.values()] == [[1.0, 2.0, 3.0]]
    assert {str(program.constants[name].device) for name in folded} == {"cuda:0"}


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_move_that_the_model_wrote_stays(device):
    with emulate("H100"):
        program = export_on("cuda:0", lambda x: x + torch.tensor([1.0, 2.0, 3.0]).to(device))
        before = operators(program)

        assert fold_lifted_moves(program) == {}

    assert operators(program) == before
    assert any("aten.to." in name or "_to_copy" in name for name in before)


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.arange(3.0)
        self.register_buffer("buffer", torch.arange(3.0), persistent=False)

    def forward(self, x):
        return x + self.table + self.buffer


def test_torch_notes_the_value_of_a_lifted_constant_and_so_do_we():
    program = torch.export.export(Table(), (torch.ones(3),))
    lifted, buffer = (
        next(node for node in program.graph.nodes if node.name == name) for name in ("c_table", "b_buffer")
    )
    assert lifted.meta["val"].constant is program.constants["table"]
    assert buffer.meta["val"].constant is None

    other = torch.ones(3)
    note_lifted_value(lifted, other)
    note_lifted_value(buffer, other)
    assert lifted.meta["val"].constant is other
    assert buffer.meta["val"].constant is None

    with new_fake_mode():
        note_lifted_value(lifted, torch.ones(3))
    assert lifted.meta["val"].constant is None

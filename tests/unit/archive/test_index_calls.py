"""Programs that index under `torch.vmap`, as masks of transformers do, are stored.

The oracle is the program itself, and eager.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

import fakexport as fe


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        positions = torch.arange(x.size(0), device=x.device)
        allowed = positions % 2 == 0
        table = torch.vmap(torch.vmap(lambda i, j: (i >= j) & allowed[j], (None, 0)), (0, None))
        with TransformGetItemToIndex():
            mask = table(positions, positions)
        return mask.to(x.dtype) @ self.linear(x)


@pytest.mark.parametrize("dynamic", [None, "auto"])
@pytest.mark.parametrize("topology", ["cpu", "H100"])
def test_a_stored_program_gives_the_same_bits(dynamic, topology, tmp_path):
    eager = Masked()
    program = fe.export(Masked, (torch.ones(3, 4),), target=topology, dynamic_shapes=dynamic)
    nodes = [node.name for node in program.graph.nodes]

    fe.save(program, tmp_path / "masked.pt2")

    bound = fe.bind(
        tmp_path / "masked.pt2", dict(eager.state_dict()), devices=None if topology == "cpu" else "cpu"
    )
    x = torch.randn(3, 4)
    assert torch.equal(bound.module()(x), eager(x))
    assert [node.name for node in program.graph.nodes] == nodes, "saving changed the program"


def test_stock_torch_loads_a_stored_program(tmp_path):
    eager = Masked()
    bound = fe.bind(fe.export(Masked, (torch.ones(3, 4),)), dict(eager.state_dict()))

    fe.save(bound, tmp_path / "bound.pt2")

    x = torch.randn(3, 4)
    assert torch.equal(torch.export.load(tmp_path / "bound.pt2").module()(x), eager(x))

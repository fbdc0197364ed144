"""What `_torch/foreign_fakes.py` relies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fakexport._torch.fake_tensors import FakeTensor, new_fake_mode
from fakexport._torch.foreign_fakes import foreign_fakes_join_the_trace


class Box:
    def __init__(self) -> None:
        self.tensor = torch.zeros(2, 3)


class WritesToBox(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.box = Box()

    def forward(self, x):
        return self.box.tensor.copy_(x) + 1


def fakes() -> tuple[WritesToBox, tuple[torch.Tensor]]:
    with new_fake_mode():
        return WritesToBox(), (torch.ones(2, 3),)


def test_stock_export_refuses_a_fake_that_an_in_place_operator_returns():
    with pytest.raises(AssertionError, match="fake mode"):
        torch.export.export(*fakes())


def test_every_node_has_a_value_of_the_mode_of_the_trace():
    real = torch.export.export(WritesToBox(), (torch.ones(2, 3),))

    with foreign_fakes_join_the_trace():
        program = torch.export.export(*fakes())

    values = [
        node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), FakeTensor)
    ]
    assert len({id(value.fake_mode) for value in values}) == 1
    assert str(program.graph) == str(real.graph)
    assert program.graph_signature == real.graph_signature

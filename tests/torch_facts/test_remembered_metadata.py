"""What `remembered_metadata` relies on: metadata follows from the layout, and modes hear that."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.overrides import TorchFunctionMode

from fakexport._torch.speed.remembered_metadata import remembered_metadata
from tests.identity import first_difference


class Layouts(nn.Module):
    """Values of equal sizes and unequal layouts, and sizes whose nodes are named after the last question."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(4, 4)) for _ in range(5))
        self.register_buffer("turned", torch.ones(4, 4).t())
        self.register_buffer("image", torch.ones(1, 3, 4, 4).to(memory_format=torch.channels_last))
        self.register_buffer("plain", torch.ones(1, 3, 4, 4))

    def forward(self, x):
        count = x.shape[0]
        for weight in self.weights:
            x = x @ weight
        y = torch.ones(count * 2, 4) + torch.ones(count)[:, None].repeat(2, 1)
        return x @ self.turned, self.image + self.plain, self.image * 2, y, x.half(), x.t().contiguous()


def facts(program):
    return [
        (node.name, node.meta.get("tensor_meta"), node.meta.get("torch_fn")) for node in program.graph.nodes
    ]


@pytest.mark.parametrize("shapes", [None, ({0: Dim.AUTO},)], ids=["static", "auto"])
def test_the_metadata_is_that_of_stock_torch(shapes):
    def exported():
        return torch.export.export(Layouts(), (torch.ones(3, 4),), dynamic_shapes=shapes)

    stock = exported()
    with remembered_metadata():
        quick = exported()

    assert first_difference(quick, stock) is None
    assert facts(quick) == facts(stock)


class Hears(TorchFunctionMode):
    def __init__(self):
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


def test_a_mode_of_the_user_hears_every_question():
    def heard():
        with Hears() as mode:
            torch.export.export(Layouts(), (torch.ones(3, 4),))
        return mode.names

    stock = heard()
    with remembered_metadata():
        quick = heard()

    assert quick == stock

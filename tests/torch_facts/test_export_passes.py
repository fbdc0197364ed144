"""What `export_passes` relies on: it leaves out work, and no result differs."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, _trace
from torch.fx.experimental import symbolic_shapes
from torch.utils import _pytree

from fakexport._torch.speed.export_passes import quick_passes
from tests.identity import first_difference


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).relu()


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Inner() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        with torch.no_grad():
            return x, x.chunk(2)


class DataDependent(nn.Module):
    def forward(self, x):
        n = (x[0] > 0).nonzero().shape[0]
        return torch.zeros(2 * n), x.sum().to(torch.int64).item(), torch.ones(n, 3)


@pytest.mark.parametrize("shapes", [None, {"x": {0: Dim.AUTO}}], ids=["static", "auto"])
@pytest.mark.parametrize("module", [Plain(), DataDependent()])
def test_the_program_is_the_same(module, shapes):
    def exported():
        return torch.export.export(module, (torch.randn(6, 4),), dynamic_shapes=shapes)

    stock = exported()
    with quick_passes():
        quick = exported()

    assert first_difference(quick, stock) is None
    assert [n.meta.get("unbacked_bindings") for n in quick.graph.nodes] == [
        n.meta.get("unbacked_bindings") for n in stock.graph.nodes
    ]


def test_symbols_are_found_only_among_the_pending_ones():
    environment = symbolic_shapes.ShapeEnv()
    with FakeTensorMode(shape_env=environment) as mode:
        size = environment.create_unbacked_symint()
        value = torch.empty(size, 3)
    assert mode.shape_env is environment
    stock = symbolic_shapes._free_unbacked_symbols_with_path
    every = {size.node.expr}

    assert stock(value, (), shape_env=environment, pending=set(), simplify=True) == {}
    assert stock(value, (), shape_env=environment, pending=set(every), simplify=True).keys() == every
    with quick_passes():
        looking = symbolic_shapes._free_unbacked_symbols_with_path
        assert looking(value, (), shape_env=environment, pending=set(), simplify=True) == {}
        assert looking(value, (), shape_env=environment, pending=set(every), simplify=True).keys() == every


@pytest.mark.parametrize(
    "stack",
    [
        OrderedDict(a=("_export_root.layers.0", "torch.nn.Linear"), b=("", "x")),
        OrderedDict(a=("_export_root", ["_export_root.x"])),
        {"a": ("_export_root.layers.0", "torch.nn.Linear")},
        OrderedDict(a="_export_root.x"),
    ],
)
def test_a_module_stack_is_shortened_as_stock_does_it(stack):
    stock = _pytree.tree_map(_trace._strip_root, stack)

    with quick_passes():
        quick = _pytree.tree_map(_trace._strip_root, stack)

    assert quick == stock
    assert type(quick) is type(stock)

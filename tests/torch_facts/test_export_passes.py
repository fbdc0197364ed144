"""What `_torch/export_passes.py` relies on: it leaves out work, and no result differs."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch._export.passes import replace_set_grad_with_hop_pass
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, _trace
from torch.fx.experimental import symbolic_shapes
from torch.utils import _pytree

from fakexport._torch.export_passes import quick_passes
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


class Unused(nn.Module):
    """What is computed and not returned stays, but for sizes and what they are computed from."""

    def forward(self, x):
        x.add(1)
        torch.ones(x.shape[0] * 2 + 1).shape[0] * 3
        return x * 2


class DataDependent(nn.Module):
    def forward(self, x):
        n = (x[0] > 0).nonzero().shape[0]
        return torch.zeros(2 * n), x.sum().to(torch.int64).item(), torch.ones(n, 3)


class Checked(nn.Module):
    """An assertion that is known to hold is removed, even if the trace has no symbols."""

    def forward(self, x):
        torch._check(x.shape[0] > 2)
        torch.ops.aten._assert_scalar(x.shape[0] > 1, "too small")
        torch.ops.aten.sym_constrain_range(x.shape[1], min=1, max=9)
        return x.detach() * 2


@pytest.mark.parametrize("shapes", [None, {"x": {0: Dim.AUTO}}], ids=["static", "auto"])
@pytest.mark.parametrize("module", [Plain(), Unused(), DataDependent(), Checked()])
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


def test_the_keys_of_module_stacks_are_those_of_stock():
    keys = ["_export_root", "_export_root.layers.0", "layers@1", ""]
    stock = [_trace._fixup_key(key) for key in keys]

    with quick_passes():
        assert [_trace._fixup_key(key) for key in keys] == stock
        assert _trace._fixup_key("".join(["a", "b"])) is _trace._fixup_key("".join(["a", "b"]))


def test_what_a_pass_leaves_is_checked_with_the_program(monkeypatch):
    """The passes themselves do not check; torch does so once more when it makes the program."""
    stock = replace_set_grad_with_hop_pass._replace_with_hop_pass_helper

    def broken(*args, **kwargs):
        module, signature = stock(*args, **kwargs)
        first, *_, output = (node for node in module.graph.nodes if node.op in ("call_function", "output"))
        output.prepend(first)  # After its users.
        return module, signature

    monkeypatch.setattr(replace_set_grad_with_hop_pass, "_replace_with_hop_pass_helper", broken)

    with quick_passes(), pytest.raises(RuntimeError, match="used before it has been defined"):
        torch.export.export(Inner(), (torch.randn(6, 4),))

"""Stock torch shows the classes of a trace to user code. A class can be presented to one namespace alone."""

from __future__ import annotations

import builtins
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fakexport._torch.tracing.presented_classes import classes_presented, presented_class
from tests.torch_facts.stock_torch import run_stock

KINDS = (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool)


def is_this_file(path):
    return path == __file__


@pytest.fixture
def traced():
    number = ShapeEnv().create_unbacked_symint()
    with FakeTensorMode():
        yield torch.ones(5), number, number / 2, number > 3


def test_stock_shows_the_classes_of_the_trace():
    printed = run_stock(
        "import torch\n"
        "class M(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        print(type(x).__name__, type(x.shape[0]).__name__, isinstance(x.shape[0], int))\n"
        "        return x * 2\n"
        "torch.export.export(M(), (torch.ones(3),), dynamic_shapes=[{0: torch.export.Dim('n')}])\n"
    )

    assert "FakeTensor SymInt False" in printed.stdout


def test_this_module_sees_the_classes_of_eager_mode_and_another_one_those_of_the_trace(traced):
    class Mine(FakeTensor):
        pass

    names = {}
    exec("def classes(values): return [(type(v), v.__class__, isinstance(v, int)) for v in values]", names)

    with classes_presented(is_this_file):
        assert [type(value) for value in traced] == [torch.Tensor, int, float, bool]
        assert [value.__class__ for value in traced] == [torch.Tensor, int, float, bool]
        assert isinstance(traced[1], int)
        seen = names["classes"](traced)
        traced[0].__class__ = Mine

    assert seen == [(kind, kind, False) for kind in KINDS]
    assert [type(value) for value in traced] == [Mine, *KINDS[1:]]
    assert not isinstance(traced[1], int)


def test_the_context_may_be_nested_and_leaves_nothing(traced):
    with classes_presented(is_this_file):
        with classes_presented(is_this_file):
            pass
        assert type(traced[1]) is int

    assert "type" not in globals()
    assert all("__class__" not in vars(kind) for kind in KINDS)
    assert presented_class(traced[1]) is int
    assert builtins.type is sys.modules["builtins"].type

"""Where tracing executes operations on literals for real, and what is replaced there."""

import inspect

import pytest
import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import proxy_tensor

from fakexport._torch.constant_propagation import constants_stay_on_cpu
from fakexport._torch.fake_tensors import new_fake_mode
from fakexport.devices import emulate
from tests.torch_facts.stock_torch import run_stock

is_cpu_wheel = pytest.mark.skipif(torch.version.cuda is not None, reason="asks what a CPU-only wheel does")


def test_tracing_folds_literals_outside_of_fake_mode():
    assert proxy_tensor.unset_fake_temporarily is fake_tensor.unset_fake_temporarily
    assert "unset_fake_temporarily()" in inspect.getsource(proxy_tensor.proxy_call)


def test_fake_mode_dispatches_by_one_method():
    assert list(inspect.signature(FakeTensorMode._dispatch_impl).parameters) == [
        "self",
        "func",
        "types",
        "args",
        "kwargs",
    ]


@is_cpu_wheel
def test_stock_folds_on_the_device_that_the_operation_names():
    ended = run_stock(
        "from fakexport._torch.device_guard import VirtualGuards\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x + torch.tensor(2.0, device=x.device)\n"
        "with VirtualGuards(['cuda']):\n"
        "    with FakeTensorMode(): x = torch.empty(2, device='cuda')\n"
        "    torch.export.export(Model(), (x,))"
    )

    assert ended.code == 1
    assert "'CUDA' backend" in ended.error


def test_both_places_are_put_back():
    before = proxy_tensor.unset_fake_temporarily, FakeTensorMode._dispatch_impl

    with constants_stay_on_cpu():
        inside = proxy_tensor.unset_fake_temporarily, FakeTensorMode._dispatch_impl

    assert not set(inside) & set(before)
    assert (proxy_tensor.unset_fake_temporarily, FakeTensorMode._dispatch_impl) == before


class LooksAtOneTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(4.0, device="cuda")
        self.rest = self.table[1:]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table.sum() + self.rest.sum()


def test_a_fake_attribute_and_a_view_of_it_are_both_lifted():
    with emulate("H100"):
        with new_fake_mode():
            model, x = LooksAtOneTable(), torch.empty(2, device="cuda")
        program = torch.export.export(model, (x,))

    assert {name: tuple(t.shape) for name, t in program.constants.items()} == {"table": (4,), "rest": (3,)}


@is_cpu_wheel
def test_stock_folds_with_a_fake_constant_as_if_it_were_real():
    ended = run_stock(
        "from fakexport._torch.device_guard import VirtualGuards\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table = torch.arange(4.0, device='cuda')\n"
        "        self.rest = self.table[1:]\n"
        "    def forward(self, x):\n"
        "        return x + self.table.sum() + self.rest.sum()\n"
        "with VirtualGuards(['cuda']):\n"
        "    with FakeTensorMode(): model, x = Model(), torch.empty(2, device='cuda')\n"
        "    torch.export.export(model, (x,))"
    )

    assert ended.code == 1
    assert "could not find kernel for aten.as_strided.default" in ended.error

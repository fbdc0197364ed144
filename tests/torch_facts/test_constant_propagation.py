"""Where tracing executes operations on literals for real, and what is replaced there."""

import inspect

import pytest
import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import proxy_tensor

from fakexport._torch.constant_propagation import constants_stay_on_cpu
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

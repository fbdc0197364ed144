"""The autograd engine on a CPU-only wheel."""

import pytest
import torch

from fakexport._torch import accelerator_hooks, method_table
from fakexport._torch.virtual_backward import virtual_backward
from fakexport.devices import emulate
from tests.torch_facts.stock_torch import run_stock

is_cpu_wheel = pytest.mark.skipif(torch.version.cuda is not None, reason="asks what a CPU-only wheel does")


def test_backward_passes_enter_the_engine_at_one_place():
    stock = torch.autograd._engine_run_backward
    assert stock is torch.autograd.graph._engine_run_backward
    with virtual_backward("cuda"):
        assert torch.autograd.graph._engine_run_backward is not stock
        assert torch.autograd._engine_run_backward is not stock
    assert torch.autograd._engine_run_backward is stock


@is_cpu_wheel
def test_a_guard_alone_does_not_make_a_backward_pass():
    ended = run_stock(
        "from fakexport._torch.device_guard import VirtualGuards\n"
        "with VirtualGuards(['cuda']), FakeTensorMode():\n"
        "    x = torch.ones(2, device='cuda', requires_grad=True)\n"
        "    (x * x).sum().backward()"
    )

    assert "Cannot access accelerator device when none is available." in ended.error


def test_a_backward_pass_that_raises_leaves_the_object_as_it_was():
    hooks = accelerator_hooks.accelerator_hooks("cuda")
    before = method_table.table_of(hooks._hooks)

    with emulate("H100"), pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).sum().backward()

    assert method_table.table_of(hooks._hooks) == before

"""The autograd engine on a CPU-only wheel, and the C++ object that it asks for its accelerator."""

import pytest
import torch

from fakexport._torch import method_table, virtual_backward
from fakexport._torch.virtual_backward import _BASE, _HOOKS
from fakexport.devices import emulate
from tests.torch_facts.stock_torch import run_stock

is_cpu_wheel = pytest.mark.skipif(torch.version.cuda is not None, reason="asks what a CPU-only wheel does")


def test_backward_passes_enter_the_engine_at_one_place():
    assert torch.autograd._engine_run_backward is torch.autograd.graph._engine_run_backward


@is_cpu_wheel
def test_a_guard_alone_does_not_make_a_backward_pass():
    ended = run_stock(
        "from fakexport._torch.device_guard import VirtualGuards\n"
        "with VirtualGuards(['cuda']), FakeTensorMode():\n"
        "    x = torch.ones(2, device='cuda', requires_grad=True)\n"
        "    (x * x).sum().backward()"
    )

    assert "Cannot access accelerator device when none is available." in ended.error


@pytest.mark.parametrize("device_type", sorted(_HOOKS))
def test_the_header_declares_the_questions_that_we_answer(device_type):
    positions = method_table.method_positions(_HOOKS[device_type][1], _BASE)

    assert {"isBuilt", "hasPrimaryContext", "isAvailable"} <= positions.keys()
    assert len(set(positions.values())) == len(positions)
    assert min(positions.values()) == 0


@is_cpu_wheel
@pytest.mark.parametrize("device_type", sorted(_HOOKS))
def test_torch_asks_the_object_that_we_change_for_its_accelerator(device_type):
    before = torch._C._accelerator_getAccelerator()

    with virtual_backward.only_accelerator(device_type):
        inside = torch._C._accelerator_getAccelerator()

    assert inside == torch.device(device_type)
    assert torch._C._accelerator_getAccelerator() == before


def test_overlapping_passes_leave_the_object_as_it_was():
    hooks = virtual_backward.accelerator_hooks("cuda")
    before = method_table.table_of(hooks._hooks)

    with hooks.answering(True), hooks.answering(True):
        inside = method_table.table_of(hooks._hooks)

    assert inside != before
    assert method_table.table_of(hooks._hooks) == before


def test_a_backward_pass_that_raises_leaves_the_object_as_it_was():
    hooks = virtual_backward.accelerator_hooks("cuda")
    before = method_table.table_of(hooks._hooks)

    with emulate("H100"), pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).sum().backward()

    assert method_table.table_of(hooks._hooks) == before

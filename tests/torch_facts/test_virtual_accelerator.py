"""What `virtual_accelerator` relies on: the C++ objects that torch asks about its accelerator."""

from __future__ import annotations

import pytest
import torch

from fakexport._torch.emulation import method_table
from fakexport._torch.emulation.virtual_accelerator import (
    _BASE,
    _HOOKS,
    accelerator_hooks,
    virtual_accelerator,
    virtual_backward,
)
from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import fake_mode
from tests.torch_facts.stock_torch import run_stock

BUILT_FOR = torch._C._accelerator_getAccelerator()
is_cpu_wheel = pytest.mark.skipif(BUILT_FOR is not None, reason="asks what a CPU-only wheel does")


@pytest.mark.parametrize("device_type", sorted(_HOOKS))
def test_the_header_declares_the_questions_that_we_answer(device_type):
    positions = method_table.method_positions(_HOOKS[device_type][1], _BASE)

    assert {"isBuilt", "hasPrimaryContext", "isAvailable"} <= positions.keys()
    assert len(set(positions.values())) == len(positions)
    assert min(positions.values()) == 0


@is_cpu_wheel
def test_stock_reads_no_integer_as_a_device_and_a_guard_alone_makes_no_backward_pass():
    with pytest.raises(RuntimeError, match="none is available"):
        torch.device(1)

    ended = run_stock(
        "from fakexport._torch.emulation.device_guard import VirtualGuards\n"
        "with VirtualGuards(['cuda']), FakeTensorMode():\n"
        "    x = torch.ones(2, device='cuda', requires_grad=True)\n"
        "    (x * x).sum().backward()"
    )
    assert "Cannot access accelerator device when none is available." in ended.stderr


@pytest.mark.parametrize("device_type", ["cuda", "xpu", "mps"])
def test_an_integer_is_a_device_of_the_innermost_type(device_type):
    with virtual_accelerator("cuda"), virtual_accelerator(device_type):
        assert torch.device(1) == torch.device(device_type, 1)

    assert torch._C._accelerator_getAccelerator() == BUILT_FOR


def test_fakes_and_fake_modules_move_to_an_integer():
    with emulate("8xH100"), fake_mode():
        moved = [
            torch.ones(2).cuda(1),
            torch.ones(2).to(2),
            torch.ones(2, device=3),
            torch.nn.Linear(2, 2).cuda(4).weight,
            torch.nn.Linear(2, 2).to(5).weight,
        ]

    assert [str(tensor.device) for tensor in moved] == [f"cuda:{index}" for index in (1, 2, 3, 4, 5)]


def test_the_object_is_as_it_was_after_overlapping_passes_and_after_an_error():
    hooks = accelerator_hooks("cuda")
    before = method_table.table_of(hooks._hooks)

    with hooks.answering(True), hooks.answering(True):
        assert method_table.table_of(hooks._hooks) != before
    with emulate("H100"), pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).sum().backward()

    assert method_table.table_of(hooks._hooks) == before


def test_backward_passes_enter_the_engine_at_one_place():
    stock = torch.autograd._engine_run_backward
    assert stock is torch.autograd.graph._engine_run_backward

    with virtual_backward("cuda"):
        assert torch.autograd.graph._engine_run_backward is not stock
        assert torch.autograd._engine_run_backward is not stock

    assert torch.autograd._engine_run_backward is stock

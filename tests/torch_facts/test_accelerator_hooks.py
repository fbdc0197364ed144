"""The C++ objects that torch asks which accelerator it was built for."""

import pytest
import torch

from fakexport._torch import accelerator_hooks, method_table
from fakexport._torch.accelerator_hooks import _BASE, _HOOKS

is_cpu_wheel = pytest.mark.skipif(torch.version.cuda is not None, reason="asks what a CPU-only wheel does")


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

    with accelerator_hooks.only_accelerator(device_type):
        inside = torch._C._accelerator_getAccelerator()

    assert inside == torch.device(device_type)
    assert torch._C._accelerator_getAccelerator() == before


def test_overlapping_passes_leave_the_object_as_it_was():
    hooks = accelerator_hooks.accelerator_hooks("cuda")
    before = method_table.table_of(hooks._hooks)

    with hooks.answering(True), hooks.answering(True):
        inside = method_table.table_of(hooks._hooks)

    assert inside != before
    assert method_table.table_of(hooks._hooks) == before

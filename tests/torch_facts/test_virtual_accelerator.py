"""What `_torch/virtual_accelerator.py` relies on."""

from __future__ import annotations

import pytest
import torch

from fakexport._torch.virtual_accelerator import virtual_accelerator
from fakexport.devices import emulate
from fakexport.fake import fake_mode

BUILT_FOR = torch._C._accelerator_getAccelerator()


def test_the_build_is_what_it_was_afterwards():
    with virtual_accelerator("cuda"), virtual_accelerator("xpu"):
        assert torch._C._accelerator_getAccelerator().type == "xpu"

    assert torch._C._accelerator_getAccelerator() == BUILT_FOR


@pytest.mark.skipif(BUILT_FOR is not None, reason="a build with an accelerator reads integers already")
def test_stock_reads_no_integer_as_a_device_without_an_accelerator():
    with pytest.raises(RuntimeError, match="none is available"):
        torch.device(1)


@pytest.mark.parametrize("device_type", ["cuda", "xpu", "mps"])
def test_an_integer_is_a_device_of_the_type(device_type):
    with virtual_accelerator(device_type):
        assert torch.device(1) == torch.device(device_type, 1)


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

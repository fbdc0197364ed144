"""What `fakexport._torch.real_execution` relies on."""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode

from fakexport._torch.fake_tensors import is_fake_tensor, new_fake_mode
from fakexport._torch.real_execution import meta_execution, real_execution


def test_fake_modes_are_off_and_on_again() -> None:
    with new_fake_mode():
        with real_execution():
            real = torch.ones(2)
        fake = torch.ones(2)

    assert not is_fake_tensor(real)
    assert is_fake_tensor(fake)


def test_function_modes_and_default_devices_are_off() -> None:
    class Fails(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            raise AssertionError(func)

    with torch.device("meta"), Fails(), real_execution():
        assert torch.ones(2).device.type == "cpu"


def test_autocast_autograd_and_inference_mode_are_off() -> None:
    a = torch.ones(2, 2, requires_grad=True)

    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), real_execution():
        b = a @ a

    assert b.dtype == torch.float32
    assert not b.requires_grad
    assert not b.is_inference()


def test_new_tensors_are_on_the_meta_device_and_not_fake() -> None:
    with new_fake_mode(), torch.device("cpu"), meta_execution():
        made = torch.ones(2)

    assert made.device.type == "meta"
    assert not is_fake_tensor(made)

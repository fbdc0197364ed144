"""A device that does not exist: what stock torch raises, and that our error is both of its errors."""

import pytest
import torch

from fakexport._torch.emulation.absent_devices import AbsentDevice, unreached_device_type


def test_our_error_is_what_either_build_of_torch_raises():
    error = AbsentDevice.named("cuda:3", "cpu, cuda:0", instead="cuda:0")

    assert isinstance(error, (torch.AcceleratorError, RuntimeError))
    assert isinstance(error, AssertionError)
    assert str(error) == "device cuda:3 does not exist on this target: it has cpu, cuda:0"
    assert error.instead == torch.device("cuda:0")


@pytest.mark.parametrize("device_type", ["cuda", "xpu", "mps"])
def test_a_generator_of_an_absent_device_names_the_device_in_the_words_of_the_build(device_type):
    if torch.accelerator.is_available():
        pytest.skip("a real device answers")

    with pytest.raises(RuntimeError) as raised:
        torch.Generator(device=device_type)

    assert unreached_device_type(str(raised.value)) == device_type
    assert unreached_device_type("CUDA out of memory") is None

"""A device that does not exist: what stock torch raises, and that fake mode raises nothing."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.absent_devices import AbsentDevice, unreached_device_type

is_cpu_wheel = pytest.mark.skipif(torch.version.cuda is not None, reason="asks what a CPU-only wheel answers")


@is_cpu_wheel
def test_a_real_tensor_on_an_absent_device_is_an_assertion_on_a_cpu_only_wheel():
    with pytest.raises(AssertionError, match="Torch not compiled with CUDA enabled"):
        torch.ones(1, device="cuda:3")


def test_stock_fake_mode_takes_any_device():
    with FakeTensorMode():
        assert torch.ones(1, device="cuda:3").device == torch.device("cuda:3")


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


@pytest.mark.parametrize(
    "message",
    ["CUDA error: an illegal memory access was encountered", "CUDA out of memory", "expected a generator"],
)
def test_another_error_of_a_device_is_not_about_its_absence(message):
    assert unreached_device_type(message) is None


def test_stock_export_keeps_an_operator_that_raised():
    class Catches(torch.nn.Module):
        def forward(self, x):
            try:
                return x @ torch.zeros(3, 3)
            except RuntimeError:
                return x * 3

    program = torch.export.export(Catches(), (torch.ones(2, 8),))

    matmul = next(node for node in program.graph.nodes if "matmul" in node.name)
    assert not matmul.users
    assert matmul.meta.get("val") is None

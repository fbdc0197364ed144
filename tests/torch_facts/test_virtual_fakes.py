"""What `virtual_fakes` relies on: fake mode decides from device queries whether it may touch a device."""

import inspect

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fakexport._torch.emulation.device_guard import VirtualGuards
from fakexport._torch.emulation.fake_tensors import virtual_fakes
from fakexport._torch.patching import Patches
from tests.torch_facts.stock_torch import run_stock


def test_stock_touches_a_device_that_answers_available():
    ended = run_stock(
        "torch.cuda.is_available = lambda: True\n"
        "torch._C._cuda_getDevice = lambda: 0\n"
        "torch.cuda.is_initialized = lambda: True\ntorch.cuda.current_device = lambda: 0\n"
        "torch.cuda._lazy_init = lambda: None\n"
        "print(FakeTensorMode().avoid_device_init)\n"
        "from fakexport._torch.emulation.device_guard import VirtualGuards\n"
        "with VirtualGuards(['cuda']), FakeTensorMode():\n    torch.tensor([1.0], device='cuda')"
    )

    assert ended.stdout.strip() == "False"
    is_touched = "'aten::empty" in ended.stderr and "'CUDA'" in ended.stderr  # a CPU-only wheel
    assert is_touched or "Found no NVIDIA driver" in ended.stderr


def test_no_device_is_touched_whatever_it_answers(monkeypatch):
    assert isinstance(inspect.getattr_static(FakeTensorMode, "avoid_device_init"), property)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    with virtual_fakes():
        assert FakeTensorMode().avoid_device_init
        assert fake_tensor.init_gpu_context(torch.device("cuda")) is None


def test_fake_mode_remembers_results_in_one_place_for_the_process():
    outer = FakeTensorMode.cache
    with FakeTensorMode():
        torch.empty(3, 5) + 1
    before = dict(outer)

    with virtual_fakes(), FakeTensorMode():
        torch.empty(7, 11) + 1
        inside = dict(FakeTensorMode.cache)

    assert before
    assert inside
    assert FakeTensorMode.cache is outer
    assert dict(outer) == before


def test_stock_makes_a_new_tensor_on_the_first_device():
    assert "new_tensor" not in vars(FakeTensor)
    with VirtualGuards(["cuda"]), Patches({(FakeTensorMode, "avoid_device_init"): True}), FakeTensorMode():
        x = torch.empty(2, device="cuda:3")
        assert x.new_tensor([1.0]).device == torch.device("cuda:0")
        with virtual_fakes():
            assert x.new_tensor([1.0]).device == x.new_tensor(1, dtype=torch.int64).device == x.device
            assert x.new_tensor([1.0], device="cpu").device == torch.device("cpu")

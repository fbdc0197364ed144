"""Fake mode decides from `torch.cuda.is_available()` whether it may touch a device."""

import inspect

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.device_initialisation import avoid_device_init
from fakexport._torch.dispatch_cache import own_dispatch_cache
from tests.torch_facts.stock_torch import run_stock


def test_whether_a_device_may_be_touched_is_a_property_of_fake_mode():
    assert isinstance(inspect.getattr_static(FakeTensorMode, "avoid_device_init"), property)


def test_stock_touches_a_device_that_answers_available():
    ended = run_stock(
        "torch.cuda.is_available = lambda: True\n"
        "torch._C._cuda_getDevice = lambda: 0\n"
        "torch.cuda.is_initialized = lambda: True\ntorch.cuda.current_device = lambda: 0\n"
        "torch.cuda._lazy_init = lambda: None\n"
        "print(FakeTensorMode().avoid_device_init)\n"
        "from fakexport._torch.device_guard import VirtualGuards\n"
        "with VirtualGuards(['cuda']), FakeTensorMode():\n    torch.tensor([1.0], device='cuda')"
    )

    assert ended.output.strip() == "False"
    is_touched = "'aten::empty" in ended.error and "'CUDA'" in ended.error  # a CPU-only wheel
    assert is_touched or "Found no NVIDIA driver" in ended.error


def test_it_is_avoided_whatever_the_device_answers(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    stock = FakeTensorMode().avoid_device_init

    with avoid_device_init():
        inside = FakeTensorMode().avoid_device_init

    assert (stock, inside) == (False, True)


def test_fake_mode_remembers_results_in_one_place_for_the_process():
    outer = FakeTensorMode.cache
    with FakeTensorMode():
        torch.empty(3, 5) + 1
    before = dict(outer)

    with own_dispatch_cache(), FakeTensorMode():
        torch.empty(7, 11) + 1
        inside = dict(FakeTensorMode.cache)

    assert before
    assert inside
    assert FakeTensorMode.cache is outer
    assert dict(outer) == before


def test_no_tensor_is_made_to_initialise_a_device():
    assert callable(fake_tensor.init_gpu_context)

    with avoid_device_init():
        assert fake_tensor.init_gpu_context(torch.device("cuda")) is None

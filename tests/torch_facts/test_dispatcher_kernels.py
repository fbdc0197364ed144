"""What `dispatcher_kernels` relies on: the dispatcher says where each kernel was registered."""

from __future__ import annotations

import pytest
import torch

from fakexport._torch.operators.dispatcher_kernels import KernelOrigins

ATEN = torch.ops.aten


@pytest.fixture
def library():
    made = torch.library.Library("aten", "IMPL")
    yield made
    made._destroy()


@pytest.mark.parametrize(
    "operator",
    [ATEN.mul.Tensor, ATEN.linear.default, ATEN.view.default, ATEN.scaled_dot_product_attention.default],
    ids=str,
)
def test_kernels_of_torch_are_its_own(operator):
    assert KernelOrigins().are_of_torch(operator)


@pytest.mark.parametrize("key", ["AutogradCPU", "Meta"])
def test_a_kernel_of_this_file_is_not(library, key):
    assert KernelOrigins().are_of_torch(ATEN.heaviside.default)

    library.impl("heaviside", lambda x, y: x, key, allow_override=True)

    assert not KernelOrigins().are_of_torch(ATEN.heaviside.default)


def test_a_replaced_operator_may_be_part_of_others(library):
    library.impl("heaviside", lambda x, y: x, "AutogradCPU", allow_override=True)

    assert not KernelOrigins().are_of_torch(ATEN.linear.default)


def test_a_python_kernel_of_this_file_is_not(monkeypatch):
    monkeypatch.setitem(ATEN.heaviside.default.py_kernels, torch._C.DispatchKey.Meta, lambda x, y: x)

    assert not KernelOrigins().are_of_torch(ATEN.heaviside.default)


def test_a_registration_is_noticed(library):
    noticed = []
    origins = KernelOrigins()

    with origins.watched(lambda: noticed.append(True)):
        library.impl("heaviside", lambda x, y: x, "AutogradCPU", allow_override=True)
        assert not origins.are_of_torch(ATEN.linear.default)
        library._destroy()

    assert len(noticed) == 2
    assert origins.are_of_torch(ATEN.linear.default)

"""What `real_execution` relies on, and what the active fake mode is."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode

from fakexport._torch.emulation.fake_tensors import (
    active_fake_mode,
    is_fake_tensor,
    new_fake_mode,
    quiet_fake_mode,
)
from fakexport._torch.operators.real_execution import meta_execution, python_kernels, real_execution


class Fails(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise AssertionError(func)


def test_modes_and_default_devices_are_off_and_on_again():
    with new_fake_mode():
        with torch.device("meta"), Fails(), real_execution():
            real = torch.ones(2)
        fake = torch.ones(2)
        with torch.device("cpu"), meta_execution():
            meta = torch.ones(2)

    assert [is_fake_tensor(each) for each in (real, fake, meta)] == [False, True, False]
    assert (real.device.type, meta.device.type) == ("cpu", "meta")


def test_autocast_autograd_and_inference_mode_are_off():
    a = torch.ones(2, 2, requires_grad=True)

    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), real_execution():
        b = a @ a

    assert b.dtype == torch.float32
    assert not b.requires_grad
    assert not b.is_inference()


def test_a_size_that_depends_on_data_can_be_padded_with_python_kernels_alone():
    mode = new_fake_mode()
    size = mode.shape_env.create_unbacked_symint()
    with mode:
        torch._check(size >= 0)
        table = torch.empty(3, 1, size)
    pad = torch.ops.aten.constant_pad_nd.default

    with mode, quiet_fake_mode(), pytest.raises(GuardOnDataDependentSymNode):
        pad(table, [0, 0, 1, 0])
    with mode, python_kernels():
        padded = pad(table, [0, 0, 1, 0])

    assert padded.shape == (3, 2, size)


def test_the_innermost_fake_mode_is_the_active_one():
    outer, inner = FakeTensorMode(), FakeTensorMode()

    with outer:
        with inner:
            assert active_fake_mode() is inner
        assert active_fake_mode() is outer
    assert active_fake_mode() is None

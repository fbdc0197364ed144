"""What `new_fakes` relies on: what the constructor of a fake sets follows from its arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from fakexport._torch.speed.new_fakes import NewFakes


def facts(value: FakeTensor) -> tuple[Any, ...]:
    return (
        (type(value), value.shape, value.stride(), value.dtype, value.device, value.fake_mode),
        (value.requires_grad, value.is_leaf, value._is_view(), value._version, vars(value)),
        str(torch._C._dispatch_keys(value)),
    )


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_second_is_what_the_constructor_makes(device, requires_grad):
    fakes, mode, place = NewFakes(), FakeTensorMode(), torch.device(device)
    meta = torch.empty(2, 3, device="meta", requires_grad=requires_grad)

    made = [fakes.new(mode, meta, place) for _ in range(3)]

    assert len({id(value) for value in made}) == 3
    assert [facts(value) for value in made] == [facts(FakeTensor(mode, meta, place))] * 3


def test_modes_and_devices_are_kept_apart():
    fakes, meta = NewFakes(), torch.empty(2, device="meta")
    modes = [FakeTensorMode(), FakeTensorMode()]
    places = [torch.device("cpu"), torch.device("cuda:0")]

    for _ in range(2):
        for mode in modes:
            for place in places:
                made = fakes.new(mode, meta, place)
                assert made.fake_mode is mode
                assert made.device == place


def test_memory_that_is_given_is_that_of_the_new_one_and_its_data_are_refused():
    fakes, mode, place = NewFakes(), FakeTensorMode(), torch.device("cpu")
    mode._allow_unsafe_data_ptr_access = False
    meta = torch.empty(2, 3, device="meta")

    for _ in range(2):
        memory = torch.empty(24, dtype=torch.uint8, device="meta")
        with in_kernel_invocation_manager(mode):  # torch 2.15 compares their devices outside of it.
            made = fakes.new(mode, meta.data, place, memory)

        assert made.untyped_storage()._cdata == memory.untyped_storage()._cdata
        assert facts(made) == facts(FakeTensor(mode, meta, place))
        with pytest.raises(RuntimeError, match="data"):
            made.data_ptr()

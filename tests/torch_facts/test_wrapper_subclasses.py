"""What `wrapper_subclasses` and `parametrizations` rely on."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._functorch._aot_autograd.subclass_parametrization import unwrap_tensor_subclass_parameters
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils.parametrize import ParametrizationList

from fakexport._torch.emulation.fake_tensors import is_fake_of, is_fake_tensor, mode_of, new_fake_mode
from fakexport._torch.emulation.parameter_classes import wrappers_can_be_unwrapped
from fakexport._torch.emulation.wrapper_subclasses import (
    flat_tensors,
    held_bytes,
    inner_name,
    inner_tensors,
    is_wrapper,
    rewrapped,
)
from tests.subclasses import Holder, Scaled, twice_quantized

stock_init = ParametrizationList.__init__


def test_a_fake_tensor_is_not_a_wrapper_and_one_around_it_is_fake() -> None:
    mode = new_fake_mode()
    with mode:
        wrapper = twice_quantized(torch.ones(4, 4))

    assert is_wrapper(wrapper)
    assert not isinstance(wrapper, FakeTensor)
    assert is_fake_tensor(wrapper)
    assert is_fake_of(wrapper, mode)
    assert mode_of([wrapper]) is mode
    assert not any(is_wrapper(t) or not isinstance(t, FakeTensor) for _, t in inner_tensors(wrapper))
    assert not is_fake_tensor(twice_quantized(torch.ones(4, 4)))


def test_torch_numbers_the_inner_tensors_in_this_order_and_names_them_so() -> None:
    module = nn.Sequential(Holder(twice_quantized(torch.ones(4, 4))))
    flat = flat_tensors(module.state_dict())

    stock = unwrap_tensor_subclass_parameters(module).state_dict()

    assert list(flat) == list(stock) == [inner_name("0.weight", index) for index in range(3)]
    assert all(torch.equal(flat[name], stock[name]) for name in stock)


def test_a_wrapper_made_again_is_the_same_but_for_its_parts() -> None:
    wrapper = nn.Parameter(twice_quantized(torch.ones(4, 4)), requires_grad=False)
    wrapper.tag = "a"

    made = rewrapped(wrapper, torch.clone)

    assert (type(made), made.tag, isinstance(made, nn.Parameter)) == (Scaled, "a", True)
    assert (made.shape, made.dtype, made.requires_grad) == (wrapper.shape, wrapper.dtype, False)
    pairs = zip(inner_tensors(made), inner_tensors(wrapper), strict=True)
    assert all(path == old and new is not t and torch.equal(new, t) for (path, new), (old, t) in pairs)
    assert rewrapped(wrapper, lambda tensor: tensor) is wrapper
    assert held_bytes(made) == 16 + 4 + 4 * 4 != made.nbytes


def test_stock_torch_cannot_unwrap_a_wrapper_of_fakes() -> None:
    mode = new_fake_mode()
    with mode:
        module = Holder(twice_quantized(torch.ones(4, 4)))
        with pytest.raises(AttributeError, match="'FakeTensor' object has no attribute '__tensor_flatten__'"):
            unwrap_tensor_subclass_parameters(module)


def test_here_it_can_and_the_parts_are_the_fakes_themselves() -> None:
    mode = new_fake_mode()
    with mode, wrappers_can_be_unwrapped(mode):
        module = Holder(twice_quantized(torch.ones(4, 4)))
        unwrap_tensor_subclass_parameters(module)

    assert ParametrizationList.__init__ is stock_init
    assert all(is_fake_of(tensor, mode) for tensor in module.parameters())
    assert [t.dtype for t in module.parameters()] == [torch.int8, torch.float32, torch.float32]
    assert type(module.weight) is Scaled
    assert "right_inverse" not in vars(module.parametrizations.weight[0])

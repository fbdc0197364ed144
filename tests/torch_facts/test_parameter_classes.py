"""What `parameter_classes` relies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from fakexport._torch.emulation.fake_tensors import FakeTensor, new_fake_mode
from fakexport._torch.emulation.parameter_classes import (
    own_class,
    parameters_keep_their_class,
    real_parameter,
)

stock_buffer = UninitializedBuffer()


class Tagged(nn.Parameter):
    """A subclass whose constructor takes more, and keeps it."""

    def __new__(cls, data: torch.Tensor, tag: str) -> Tagged:
        return super().__new__(cls, data, requires_grad=False)

    def __init__(self, data: torch.Tensor, tag: str) -> None:
        self.tag = tag


def test_stock_torch_loses_the_class() -> None:
    with new_fake_mode():
        made = Tagged(torch.ones(2), "a")
        with pytest.raises(RuntimeError, match="UninitializedParameter"):
            UninitializedParameter()

    assert type(made) is FakeTensor
    assert not hasattr(made, "tag")


def test_a_fake_parameter_has_both_classes() -> None:
    mode = new_fake_mode()
    with mode, parameters_keep_their_class(mode):
        made = Tagged(torch.ones(2), "a")
        plain = nn.Parameter(torch.ones(2))
        result = made + 1

    assert isinstance(made, FakeTensor)
    assert isinstance(made, Tagged)
    assert isinstance(made, nn.Parameter)
    assert (made.tag, made.requires_grad, type(made).__name__) == ("a", False, "Tagged")
    assert (type(plain), type(result)) == (FakeTensor, FakeTensor)
    assert [own_class(t) for t in (made, plain, result)] == [Tagged, nn.Parameter, torch.Tensor]


@pytest.mark.parametrize("cls", [UninitializedParameter, UninitializedBuffer])
def test_a_lazy_parameter_becomes_a_fake_one_with_a_shape(cls: type) -> None:
    mode = new_fake_mode()
    with mode, parameters_keep_their_class(mode):
        made = cls(dtype=torch.float64)
        assert nn.parameter.is_lazy(made)
        made.materialize((2, 3))

    assert type(made) is FakeTensor
    assert (made.shape, made.dtype) == ((2, 3), torch.float64)
    assert isinstance(made, nn.Parameter) == (cls is UninitializedParameter)


def test_real_parameters_are_as_they_were() -> None:
    mode, stock = new_fake_mode(), nn.Parameter.__new__
    with parameters_keep_their_class(mode):
        assert type(Tagged(torch.ones(2), "a")) is Tagged
        assert type(UninitializedParameter()) is UninitializedParameter
        assert type(UninitializedBuffer()) is type(stock_buffer)
    assert nn.Parameter.__new__ is stock


def test_a_real_parameter_is_made_without_its_constructor() -> None:
    made = real_parameter(Tagged, torch.ones(2), requires_grad=True)

    assert type(made) is Tagged
    assert made.requires_grad
    assert type(real_parameter(UninitializedParameter, torch.empty(0), False)) is UninitializedParameter

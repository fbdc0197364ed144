"""`type` of traced values, in Python and in what TorchDynamo traces."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch import real_type
from fakexport._torch.real_type import RealType


def test_a_fake_tensor_has_the_class_of_a_real_one():
    with FakeTensorMode():
        assert RealType(torch.zeros(2)) is torch.Tensor
        assert RealType(nn.Parameter(torch.zeros(2))) is nn.Parameter
    assert RealType(torch.zeros(2)) is torch.Tensor
    assert RealType(3) is int


def test_it_does_everything_else_that_type_does():
    made = RealType("Made", (int,), {"one": 1})

    assert (made.__name__, made.one, type(made)) == ("Made", 1, type)
    assert isinstance(int, RealType)
    assert not isinstance(3, RealType)
    assert RealType(int) is RealType
    assert RealType == type  # noqa: E721
    assert RealType[int] == type[int]
    assert {type: 1}[RealType] == 1


def test_dynamo_traces_it_as_the_builtin():
    def body(x):
        return x * (2 if real_type.RealType(x) is torch.Tensor else 3)

    assert torch.equal(
        torch.compile(body, backend="eager", fullgraph=True)(torch.ones(2)), torch.full((2,), 2.0)
    )

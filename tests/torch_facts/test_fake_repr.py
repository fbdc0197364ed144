"""What `fakexport._torch.fake_repr` relies on."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.fake_repr import describe_fake


def test_stock_torch_prints_another_text() -> None:
    with FakeTensorMode():
        a = torch.ones(2)

    assert repr(a) == "FakeTensor(..., size=(2,))"
    assert describe_fake(a) == "tensor(..., size=(2,), fake=True)"


def test_a_fake_parameter_is_known_as_a_parameter() -> None:
    with FakeTensorMode():
        a = torch.nn.Parameter(torch.ones(2))

    assert type(a) is not torch.nn.Parameter
    assert describe_fake(a).startswith("Parameter containing:\ntensor(")

"""What `_torch/kernel_calls.py` relies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from fakexport._torch.kernel_calls import around_kernels


@torch.library.custom_op("fakexport_kernel_calls::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.function(self.linear, x)


def hooked(linear, x):
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        return linear(x)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda linear, x: linear(x).relu(), ["leave", "enter"] * 2),
        (lambda linear, x: twice(x), []),
        (hooked, []),
    ],
    ids=["torch's operators", "an operator of the model", "a hook"],
)
def test_the_kernels_of_torch_are_left_out(function, expected):
    seen = []

    with around_kernels(lambda: seen.append("leave"), lambda: seen.append("enter")):
        torch.export.export(Model(function), (torch.ones(2, 4),), strict=False)

    assert seen == expected


def test_a_kernel_that_raises_is_left_too():
    seen = []

    with (
        pytest.raises(RuntimeError),
        around_kernels(lambda: seen.append("leave"), lambda: seen.append("enter")),
    ):
        torch.export.export(Model(lambda linear, x: x @ x), (torch.ones(2, 4),), strict=False)

    assert seen == ["leave", "enter"]

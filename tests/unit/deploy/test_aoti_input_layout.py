"""Inputs reach compiled code in the layout that it was compiled for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fakexport.deploy.aoti.graph import input_orders, laid_out
from fakexport.deploy.artifact import DeployError


class Same(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def orders(x: torch.Tensor, dynamic: bool = False) -> tuple[tuple[int, ...], ...]:
    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},) if dynamic else None
    return input_orders(torch.export.export(Same(), (x,), dynamic_shapes=shapes))


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_contiguous_inputs_have_their_dimensions_in_order(is_dynamic: bool) -> None:
    assert orders(torch.zeros(4, 3, 5), is_dynamic) == ((0, 1, 2),)


def test_other_orders_are_those_of_memory() -> None:
    assert orders(torch.zeros(2, 3, 5, 7).to(memory_format=torch.channels_last)) == ((0, 2, 3, 1),)
    assert orders(torch.zeros(3, 4).t()) == ((1, 0),)
    assert orders(torch.zeros(())) == ((),)
    assert orders(torch.zeros(1, 1, 4)) == ((0, 1, 2),)


@pytest.mark.parametrize(
    "x", [torch.zeros(4, 8)[:, :4], torch.zeros(1, 4).expand(3, 4)], ids=["window", "expanded"]
)
def test_inputs_that_are_not_all_of_their_memory_are_refused(x: torch.Tensor) -> None:
    with pytest.raises(DeployError, match="the input `x` of the program is a view"):
        orders(x)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("given", [(0, 1, 2), (2, 1, 0)])
def test_a_tensor_is_laid_out_in_an_order(order: tuple[int, ...], given: tuple[int, ...]) -> None:
    x = torch.arange(24).view(2, 3, 4).permute(given)

    made = laid_out(x, order)

    assert torch.equal(made, x)
    assert made.permute(order).is_contiguous()


def test_a_tensor_that_is_laid_out_is_not_copied() -> None:
    x = torch.zeros(2, 3, 5, 7).to(memory_format=torch.channels_last)

    assert laid_out(x, (0, 2, 3, 1)).data_ptr() == x.data_ptr()

"""Fused SGD and Adagrad have no kernel for fakes in stock torch."""

import pytest
import torch

from fakexport._torch.fused_optimizers import fused_optimizers


def step() -> torch.Tensor:
    weight, gradient = torch.ones(3, device="meta"), torch.ones(3, device="meta")
    torch._fused_sgd_(
        [weight],
        [gradient],
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=0.1,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=True,
    )
    return weight


def test_stock_has_no_fake_kernel_and_ours_goes_again():
    with pytest.raises(NotImplementedError, match="_fused_sgd_"):
        step()

    with fused_optimizers():
        assert step().shape == (3,)

    with pytest.raises(NotImplementedError, match="_fused_sgd_"):
        step()

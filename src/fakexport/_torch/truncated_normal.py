"""`nn.init.trunc_normal_` as one step.

It draws, asks whether a value lies outside of the bounds, and draws again where one does. Asked of fake
tensors, each of these questions would draw the whole weight: a vision transformer would build as slowly as
with data, and one with billions of parameters not at all. Seen on torch 2.13; 2.11 asks nothing.

Source: `torch/nn/init.py:_no_grad_trunc_normal_`, which all of torch's and transformers' ways lead to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import init

from .patching import Patches

__all__ = ["truncated_normal_as_one_step"]


def truncated_normal_as_one_step(
    mode: FakeTensorMode, note: Callable[[Callable[..., Any], torch.Tensor, tuple[Any, ...]], bool]
) -> Patches:
    """The context in which a fake of `mode` is not initialised but noted to be.

    Args:
        mode: The mode whose tensors are meant.
        note: Is told the function that fills a real tensor, the fake tensor, and the further arguments;
            returns whether it noted them. If not, the stock function runs.
    """
    stock: Callable[..., torch.Tensor] = init._no_grad_trunc_normal_

    def fill(
        tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: Any = None
    ) -> torch.Tensor:
        is_ours = isinstance(tensor, FakeTensor) and tensor.fake_mode is mode
        if is_ours and note(stock, tensor, (mean, std, a, b, generator)):
            return tensor
        return stock(tensor, mean, std, a, b, generator)

    return Patches({(init, "_no_grad_trunc_normal_"): fill})

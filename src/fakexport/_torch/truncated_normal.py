"""`nn.init.trunc_normal_` as one step.

It draws, asks whether a value is outside of the bounds, and draws again where one does. Asked of fake
tensors, each of these questions would draw the whole weight: a vision transformer would build as slowly as
with data, and one with billions of parameters not at all. Seen on torch 2.13; 2.11 asks nothing.

Source: `torch/nn/init.py:_no_grad_trunc_normal_`, which all of torch's and transformers' ways lead to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import init

from .patching import Patches, in_force
from .random_words import Drawn, drawn_by
from .real_execution import real_execution


def truncated_normal_as_one_step(
    mode: FakeTensorMode,
    note: Callable[[Callable[..., Any], torch.Tensor, tuple[Any, ...], Drawn | None], bool],
) -> Patches:
    """Return a context in which a fake of `mode` is not initialized but noted to be.

    Args:
        mode: The mode whose tensors are meant.
        note: Is told the function that fills a real tensor, the fake tensor, the further arguments, and how
            much it draws if that can be told; returns whether it noted them. If not, the stock function runs.
    """
    stock: Callable[..., torch.Tensor] = in_force(init, "_no_grad_trunc_normal_")

    def fill(
        tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: Any = None
    ) -> torch.Tensor:
        is_ours = isinstance(tensor, FakeTensor) and tensor.fake_mode is mode
        if is_ours:
            drawn = _drawn(stock, tensor, mean, std, a, b)
            if note(stock, tensor, (mean, std, a, b, generator), drawn):
                return tensor
        return stock(tensor, mean, std, a, b, generator)

    return Patches({(init, "_no_grad_trunc_normal_"): fill})


_FARTHEST = 9.0  # Box-Muller of 53-bit numbers gives sqrt(2 * 53 * ln 2) = 8.57 standard deviations at most.


def _drawn(
    function: Callable[..., Any], tensor: torch.Tensor, mean: float, std: float, a: float, b: float
) -> Drawn | None:
    """Return what the function draws, where no number can be outside of the bounds and be drawn again."""
    is_within = a < mean - _FARTHEST * std and mean + _FARTHEST * std < b
    if not is_within or not _draws_normals(function):
        return None
    return drawn_by(torch.ops.aten.normal_.default, (tensor, mean, std), {}, tensor)


@functools.cache
def _draws_normals(function: Callable[..., Any]) -> bool:
    """Return whether the function draws what `normal_` draws, as torch's does from 2.13 on."""
    ours, normal = torch.Generator(), torch.Generator()
    normal.set_state(ours.get_state())
    with real_execution():
        # Not a multiple of 16: `normal_` then draws more numbers than there are elements.
        function(torch.empty(17), 0.0, 1.0, -100.0, 100.0, generator=ours)
        torch.empty(17).normal_(generator=normal)
        return torch.equal(ours.get_state(), normal.get_state())

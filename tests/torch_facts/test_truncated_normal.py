"""What `fakexport._torch.truncated_normal` relies on."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.random_words import Drawn
from fakexport._torch.truncated_normal import truncated_normal_as_one_step


def test_every_way_to_a_truncated_normal_leads_through_one_function() -> None:
    noted: list[Any] = []
    mode = FakeTensorMode()

    def note(function: Any, tensor: torch.Tensor, args: tuple[Any, ...], drawn: Drawn | None) -> bool:
        noted.append((tensor, args))
        return True

    with mode, truncated_normal_as_one_step(mode, note):
        weight = torch.empty(3)
        same = nn.init.trunc_normal_(weight, std=0.02, a=-1.0, b=1.0)

    assert same is weight
    assert noted[0][0] is weight
    assert noted[0][1] == (0.0, 0.02, -1.0, 1.0, None)


def test_the_noted_function_fills_a_real_tensor() -> None:
    functions: list[Any] = []
    mode = FakeTensorMode()
    with (
        mode,
        truncated_normal_as_one_step(mode, lambda function, *_: not functions.append(function)),
    ):
        nn.init.trunc_normal_(torch.empty(3))
    generator = torch.Generator().manual_seed(1)

    filled = functions[0](torch.empty(3), 0.0, 1.0, -2.0, 2.0, generator)

    generator = torch.Generator().manual_seed(1)
    assert torch.equal(filled, nn.init.trunc_normal_(torch.empty(3), generator=generator))


@pytest.mark.parametrize(
    ("std", "a", "b", "is_known"),
    [(0.02, -2.0, 2.0, True), (1.0, -2.0, 2.0, False), (0.02, -0.04, 0.04, False), (1.0, 3.0, 4.0, False)],
)
def test_what_is_drawn_is_known_where_no_number_is_drawn_again(
    std: float, a: float, b: float, is_known: bool
) -> None:
    drawn: list[Drawn | None] = []
    mode = FakeTensorMode()
    with mode, truncated_normal_as_one_step(mode, lambda *noted: not drawn.append(noted[-1])):
        nn.init.trunc_normal_(torch.empty(100), std=std, a=a, b=b)

    # 16 more for the last 4 elements. Before torch 2.13, each number was drawn once, in another way.
    expected = Drawn(116) if is_known and draws_again() else None
    assert drawn == [expected]


def draws_again() -> bool:
    return ".any()" in inspect.getsource(nn.init._no_grad_trunc_normal_)


def test_real_tensors_are_left_to_torch() -> None:
    mode = FakeTensorMode()
    with truncated_normal_as_one_step(mode, lambda *_: False):
        filled = nn.init.trunc_normal_(torch.full((50,), 7.0))

    assert filled.abs().max() <= 2

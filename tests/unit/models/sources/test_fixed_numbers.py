"""Numbers in the place of an input belong to inputs of the shapes that they were made for."""

import pytest
import torch
from torch import nn

from fakexport.models.sources.media_inputs.fixed_numbers import as_numbers


class Masks(nn.Module):
    def forward(self, x, mask):
        return x * mask.sum().item()


def test_numbers_stand_for_the_tensor_and_others_are_passed_as_they_are():
    module = Masks()
    numbers = as_numbers(module, "mask", torch.ones(2, 3), [3, 3])

    assert module(x=torch.ones(1), mask=numbers).item() == 6
    assert module(x=torch.ones(1), mask=torch.ones(1)).item() == 1
    with pytest.raises(AttributeError):
        module(x=torch.ones(1), mask=[3, 2])


def test_an_input_of_another_shape_is_refused():
    module = Masks()
    numbers = as_numbers(module, "mask", torch.ones(2, 3), [3, 3], fits={"x": (2, 3)})

    assert module(x=torch.ones(2, 3), mask=numbers).sum().item() == 36
    with pytest.raises(RuntimeError, match=r"mask=\[3, 3\] requires x of shape \[2, 3\]"):
        module(x=torch.ones(2, 4), mask=numbers)


def test_a_size_that_may_vary_is_fixed_in_the_program():
    module = Masks()
    numbers = as_numbers(module, "mask", torch.ones(2, 3), [3, 3], fits={"x": (2, 3)})
    sizes = {"x": {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}, "mask": [None, None]}

    program = torch.export.export(
        module, (), {"x": torch.ones(2, 3), "mask": numbers}, dynamic_shapes=sizes
    ).module()

    assert program(x=torch.ones(2, 3), mask=[3, 3]).sum().item() == 36
    with pytest.raises((AssertionError, RuntimeError)):
        program(x=torch.ones(2, 4), mask=[3, 3])

"""What `_torch/fixed_shapes.py` relies on."""

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fakexport._torch.fixed_shapes import check_shape


class Fixed(nn.Module):
    def forward(self, x):
        check_shape(x, (2, 3), "of two rows")
        return x + 1


def test_a_size_that_may_vary_is_the_one_that_is_checked():
    sizes = {"x": {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}}

    program = torch.export.export(Fixed(), (torch.ones(2, 3),), dynamic_shapes=sizes).module()

    assert program(torch.ones(2, 3)).shape == (2, 3)
    with pytest.raises((AssertionError, RuntimeError)):
        program(torch.ones(2, 4))


def test_another_shape_is_refused_with_the_message():
    with pytest.raises(RuntimeError, match="of two rows"):
        Fixed()(torch.ones(2, 4))


def test_a_function_mode_sees_no_use_of_the_tensor():
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, 3)
    with Watch():
        check_shape(x, (2, 3), "")

    assert seen == []

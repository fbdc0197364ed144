"""`torch._check` of a size makes it a number of the program, and adds no node."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fakexport._torch.checked_sizes import check_shape


class Fixed(nn.Module):
    def forward(self, x):
        check_shape(x, (2, 3), "x is of shape [2, 3]")
        return x * 2


class Plain(nn.Module):
    def forward(self, x):
        return x * 2


def exported(module):
    return torch.export.export(module, (torch.ones(2, 3),), dynamic_shapes=({0: torch.export.Dim.AUTO},))


def test_the_program_has_these_sizes_and_no_more_nodes():
    program, plain = exported(Fixed()), exported(Plain())

    assert [node.name for node in program.graph.nodes] == [node.name for node in plain.graph.nodes]
    assert program.range_constraints == {}
    assert len(plain.range_constraints) == 1


def test_another_shape_is_refused_and_what_is_no_tensor_is_not():
    check_shape([1], (2, 3), "")

    with pytest.raises(RuntimeError, match="x is of shape"):
        check_shape(torch.ones(2, 4), (2, 3), "x is of shape [2, 3]")

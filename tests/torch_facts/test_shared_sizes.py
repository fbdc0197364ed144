"""Sizes of inputs that are one symbol from the start of an export."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim

from fakexport._torch.shared_sizes import shared_sizes

AUTO = Dim.AUTO
A, B, C = (torch.ones(2, 5, 3) for _ in range(3))


class Three(nn.Module):
    """Nothing in it needs any two sizes to be equal."""

    def forward(self, a, b, c):
        return a.sum(), b.sum(), c.sum()


def exported(labels):
    dims = {0: AUTO, 1: AUTO, 2: AUTO}
    labelled = list(zip((A, B, C), labels, strict=False))
    with shared_sizes(labelled):
        return torch.export.export(Three(), (A, B, C), dynamic_shapes=(dims, dims, dims))


def sizes_of(program):
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    return [tuple(map(str, node.meta["val"].shape)) for node in inputs]


def test_stock_export_has_a_symbol_for_each_size():
    found = {size for sizes in sizes_of(exported(())) for size in sizes}

    assert len(found) == 9


def test_sizes_with_one_label_are_one_symbol_and_those_without_are_constant():
    a, b, c = sizes_of(exported((("batch", "length", None), ("batch", "length", None))))

    assert a == b
    assert a[0] != a[1]
    assert a[2] == "3"
    assert not {a[0], a[1], "3"} & {*c}, "the input that is not named has symbols of its own"


def test_the_program_takes_other_sizes_and_refuses_unequal_ones():
    program = exported(((None, "length", None), (None, "length", None))).module()

    assert [float(each) for each in program(torch.ones(2, 7, 3), torch.ones(2, 7, 3), C)] == [42, 42, 30]
    with pytest.raises(AssertionError, match=r"b\.size\(\)\[1\] == a\.size\(\)\[1\]"):
        program(torch.ones(2, 7, 3), torch.ones(2, 8, 3), C)


def test_a_size_that_is_named_dynamic_stays_one():
    """A declared dimension fails the export if it is specialized; a label does not make it constant."""
    with shared_sizes([(A, (None, None, None))]):
        program = torch.export.export(Three(), (A, B, C), dynamic_shapes=({1: Dim.DYNAMIC}, {}, {}))

    assert sizes_of(program)[0][1] != "5"

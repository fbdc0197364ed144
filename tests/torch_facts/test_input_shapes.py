"""What `input_shapes` relies on: torch checks declared dimensions, and creates a symbol per size."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim, ShapesCollection
from torch.overrides import TorchFunctionMode

from fakexport._torch.tracing.input_shapes import check_shape, shared_sizes, why_shapes_do_not_fit

AUTO = Dim.AUTO
BATCH = Dim("batch", min=1, max=64)
X = torch.zeros(3, 4)
A, B, C = (torch.ones(2, 5, 3) for _ in range(3))


@pytest.mark.parametrize(
    "shapes", [None, {}, {"input": {0: BATCH}}, ({0: AUTO},), [(BATCH, None)], ShapesCollection()]
)
@pytest.mark.filterwarnings("ignore:Using None as a dynamic shape")
def test_what_torch_takes_fits(shapes):
    assert why_shapes_do_not_fit({"input": X}, shapes) is None


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        (3, "expected a dict, a tuple or a list, not int"),
        ({"ids": {0: BATCH}}, "top-level keys must be the arg names"),
        (({0: BATCH}, {0: BATCH}), "has 1 elements, but `dynamic_shapes` has 2"),
        (({0: "batch"},), "Unexpected dimension mapped to index 0"),
        (({-1: BATCH},), "input has no dimension -1 (shape [3, 4])"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(shapes, why):
    said = why_shapes_do_not_fit({"input": X}, shapes)

    assert said is not None
    assert "\n" not in said
    assert why in said


def test_torch_takes_a_dimension_that_there_is_not():
    program = torch.export.export(nn.Linear(4, 2), (X,), dynamic_shapes={"input": {5: AUTO}})

    assert not program.range_constraints


class Fixed(nn.Module):
    def forward(self, x):
        check_shape(x, (2, 3), "of two rows")
        return x + 1


def test_a_checked_size_is_constant_in_the_program():
    sizes = {"x": {0: AUTO, 1: AUTO}}

    program = torch.export.export(Fixed(), (torch.ones(2, 3),), dynamic_shapes=sizes).module()

    assert program(torch.ones(2, 3)).shape == (2, 3)
    with pytest.raises((AssertionError, RuntimeError)):
        program(torch.ones(2, 4))
    with pytest.raises(RuntimeError, match="of two rows"):
        Fixed()(torch.ones(2, 4))


def test_a_function_mode_sees_no_use_of_a_checked_tensor():
    class Fails(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    x = torch.ones(2, 3)
    with Fails():
        check_shape(x, (2, 3), "")


class Three(nn.Module):
    """Nothing in it needs any two sizes to be equal."""

    def forward(self, a, b, c):
        return a.sum(), b.sum(), c.sum()


def exported(labels, dims=({0: AUTO, 1: AUTO, 2: AUTO},) * 3):
    with shared_sizes(list(zip((A, B, C), labels, strict=False))):
        return torch.export.export(Three(), (A, B, C), dynamic_shapes=dims)


def sizes_of(program):
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    return [tuple(map(str, node.meta["val"].shape)) for node in inputs]


def test_sizes_with_one_label_are_one_symbol_and_those_without_are_constant():
    assert len({size for sizes in sizes_of(exported(())) for size in sizes}) == 9

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
    program = exported([(None, None, None)], ({1: Dim.DYNAMIC}, {}, {}))

    assert sizes_of(program)[0][1] != "5"

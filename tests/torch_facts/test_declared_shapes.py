"""torch judges declared dimensions while it traces, and takes those that a tensor does not have."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, ShapesCollection

from fakexport._torch.declared_shapes import why_shapes_do_not_fit

X = torch.zeros(3, 4)
BATCH = Dim("batch", min=1, max=64)


@pytest.mark.parametrize(
    "shapes", [None, {}, {"input": {0: BATCH}}, ({0: Dim.AUTO},), [(BATCH, None)], ShapesCollection()]
)
@pytest.mark.filterwarnings("ignore:Using None as a dynamic shape")
def test_what_torch_takes_fits(shapes):
    assert why_shapes_do_not_fit({"input": X}, shapes) is None


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        (3, "expected a dict, a tuple or a list, and not int"),
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
    program = torch.export.export(torch.nn.Linear(4, 2), (X,), dynamic_shapes={"input": {5: Dim.AUTO}})

    assert not program.range_constraints

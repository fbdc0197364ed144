"""What `guard_locations` relies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import ShapeEnv, uninteresting_files

from fakexport._torch.tracing import guard_locations
from fakexport._torch.tracing.guard_locations import guards_of_error, guards_of_program, name_user_frames


class OneSize(nn.Module):
    def forward(self, x):
        return x.reshape(4, 2)


def test_exports_frames_still_hold_the_shape_environment_after_a_failure():
    with name_user_frames(lambda path: path == __file__), pytest.raises(Exception) as caught:  # noqa: PT011
        torch.export.export(OneSize(), (torch.ones(4, 2),), dynamic_shapes=({0: Dim.DYNAMIC},))

    (guard,) = guards_of_error(caught.value)

    assert guard.expression.startswith("Eq(")
    assert guard.places[-1][0] == __file__
    assert guard.places[-1][2] == "forward"
    assert guard.dims == ("x.0",)
    assert guards_of_error(ValueError("no traceback")) == []


def test_a_program_keeps_the_guards_of_its_trace():
    class Half(nn.Module):
        def forward(self, x, y):
            return x[: round(x.shape[0] / 2)], x + y

    tensors = (torch.ones(6, 2), torch.ones(6, 2))
    dynamic = {0: Dim.DYNAMIC(min=2, max=64)}

    program = torch.export.export(Half(), tensors, dynamic_shapes=(dynamic, dynamic))

    guards = guards_of_program(program)
    assert [(guard.dims, guard.is_equality) for guard in guards if len(guard.dims) == 2] == [
        (("y.0", "x.0"), True)
    ]
    assert [guard.first_refused([6, 5, 2]) for guard in guards if "Ne(" in guard.expression] == [2]


def test_a_guard_that_cannot_be_computed_for_a_size_refuses_it():
    """torch guards on `3*s0 % (3*s0 // 12 ...)`, which divides by zero for two rows."""

    class Groups(nn.Module):
        def forward(self, x):
            return x.view(-1, 4, 3).sum(1)

    program = torch.export.export(
        Groups(), (torch.ones(8, 3),), dynamic_shapes=({0: Dim.DYNAMIC(min=2, max=16)},)
    )

    refused = {
        size for guard in guards_of_program(program) for size in range(2, 17) if guard.first_refused([size])
    }
    assert set(range(2, 17)) - refused == {8, 12, 16}


def test_our_files_are_in_torchs_only_set_of_files_inside_and_not_afterwards():
    before = set(uninteresting_files())

    with name_user_frames(lambda path: path == __file__):
        assert guard_locations.__file__ in uninteresting_files()
        place, _ = ShapeEnv()._get_stack_summary()

    assert place.framework_loc.filename == __file__
    assert uninteresting_files() == before

"""What `fakexport._torch.vmap_steps` relies on."""

from __future__ import annotations

import pytest
import torch
from torch._functorch.predispatch import _add_batch_dim, _remove_batch_dim, _vmap_increment_nesting

from fakexport._torch.program_schema import PYTHON_FUNCTIONS
from fakexport._torch.vmap_steps import VMAP_LEVEL_STEPS, vmap_levels_closed


class Doubles(torch.nn.Module):
    def forward(self, x):
        return torch.vmap(lambda row: row * 2)(x)


def test_the_functions_of_vmap_stand_in_a_program():
    program = torch.export.export(Doubles(), (torch.ones(3, 4),))

    functions = {node.target for node in program.graph.nodes if callable(node.target)}
    assert functions == {*VMAP_LEVEL_STEPS, _add_batch_dim, _remove_batch_dim, torch.ops.aten.mul.Tensor}
    assert functions - {torch.ops.aten.mul.Tensor} <= set(PYTHON_FUNCTIONS.values())


def test_a_batched_tensor_is_a_plain_one_with_the_sizes_of_an_element():
    with vmap_levels_closed():
        level = _vmap_increment_nesting(3, "error")
        batched = _add_batch_dim(torch.ones(3, 4), 0, level)
        doubled = _remove_batch_dim(batched * 2, level, 3, 0)

    assert (type(batched), tuple(batched.shape)) == (torch.Tensor, (4,))
    assert torch.equal(doubled, torch.full((3, 4), 2.0))


def test_levels_are_closed_behind_an_error():
    with pytest.raises(ValueError, match="inside"):
        fails_on_two_levels()

    assert torch._C._functorch.maybe_current_level() is None


def fails_on_two_levels():
    with vmap_levels_closed():
        _vmap_increment_nesting(3, "error")
        _vmap_increment_nesting(4, "error")
        raise ValueError("inside")

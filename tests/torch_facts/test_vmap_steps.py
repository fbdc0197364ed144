"""What `vmap_steps` relies on."""

from __future__ import annotations

import pytest
import torch
from torch._functorch.predispatch import _add_batch_dim, _remove_batch_dim, _vmap_increment_nesting

from fakexport._torch.tracing.program_schema import PYTHON_FUNCTIONS
from fakexport._torch.tracing.vmap_steps import (
    VMAP_LEVEL_STEPS,
    is_transformed,
    levels_opened,
    transform_levels_closed,
    want_gradient,
    with_other_memory,
    without_levels,
)


class Doubles(torch.nn.Module):
    def forward(self, x):
        return torch.vmap(lambda row: row * 2)(x)


def test_the_functions_of_vmap_stand_in_a_program():
    program = torch.export.export(Doubles(), (torch.ones(3, 4),))

    functions = {node.target for node in program.graph.nodes if callable(node.target)}
    assert functions == {*VMAP_LEVEL_STEPS, _add_batch_dim, _remove_batch_dim, torch.ops.aten.mul.Tensor}
    assert sorted(map(levels_opened, functions)) == [-1, 0, 0, 0, 0, 1]
    assert functions - {torch.ops.aten.mul.Tensor} <= set(PYTHON_FUNCTIONS.values())


def test_a_batched_tensor_is_a_plain_one_with_the_sizes_of_an_element():
    with transform_levels_closed():
        level = _vmap_increment_nesting(3, "error")
        batched = _add_batch_dim(torch.ones(3, 4), 0, level)
        doubled = _remove_batch_dim(batched * 2, level, 3, 0)

    assert (type(batched), tuple(batched.shape)) == (torch.Tensor, (4,))
    assert torch.equal(doubled, torch.full((3, 4), 2.0))


@transform_levels_closed()
def fails_on_two_levels():
    _vmap_increment_nesting(3, "error")
    _vmap_increment_nesting(4, "error")
    raise ValueError("inside")


def test_levels_are_closed_behind_an_error():
    with pytest.raises(ValueError, match="inside"):
        fails_on_two_levels()

    assert torch._C._functorch.maybe_current_level() is None


class Cubes(torch.nn.Module):
    def forward(self, x):
        return torch.func.grad(lambda y: y.pow(3).sum())(x)


def test_stock_exports_a_derivative_of_torch_func_with_its_input_as_a_constant():
    program = torch.export.export(Cubes(), (torch.ones(2),))

    assert is_transformed(program.constants["lifted_tensor_0"])
    (x,) = [node for node in program.graph.find_nodes(op="placeholder") if node.name == "x"]
    assert not x.users


def test_a_batched_tensor_gets_other_memory_on_the_same_levels():
    with transform_levels_closed():
        level = _vmap_increment_nesting(3, "error")
        batched = _add_batch_dim(torch.ones(4, 3), 1, level)
        doubled = _remove_batch_dim(with_other_memory(batched, lambda inside: inside * 2), level, 3, 0)

    assert torch.equal(doubled, torch.full((3, 4), 2.0))
    assert without_levels(batched).shape == (4, 3)


def test_a_gradient_can_be_wanted_of_a_tensor_while_a_level_is_open():
    plain = torch.ones(2)
    with transform_levels_closed():
        _vmap_increment_nesting(3, "error")
        with pytest.raises(RuntimeError, match="requires_grad_"):
            plain.requires_grad_()
        want_gradient(plain)

    assert plain.requires_grad

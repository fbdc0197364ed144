"""What `functional_collectives` relies on."""

import pytest
import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import new_fake_mode
from fakexport._torch.operators.functional_collectives import (
    DEFAULT_GROUP,
    KINDS,
    all_gather,
    all_reduce,
    collective_of,
)
from fakexport._torch.operators.operator_schema import aliased_arguments
from tests.forked import run_python


class Layer(nn.Module):
    def forward(self, x):
        return all_gather(all_reduce(x), 4)


def test_fake_kernels_need_no_process_group():
    assert not torch.distributed.is_initialized()

    with new_fake_mode():
        assert all_reduce(torch.zeros(3, 5)).shape == (3, 5)
        assert all_gather(torch.zeros(3, 5), 4).shape == (12, 5)


def test_collectives_are_nodes_of_an_export():
    program = torch.export.export(Layer(), (torch.zeros(3, 5),))

    found = [collective_of(node) for node in program.graph.nodes]

    assert [kind for kind in found if kind] == ["all_reduce", "all_gather"]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_an_operator(name):
    _, operator, overload = name.split(".")

    assert hasattr(getattr(torch.ops._c10d_functional, operator), overload)


def test_waiting_returns_its_argument(tmp_path):
    """The schema does not say so; in a plan a second copy would count."""
    store = f"init_method='file://{tmp_path}/store', rank=0, world_size=1"
    code = (
        f"import torch, torch.distributed as dist; dist.init_process_group('gloo', {store}); "
        "ops = torch.ops._c10d_functional; made = ops.all_reduce(torch.ones(3), 'sum', '0'); "
        "print(ops.wait_tensor(made).data_ptr() == made.data_ptr())"
    )

    assert run_python(code).stdout.strip() == "True"
    assert aliased_arguments(torch.ops._c10d_functional.wait_tensor.default) == ("tensor",)


def test_the_first_group_of_a_process_has_the_default_name(tmp_path):
    store = f"init_method='file://{tmp_path}/store', rank=0, world_size=1"
    code = f"import torch.distributed as dist; dist.init_process_group('gloo', {store})"

    ended = run_python(f"{code}; print(dist.group.WORLD.group_name)")

    assert ended.stdout.strip() == DEFAULT_GROUP, ended.stderr

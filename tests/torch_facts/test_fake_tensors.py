"""What `fake_tensors` relies on."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fakexport._torch.emulation.fake_tensors import (
    NEEDS_VALUES,
    FakeTensorMode,
    fake_elsewhere,
    hand_on_hooks,
    memory_of,
    meta_of,
    mode_of,
    new_fake_mode,
    own_attributes,
    quiet_fake_mode,
    real_to_fake,
    storage_identity,
    unknown_values,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda:1")


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_new_mode_tracks_fakes_and_is_not_copied_with_a_tensor_as_in_stock_torch():
    mode, stock = new_fake_mode(), FakeTensorMode()
    with stock:
        a = torch.ones(2)

    assert mode.shape_env is not None
    assert mode.shape_env.tracked_fakes == []
    assert mode.allow_non_fake_inputs
    assert copy.deepcopy(mode) is mode
    assert mode_of([copy.deepcopy(a)]) is not stock


@pytest.mark.parametrize(
    "operation",
    [
        lambda: torch.ones(3).sum().item(),
        lambda: torch.ones(3).nonzero(),
    ],
)
def test_a_mode_without_shape_environment_says_that_it_needs_values(operation):
    with FakeTensorMode(allow_fallback_kernels=False), pytest.raises(NEEDS_VALUES):
        operation()


def test_a_fake_of_a_real_tensor_has_its_strides_and_shares_nothing():
    mode, real = new_fake_mode(), torch.ones(2, 3).t()

    one, other = (real_to_fake(mode, real, CPU) for _ in range(2))

    assert one.stride() == (1, 3)
    assert mode_of([real, one]) is mode
    assert storage_identity(one) != storage_identity(other)


def test_the_storage_of_a_fake_tells_its_size():
    with new_fake_mode():
        meta = meta_of(torch.empty(4, 6)[1:, ::2])

    assert meta.device.type == "meta"
    assert (meta.stride(), meta.storage_offset(), meta.untyped_storage().nbytes()) == ((6, 2), 6, 96)


def test_tensors_that_share_memory_have_one_storage_identity_and_sparse_ones_none():
    with new_fake_mode():
        a, b = torch.empty(4), torch.empty(4)
        assert storage_identity(a) == storage_identity(a[1:]) == storage_identity(a.detach())
        assert storage_identity(a) != storage_identity(b)
        assert memory_of(a.to_sparse()) is None
    a.data = b

    assert storage_identity(a) == storage_identity(b) == memory_of(a)._cdata


def test_what_makes_a_tensor_fake_is_none_of_its_own_attributes():
    with new_fake_mode():
        parameter = torch.nn.Parameter(torch.empty(4))
        parameter.tag = 3
        parameter.nonzero()

    assert own_attributes(parameter) == {"tag": 3}


def test_hooks_of_a_fake_act_on_the_real_tensor():
    with new_fake_mode():
        fake = torch.nn.Parameter(torch.empty(2))
    seen = []
    fake.register_hook(lambda gradient: gradient * 3)
    fake.register_post_accumulate_grad_hook(seen.append)
    real = torch.nn.Parameter(torch.ones(2))

    hand_on_hooks(fake, real)
    real.sum().backward()

    assert real.grad.tolist() == [3.0, 3.0]
    assert seen[0] is real


def test_a_fake_elsewhere_has_the_same_layout_on_another_device():
    mode = new_fake_mode()
    with mode:
        fake, literal = torch.empty(4, 6, dtype=torch.half).t()[1:], torch.tensor([3.0])

    moved = fake_elsewhere(fake, CUDA)

    assert (moved.shape, moved.stride(), moved.storage_offset()) == ((5, 4), (1, 6), 1)
    assert (moved.device, moved.dtype, moved.fake_mode) == (CUDA, torch.half, mode)
    assert moved.is_leaf
    assert not moved.requires_grad
    assert literal.constant is not None
    assert fake_elsewhere(literal, CPU).constant is literal.constant
    assert fake_elsewhere(literal, CUDA).constant is None


def test_fake_mode_logs_what_an_operator_refuses_unless_it_is_quiet(caplog):
    def refused():
        with new_fake_mode(), pytest.raises(RuntimeError, match="histogram_cpu"):
            torch.histc(torch.zeros(3, dtype=torch.int32))

    with caplog.at_level(logging.ERROR):
        with quiet_fake_mode():
            refused()
        quiet = len(caplog.records)
        refused()

    assert quiet == 0
    assert [record.name for record in caplog.records] == ["torch._subclasses.fake_tensor"]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "sparse_csc"])
def test_a_fake_of_a_sparse_tensor_keeps_its_layout_also_on_another_device(layout):
    real, mode = torch.eye(3).to_sparse(layout=getattr(torch, layout)), new_fake_mode()

    fake = real_to_fake(mode, real, CPU)

    for made in (fake, fake if layout == "sparse_coo" else fake_elsewhere(fake, CUDA)):
        assert (made.layout, made.shape, made.dtype) == (real.layout, real.shape, real.dtype)
        assert (made.sparse_dim(), made.dense_dim()) == (real.sparse_dim(), real.dense_dim())
    assert meta_of(fake).layout == real.layout
    if layout != "sparse_coo":
        with pytest.raises(RuntimeError, match="do not have strides"), mode:
            torch.ops.aten.alias.default(fake)


def test_unknown_values_are_as_unknown_as_in_an_export():
    with unknown_values({"lengths": torch.tensor([2, 3]), "x": torch.zeros(5)}) as unknown:
        first, second = unknown["lengths"].tolist()
        padded = torch.nn.functional.pad(torch.repeat_interleave(unknown["lengths"]), (1, 0))
        with pytest.raises(GuardOnDataDependentSymNode):
            bool(first > second)
        is_exporting = torch.compiler.is_exporting()

    assert is_exporting
    assert not torch.compiler.is_exporting()
    assert not isinstance(padded.shape[0], int)

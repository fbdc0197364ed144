"""What `fakexport._torch.fake_tensors` relies on."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fakexport._torch.fake_tensors import (
    NEEDS_VALUES,
    fake_elsewhere,
    hand_on_hooks,
    is_fake_tensor,
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


def test_a_new_mode_has_a_shape_environment_that_tracks_fakes() -> None:
    mode = new_fake_mode()

    assert mode.shape_env is not None
    assert mode.shape_env.tracked_fakes == []
    assert mode.allow_non_fake_inputs


def test_a_deep_copy_asks_the_instance_of_the_mode_how_to_copy_it() -> None:
    mode = new_fake_mode()

    assert copy.deepcopy(mode) is mode


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_stock_torch_copies_the_mode_with_a_tensor() -> None:
    stock = torch._subclasses.fake_tensor.FakeTensorMode()
    with stock:
        a = torch.ones(2)

    assert mode_of([copy.deepcopy(a)]) is not stock


@pytest.mark.parametrize(
    "operation",
    [
        lambda: torch.ones(3).sum().item(),
        lambda: torch.ones(3).nonzero(),
        lambda: torch.geqrf(torch.ones(3, 3)),
    ],
)
def test_a_mode_without_shape_environment_says_that_it_needs_values(operation: object) -> None:
    mode = torch._subclasses.fake_tensor.FakeTensorMode(allow_fallback_kernels=False)

    with mode, pytest.raises(NEEDS_VALUES):
        operation()  # type: ignore[operator]


def test_a_fake_of_a_real_tensor_has_its_strides_and_shares_nothing() -> None:
    mode = new_fake_mode()
    real = torch.ones(2, 3).t()

    one = real_to_fake(mode, real, torch.device("cpu"))
    other = real_to_fake(mode, real, torch.device("cpu"))

    assert is_fake_tensor(one)
    assert one.stride() == (1, 3)
    assert mode_of([real, one]) is mode
    assert one.untyped_storage()._cdata != other.untyped_storage()._cdata


def test_the_storage_of_a_fake_tells_its_size() -> None:
    with new_fake_mode():
        a = torch.empty(4, 6)[1:, ::2]

        meta = meta_of(a)

    assert meta.device.type == "meta"
    assert (meta.stride(), meta.storage_offset(), meta.untyped_storage().nbytes()) == ((6, 2), 6, 96)


def test_tensors_that_share_memory_have_one_storage_identity() -> None:
    with new_fake_mode():
        a = torch.empty(4)
        b = torch.empty(4)
        assert storage_identity(a) == storage_identity(a[1:]) == storage_identity(a.detach())
        assert storage_identity(a) != storage_identity(b)
        a.data = b
        assert storage_identity(a) == storage_identity(b)


def test_a_sparse_tensor_has_no_memory_and_data_of_another_bring_theirs() -> None:
    with new_fake_mode():
        a, b = torch.empty(4), torch.empty(4)
        before = memory_of(a)
        assert before is not None
        assert memory_of(torch.empty(4).to_sparse()) is None
    a.data = b
    after = memory_of(a)

    assert after is not None
    assert after._cdata == b.untyped_storage()._cdata != before._cdata


def test_what_makes_a_tensor_fake_is_none_of_its_own_attributes() -> None:
    with new_fake_mode():
        parameter = torch.nn.Parameter(torch.empty(4))
        parameter.tag = 3
        parameter.nonzero()

    assert own_attributes(parameter) == {"tag": 3}


def test_hooks_of_a_fake_act_on_the_real_tensor() -> None:
    with new_fake_mode():
        fake = torch.nn.Parameter(torch.empty(2))
    seen: list[torch.Tensor] = []
    fake.register_hook(lambda gradient: gradient * 3)
    fake.register_post_accumulate_grad_hook(seen.append)
    real = torch.nn.Parameter(torch.ones(2))

    hand_on_hooks(fake, real)
    real.sum().backward()

    assert real.grad is not None
    assert real.grad.tolist() == [3.0, 3.0]
    assert seen[0] is real


def test_a_fake_elsewhere_has_the_same_layout_on_another_device() -> None:
    mode = new_fake_mode()
    with mode:
        fake = torch.empty(4, 6, dtype=torch.half).t()[1:]

    moved = fake_elsewhere(fake, torch.device("cuda:1"))

    assert (moved.shape, moved.stride(), moved.storage_offset()) == ((5, 4), (1, 6), 1)
    assert (moved.device, moved.dtype, moved.fake_mode) == (torch.device("cuda:1"), torch.half, mode)
    assert fake.device == torch.device("cpu")
    assert moved.is_leaf
    assert not moved.requires_grad


def test_a_fake_elsewhere_knows_the_value_of_a_literal_on_the_cpu_alone() -> None:
    with new_fake_mode():
        fake = torch.tensor([3.0])

    assert fake.constant is not None
    assert fake_elsewhere(fake, torch.device("cpu")).constant is fake.constant
    assert fake_elsewhere(fake, torch.device("cuda:0")).constant is None


def test_fake_mode_logs_what_an_operator_refuses_unless_it_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    def refused() -> None:
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
def test_a_fake_without_strides_goes_to_another_device_and_torch_makes_no_alias_of_it() -> None:
    mode = new_fake_mode()
    with mode:
        fake = torch.eye(3).to_sparse_csr()

    with pytest.raises(RuntimeError, match="do not have strides"), mode:
        torch.ops.aten.alias.default(fake)
    moved = fake_elsewhere(fake, torch.device("cuda:0"))
    assert (moved.layout, moved.device, tuple(moved.shape)) == (
        torch.sparse_csr,
        torch.device("cuda:0"),
        (3, 3),
    )


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "sparse_csc"])
def test_a_fake_of_a_sparse_tensor_keeps_its_layout(layout: str) -> None:
    real = torch.eye(3).to_sparse(layout=getattr(torch, layout))

    fake = real_to_fake(new_fake_mode(), real, torch.device("cpu"))

    assert (fake.layout, fake.shape, fake.dtype) == (real.layout, real.shape, real.dtype)
    assert (fake.sparse_dim(), fake.dense_dim()) == (real.sparse_dim(), real.dense_dim())
    assert meta_of(fake).layout == real.layout


def test_unknown_values_are_as_unknown_as_in_an_export() -> None:
    lengths = torch.tensor([2, 3])

    with unknown_values({"lengths": lengths, "x": torch.zeros(5)}) as unknown:
        first, second = unknown["lengths"].tolist()
        padded = torch.nn.functional.pad(torch.repeat_interleave(unknown["lengths"]), (1, 0))
        with pytest.raises(GuardOnDataDependentSymNode):
            bool(first > second)
        is_exporting = torch.compiler.is_exporting()

    assert is_exporting
    assert not torch.compiler.is_exporting()
    assert not isinstance(padded.shape[0], int)

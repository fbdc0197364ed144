"""What `fakexport._torch.operator_effects` relies on: what the schemas and tags of ATen say."""

from __future__ import annotations

import pytest
import torch

from fakexport._torch.operator_effects import effects_of

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "names"),
    [
        (aten.add.Tensor, []),
        (aten.add_.Tensor, ["self"]),
        (aten.add.out, ["out"]),
        (aten._foreach_add_.Scalar, ["self"]),
        (aten._native_batch_norm_legit.default, ["running_mean", "running_var"]),
        (aten.t_.default, ["self"]),
    ],
)
def test_the_schema_says_what_is_written(operator: object, names: list[str]) -> None:
    assert [name for _, name in effects_of(operator).writes] == names


def test_running_statistics_are_written_although_the_schema_does_not_say_so() -> None:
    assert not any(a.alias_info for a in aten.native_batch_norm.default._schema.arguments)
    names = [name for _, name in effects_of(aten.native_batch_norm.default).writes]
    assert names == ["running_mean", "running_var"]
    mean, ones = torch.zeros(2), torch.ones(2)
    aten.native_batch_norm.default(torch.full((3, 2), 5.0), ones, ones, mean, torch.ones(2), True, 0.5, 0.1)
    assert mean.tolist() == [2.5, 2.5]


@pytest.mark.parametrize(
    "operator",
    [aten.view.default, aten.t.default, aten.split.Tensor, aten.unbind.int, aten.detach.default,
     aten._unsafe_view.default, aten.select.int, aten.as_strided.default],
)  # fmt: skip
def test_the_schema_says_that_outputs_share_memory(operator: object) -> None:
    assert effects_of(operator).aliased == (0, "self")


@pytest.mark.parametrize(
    "operator", [aten.clone.default, aten._to_copy.default, aten.add_.Tensor, aten.empty_like.default]
)
def test_other_outputs_have_memory_of_their_own(operator: object) -> None:
    assert effects_of(operator).aliased is None


@pytest.mark.parametrize(
    "name", ["normal_", "uniform_", "rand", "randperm", "bernoulli_", "dropout", "multinomial"]
)
def test_the_tags_say_what_is_random(name: str) -> None:
    packet = getattr(aten, name)
    assert effects_of(getattr(packet, packet.overloads()[0])).is_random


@pytest.mark.parametrize("name", ["mul", "zeros", "arange", "empty"])
def test_the_tags_say_what_is_not_random(name: str) -> None:
    packet = getattr(aten, name)
    assert not any(effects_of(getattr(packet, overload)).is_random for overload in packet.overloads())


@pytest.mark.parametrize(
    "operator",
    [aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default,
     aten._unique2.default, aten.equal.default, aten.is_nonzero.default, aten.bincount.default,
     aten.repeat_interleave.Tensor],
)  # fmt: skip
def test_what_reads_values_is_known(operator: object) -> None:
    assert effects_of(operator).reads_values


@pytest.mark.parametrize("operator", [aten.index.Tensor, aten.index_select.default, aten.any.default])
def test_what_reads_no_values_is_known(operator: object) -> None:
    assert not effects_of(operator).reads_values


def test_queries_return_no_tensors() -> None:
    assert not effects_of(torch.ops.prim.device.default).returns_tensors
    assert not effects_of(aten.sym_size.int).returns_tensors
    assert effects_of(aten.split.Tensor).returns_tensors
    assert effects_of(aten._foreach_add_.Scalar).returns_tensors


def test_what_changes_geometry_and_storage_is_known() -> None:
    assert effects_of(aten.t_.default).changes_geometry
    assert effects_of(aten.squeeze_.dim).changes_geometry
    assert not effects_of(aten.add_.Tensor).changes_geometry
    assert effects_of(aten.set_.source_Tensor).moves_storage


def test_a_higher_order_operator_has_no_known_effects() -> None:
    assert effects_of(torch.ops.higher_order.cond).writes == ()


LIKE = {
    aten.empty_like: (),
    aten.zeros_like: (),
    aten.ones_like: (),
    aten.full_like: (7,),
    aten.rand_like: (),
    aten.randn_like: (),
    aten.randint_like: (9,),
    aten.new_empty: ([3],),
    aten.new_empty_strided: ([3], [2]),
    aten.new_zeros: ([3],),
    aten.new_ones: ([3],),
    aten.new_full: ([3], 7),
}


@pytest.mark.parametrize("packet", LIKE, ids=str)
def test_what_ignores_values_gives_the_same_for_other_values(packet: object) -> None:
    results = []
    for tensor in (torch.zeros(2, 3), torch.full((2, 3), torch.nan)):
        torch.manual_seed(0)
        results.append(packet.default(tensor, *LIKE[packet]))  # type: ignore[attr-defined]

    assert effects_of(packet.default).ignores_values  # type: ignore[attr-defined]
    assert results[0].shape == results[1].shape
    if not effects_of(packet.default).leaves_uninitialised:  # type: ignore[attr-defined]
        assert torch.equal(*results)


@pytest.mark.parametrize(
    "operator",
    [aten.randint_like.Tensor, aten.bernoulli.default, aten.clone.default, aten.expand.default,
     aten.zero_.default, aten.add.Tensor, aten.normal.Tensor_float],
)  # fmt: skip
def test_what_may_read_values_does_not_ignore_them(operator: object) -> None:
    assert not effects_of(operator).ignores_values


@pytest.mark.parametrize(
    "operator",
    [aten.empty.memory_format, aten.empty_strided.default, aten.empty_permuted.default,
     aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default],
)  # fmt: skip
def test_memory_without_values_is_known(operator: object) -> None:
    assert effects_of(operator).leaves_uninitialised
    assert not effects_of(aten.zeros_like.default).leaves_uninitialised

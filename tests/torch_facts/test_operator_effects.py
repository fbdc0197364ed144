"""What `operator_effects` relies on: what the schemas and tags of ATen say."""

from __future__ import annotations

import pytest
import torch

from fakexport._torch.operators.operator_effects import effects_of

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
        (torch.ops.higher_order.cond, []),
    ],
)
def test_the_schema_says_what_is_written(operator, names):
    assert [name for _, name in effects_of(operator).writes] == names


def test_running_statistics_are_written_although_the_schema_does_not_say_so():
    assert not any(a.alias_info for a in aten.native_batch_norm.default._schema.arguments)
    names = [name for _, name in effects_of(aten.native_batch_norm.default).writes]
    assert names == ["running_mean", "running_var"]
    mean, ones = torch.zeros(2), torch.ones(2)
    aten.native_batch_norm.default(torch.full((3, 2), 5.0), ones, ones, mean, torch.ones(2), True, 0.5, 0.1)
    assert mean.tolist() == [2.5, 2.5]


YES = {
    "aliased": "view.default t.default split.Tensor unbind.int detach.default _unsafe_view.default "
    "select.int as_strided.default",
    "is_random": "normal_.default uniform_.default rand.default randperm.default bernoulli_.float "
    "dropout.default multinomial.default",
    "reads_values": "_local_scalar_dense.default nonzero.default masked_select.default _unique2.default "
    "equal.default is_nonzero.default bincount.default repeat_interleave.Tensor",
    "leaves_uninitialised": "empty.memory_format empty_strided.default empty_permuted.default "
    "empty_like.default new_empty.default new_empty_strided.default",
    "changes_geometry": "t_.default squeeze_.dim",
    "moves_storage": "set_.source_Tensor",
    "returns_tensors": "split.Tensor _foreach_add_.Scalar",
}
NO = {
    "aliased": "clone.default _to_copy.default add_.Tensor empty_like.default",
    "is_random": "mul.Tensor zeros.default arange.default empty.memory_format",
    "reads_values": "index.Tensor index_select.default any.default",
    "leaves_uninitialised": "zeros_like.default",
    "changes_geometry": "add_.Tensor",
    "moves_storage": "add_.Tensor",
    "returns_tensors": "sym_size.int",
    "ignores_values": "randint_like.Tensor bernoulli.default clone.default expand.default zero_.default "
    "add.Tensor normal.Tensor_float",
}


@pytest.mark.parametrize(
    ("effect", "name", "expected"),
    [
        (effect, name, expected)
        for table, expected in ((YES, True), (NO, False))
        for effect, names in table.items()
        for name in names.split()
    ],
)
def test_schemas_and_tags_say_what_an_operator_does(effect, name, expected):
    packet, overload = name.split(".")

    found = getattr(effects_of(getattr(getattr(aten, packet), overload)), effect)

    assert bool(found) is expected
    assert effect != "aliased" or not expected or found == (0, "self")


def test_a_query_of_the_interpreter_returns_no_tensors():
    assert not effects_of(torch.ops.prim.device.default).returns_tensors


LIKE = {
    **dict.fromkeys((aten.empty_like, aten.zeros_like, aten.ones_like, aten.rand_like, aten.randn_like), ()),
    **dict.fromkeys((aten.new_empty, aten.new_zeros, aten.new_ones), ([3],)),
    aten.full_like: (7,),
    aten.randint_like: (9,),
    aten.new_empty_strided: ([3], [2]),
    aten.new_full: ([3], 7),
}


@pytest.mark.parametrize("packet", LIKE, ids=str)
def test_what_ignores_values_gives_the_same_for_other_values(packet):
    results = []
    for tensor in (torch.zeros(2, 3), torch.full((2, 3), torch.nan)):
        torch.manual_seed(0)
        results.append(packet.default(tensor, *LIKE[packet]))

    assert effects_of(packet.default).ignores_values
    assert results[0].shape == results[1].shape
    if not effects_of(packet.default).leaves_uninitialised:
        assert torch.equal(*results)

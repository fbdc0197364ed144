"""What `operator_schema` relies on."""

from __future__ import annotations

import operator

import pytest
import torch

from fakexport._torch.operators.operator_effects import effects_of
from fakexport._torch.operators.operator_schema import (
    aliased_arguments,
    argument_names,
    argument_values,
    defining_module,
    is_mutating,
    is_python_operator,
    numbers_for_tensors,
    operator_schema,
    promoted_dtype,
)

aten = torch.ops.aten


def test_an_overload_names_its_arguments_and_defaults_in_schema_order():
    assert argument_names(aten.mm.default) == ("self", "mat2")
    assert argument_names(torch.ops.higher_order.cond) == argument_names(operator.getitem) == ()
    values = argument_values(aten.dropout.default, ("x", 0.1), {"train": True})
    assert values == {"input": "x", "p": 0.1, "train": True}
    assert argument_values(aten.softmax.int, ("x", 1), {}) == {"self": "x", "dim": 1, "dtype": None}
    assert argument_values(operator.getitem, ((1, 2), 0), {}) == {}


def test_an_overload_says_whether_it_writes_into_its_arguments_or_changes_their_sizes():
    assert [is_mutating(each) for each in (aten.add_.Tensor, aten.unsqueeze_.default)] == [True, True]
    assert not is_mutating(aten.add.Tensor)
    assert effects_of(aten.unsqueeze_.default).changes_geometry
    assert not effects_of(aten.add_.Tensor).changes_geometry


def test_the_schema_of_a_registered_operator_is_found_by_its_name():
    schema = operator_schema("aten::cat")

    assert schema is not None
    assert schema.arguments == (("tensors", "List[Tensor]"), ("dim", "int"))
    assert (schema.results, schema.is_python, schema.first_tensor) == (("Tensor",), False, None)
    assert operator_schema("nobody::nothing") is None


def test_an_operator_that_was_made_in_python_is_known():
    @torch.library.custom_op("schema_facts::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert is_python_operator("schema_facts::twice")
    assert not is_python_operator("aten::add")
    assert defining_module("schema_facts::twice") == __name__
    assert defining_module("aten::add") is None


@pytest.mark.parametrize(
    ("overload", "owners"),
    [
        (aten.add.Tensor, (None,)),
        (aten.add_.Tensor, ("self",)),
        (aten.view.default, ("self",)),
        (aten.unbind.int, ("self",)),
        (aten.split.Tensor, ("self",)),
        (aten.unsafe_split.Tensor, ("self",)),
        (aten.add.out, ("out",)),
        (aten.topk.default, (None, None)),
    ],
)
def test_the_schema_says_whose_memory_a_result_has(overload, owners):
    assert aliased_arguments(overload) == owners


def test_the_results_of_an_unsafe_split_are_views():
    tensor = torch.ones(4)

    first, second = torch.unsafe_split(tensor, 2)

    assert {part.untyped_storage().data_ptr() for part in (first, second)} == {tensor.data_ptr()}


@pytest.mark.parametrize(
    "values",
    [
        (torch.ones(3), torch.ones(3, dtype=torch.float64)),
        (torch.ones(3, dtype=torch.bfloat16), torch.ones((), dtype=torch.float64)),
        (torch.ones(3, dtype=torch.int64), 1.5),
        (torch.ones(3, dtype=torch.bool), 2),
    ],
)
def test_an_elementwise_operator_computes_in_the_promoted_dtype(values):
    assert promoted_dtype(values) is torch.mul(*values).dtype


def test_numbers_are_passed_where_a_tensor_is_meant():
    assert numbers_for_tensors(aten.add.Tensor, (torch.zeros(2), 3), {"alpha": 2}) == [3]
    assert numbers_for_tensors(aten.lt.Scalar, (torch.zeros(2), 1.5), {}) == [1.5]
    assert numbers_for_tensors(aten.softmax.int, (torch.zeros(2), 0), {}) == []

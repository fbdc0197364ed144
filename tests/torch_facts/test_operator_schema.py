"""What `fakexport._torch.operator_schema` relies on."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

from fakexport._torch.operator_schema import (
    aliased_arguments,
    argument_names,
    argument_values,
    defining_module,
    is_changing_views,
    is_mutating,
    is_python_operator,
    numbers_for_tensors,
    operator_schema,
    promoted_dtype,
)


def test_an_overload_names_its_arguments_in_schema_order() -> None:
    assert argument_names(torch.ops.aten.to.device) == (
        "self", "device", "dtype", "non_blocking", "copy", "memory_format",
    )  # fmt: skip


def test_a_higher_order_operator_and_a_python_function_have_no_schema() -> None:
    assert argument_names(torch.ops.higher_order.cond) == ()
    assert argument_names(operator.getitem) == ()


def test_a_call_gets_its_defaults_by_name() -> None:
    attention = torch.ops.aten.scaled_dot_product_attention.default

    values = argument_values(attention, ("q", "k", "v", None, 0.1), {"is_causal": True})

    assert values == {
        "query": "q", "key": "k", "value": "v", "attn_mask": None, "dropout_p": 0.1, "is_causal": True,
        "scale": None, "enable_gqa": False,
    }  # fmt: skip
    assert argument_values(operator.getitem, ((1, 2), 0), {}) == {}


def test_an_overload_says_whether_it_writes_into_its_arguments_or_changes_their_sizes() -> None:
    aten = torch.ops.aten

    assert [is_mutating(operator) for operator in (aten.add_.Tensor, aten.unsqueeze_.default)] == [True, True]
    assert not is_mutating(aten.add.Tensor)
    assert is_changing_views(aten.unsqueeze_.default)
    assert not is_changing_views(aten.add_.Tensor)


def test_the_schema_of_a_registered_operator_is_found_by_its_name() -> None:
    schema = operator_schema("aten::cat")

    assert schema is not None
    assert schema.arguments == (("tensors", "List[Tensor]"), ("dim", "int"))
    assert (schema.results, schema.is_python, schema.first_tensor) == (("Tensor",), False, None)
    assert operator_schema("nobody::nothing") is None


def test_an_operator_that_was_made_in_python_is_known() -> None:
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
        (torch.ops.aten.add.Tensor, (None,)),
        (torch.ops.aten.add_.Tensor, ("self",)),
        (torch.ops.aten.view.default, ("self",)),
        (torch.ops.aten.unbind.int, ("self",)),
        (torch.ops.aten.split.Tensor, ("self",)),
        (torch.ops.aten.unsafe_split.Tensor, ("self",)),
        (torch.ops.aten.add.out, ("out",)),
        (torch.ops.aten.topk.default, (None, None)),
    ],
)
def test_the_schema_says_whose_memory_a_result_has(overload: Any, owners: tuple[str | None, ...]) -> None:
    assert aliased_arguments(overload) == owners


def test_the_results_of_an_unsafe_split_are_views() -> None:
    tensor = torch.ones(4)

    first, second = torch.unsafe_split(tensor, 2)

    assert {part.untyped_storage().data_ptr() for part in (first, second)} == {tensor.data_ptr()}


@pytest.mark.parametrize(
    "values",
    [
        (torch.ones(3), torch.ones(3, dtype=torch.float64)),
        (torch.ones(3, dtype=torch.bfloat16), torch.ones(3)),
        (torch.ones(3, dtype=torch.bfloat16), torch.ones((), dtype=torch.float64)),
        (torch.ones(3, dtype=torch.int64), 1.5),
        (torch.ones(3, dtype=torch.bool), 2),
        (torch.ones(3, dtype=torch.int32), torch.ones(3, dtype=torch.int64)),
    ],
)
def test_an_elementwise_operator_computes_in_the_promoted_dtype(values: tuple[Any, Any]) -> None:
    assert promoted_dtype(values) is torch.mul(*values).dtype


def test_numbers_are_passed_where_a_tensor_is_meant() -> None:
    aten = torch.ops.aten

    assert numbers_for_tensors(aten.add.Tensor, (torch.zeros(2), 3), {"alpha": 2}) == [3]
    assert numbers_for_tensors(aten.lt.Scalar, (torch.zeros(2), 1.5), {}) == [1.5]
    assert numbers_for_tensors(aten.softmax.int, (torch.zeros(2), 0), {}) == []

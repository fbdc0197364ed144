"""What `fakexport._torch.operator_schema` relies on."""

from __future__ import annotations

import operator

import torch

from fakexport._torch.operator_schema import (
    argument_names,
    argument_values,
    defining_module,
    is_changing_views,
    is_mutating,
    is_python_operator,
    operator_schema,
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

"""What `fakexport._torch.operator_schema` relies on."""

from __future__ import annotations

import operator

import torch

from fakexport._torch.operator_schema import argument_names, argument_values


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

"""What `fakexport._torch.operator_schema` relies on."""

from __future__ import annotations

import operator

import torch

from fakexport._torch.operator_schema import argument_names


def test_an_overload_names_its_arguments_in_schema_order() -> None:
    assert argument_names(torch.ops.aten.to.device) == (
        "self", "device", "dtype", "non_blocking", "copy", "memory_format",
    )  # fmt: skip


def test_a_higher_order_operator_and_a_python_function_have_no_schema() -> None:
    assert argument_names(torch.ops.higher_order.cond) == ()
    assert argument_names(operator.getitem) == ()

"""Why programs have two operators for products of groups, and when one of them can go."""

from __future__ import annotations

import pytest
import torch
from transformers.integrations import moe

from fakexport._torch.emulation.fake_tensors import new_fake_mode
from fakexport._torch.kernels.grouped_products import TORCHS, TRANSFORMERS
from fakexport._torch.operators.operator_registry import registered_overload


def test_torch_traces_its_operator_in_bfloat16_alone() -> None:
    """Its kernel takes float32. Where this fails, transformers will trace torch's operator for it as well."""
    offs = torch.tensor([1, 4], dtype=torch.int32)
    assert torch.nn.functional.grouped_mm(torch.ones(4, 8), torch.ones(2, 8, 8), offs=offs).shape == (4, 8)

    if torch.__version__ >= "2.15":
        pytest.skip("traces it in float32 as well")
    words = r"Expected (inputs of BF16 type|mat_a to be BFloat16)"  # torch 2.13, 2.14
    with new_fake_mode(), pytest.raises(RuntimeError, match=words):
        torch.nn.functional.grouped_mm(torch.ones(4, 8), torch.ones(2, 8, 8), offs=torch.ones(2).int())


def test_both_operators_take_rows_matrices_and_ends() -> None:
    arguments = {}
    for name in (TORCHS, TRANSFORMERS):
        operator = registered_overload(*name.split("."))
        assert operator is not None
        arguments[name] = [argument.name for argument in operator._schema.arguments]

    assert arguments == {
        TORCHS: ["self", "mat2", "offs", "bias", "out_dtype"],
        TRANSFORMERS: ["input", "weight", "offs"],
    }
    assert moe.__name__ == "transformers.integrations.moe"

"""What `operator_registry` relies on."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fakexport._torch.operators.operator_registry import (
    has_tensor_list_return,
    higher_order_operator,
    operator_text,
    registered_overload,
    return_count,
    schema_arguments,
)
from fakexport._torch.operators.packaged_operators import TORCH_NAMESPACES


def test_an_operator_is_found_by_its_name():
    assert registered_overload("aten", "add", "Tensor") is torch.ops.aten.add.Tensor
    assert registered_overload("aten", "relu", "default") is torch.ops.aten.relu.default
    assert higher_order_operator("cond") is torch.ops.higher_order.cond


def test_what_is_not_registered_is_none_and_leaves_no_trace():
    loaded = set(sys.modules)

    assert registered_overload("no_such_library", "boom", "default") is None
    assert registered_overload("aten", "add", "NoSuchOverload") is None
    assert higher_order_operator("no_such") is None

    assert "no_such_library" not in vars(torch.ops)
    assert set(sys.modules) == loaded


@pytest.mark.slow
def test_all_that_torch_registers_is_in_its_namespaces():
    code = """
import torch, torch.onnx.ops
import torch.ao.quantization.fx._decomposed
import torch.nn.attention.flex_attention
schemas = torch._C._jit_get_all_schemas()
print(*sorted({schema.name.partition("::")[0] for schema in schemas if "::" in schema.name}))
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert "quantized_decomposed" in found
    assert set(found) <= TORCH_NAMESPACES


def test_the_text_is_the_one_of_torchs_serializer():
    assert operator_text(torch.ops.aten.add.Tensor) == "torch.ops.aten.add.Tensor"
    assert operator_text(torch.ops.higher_order.cond) == "torch.ops.higher_order.cond"
    assert operator_text(torch.sym_not) == "torch.sym_not"


def test_a_schema_tells_arguments_and_results():
    arguments = schema_arguments(torch.ops.aten.new_zeros.default)

    assert arguments[:3] == (("self", False, None), ("size", False, "as_ints"), ("dtype", True, None))
    assert schema_arguments(torch.ops.aten.cat.default)[0] == ("tensors", False, "as_tensors")
    assert has_tensor_list_return(torch.ops.aten.split.Tensor)
    assert not has_tensor_list_return(torch.ops.aten.add.Tensor)
    assert return_count(torch.ops.aten.native_layer_norm.default) == 3

"""Operators by name, looked up among those that are registered: nothing is imported or loaded.

Seen on torch 2.11 to 2.13. Source: `torch/_ops.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, _higher_order_ops

__all__ = [
    "TORCH_NAMESPACES",
    "HigherOrderOperator",
    "OpOverload",
    "empty_list_kind",
    "has_tensor_list_return",
    "higher_order_operator",
    "operator_text",
    "registered_overload",
    "return_count",
    "schema_arguments",
]

TORCH_NAMESPACES = frozenset(
    (
        *("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_native", "_native_aot"),
        *("_quantized", "_test", "aten", "c10d", "c10d_functional", "coor", "cuda", "debug_mode_ops"),
        *("debugprims", "device_mesh", "export", "flex_gemm", "flex_lib", "fsdp", "inductor"),
        *("inductor_prims", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "onnx", "onnx_symbolic"),
        *("prepacked", "prim", "prims", "profiler", "quantization", "quantized"),
        *("quantized_decomposed", "rngprims", "sparse", "static_runtime", "streams", "symm_mem"),
    )
)
"""Where torch registers its own operators, those of its submodules included; all others are of libraries."""

_LIST_KINDS = {"bool": "as_bools", "int": "as_ints", "float": "as_floats", "str": "as_strings"} | {
    "Tensor": "as_tensors",
    "SymInt": "as_ints",
}


def registered_overload(namespace: str, name: str, overload: str) -> OpOverload | None:
    """Return `torch.ops.<namespace>.<name>.<overload>`, or None where it is not registered.

    The dispatcher is asked first, because attributes of `torch.ops` come into being by being asked for.
    """
    wanted = "" if overload == "default" else overload
    schemas = torch._C._jit_get_schemas_for_operator(f"{namespace}::{name}")
    if not any(schema.overload_name == wanted for schema in schemas):
        return None
    found = getattr(getattr(getattr(torch.ops, namespace), name), overload, None)
    return found if isinstance(found, OpOverload) else None


def higher_order_operator(name: str) -> HigherOrderOperator | None:
    """Return a registered higher-order operator, or None."""
    return _higher_order_ops.get(name)


def operator_text(target: Any) -> str:
    """Return torch's serialized name of an operator or a function: `torch.ops.aten.add.Tensor`."""
    module: str = target.__module__
    if module.startswith("torch._ops"):
        module = module.replace("torch._ops", "torch.ops", 1)
    return f"{module}.{target.__name__}"


def schema_arguments(operator: OpOverload) -> tuple[tuple[str, bool, str | None], ...]:
    """Return each argument's name, whether it is keyword-only, and how an empty list for it is written."""
    return tuple(
        (argument.name, argument.kwarg_only, empty_list_kind(argument.type))
        for argument in operator._schema.arguments
    )


def empty_list_kind(argument_type: Any) -> str | None:
    """Return the kind under which torch writes an empty list for an argument of this type."""
    if isinstance(argument_type, torch.OptionalType):
        argument_type = argument_type.getElementType()
    if not isinstance(argument_type, torch.ListType):
        return None
    element = argument_type.getElementType()
    if isinstance(element, torch.OptionalType):
        element = element.getElementType()
    return _LIST_KINDS.get(str(element))


def has_tensor_list_return(operator: OpOverload) -> bool:
    """Return whether the operator returns one list of tensors."""
    returns = operator._schema.returns
    if len(returns) != 1 or not isinstance(returns[0].real_type, torch.ListType):
        return False
    return isinstance(returns[0].real_type.getElementType(), torch.TensorType)


def return_count(operator: OpOverload) -> int:
    """Return how many values the operator's schema says it returns."""
    return len(operator._schema.returns)

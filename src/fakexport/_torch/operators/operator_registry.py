"""Register operators, and look them up by name, without importing or loading anything.

Seen on torch 2.11 to 2.13. Source: `torch/_ops.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._ops import _higher_order_ops
from torch.utils.flop_counter import flop_registry, register_flop_formula

_LIST_KINDS = {"bool": "as_bools", "int": "as_ints", "float": "as_floats", "str": "as_strings"} | {
    "Tensor": "as_tensors",
    "SymInt": "as_ints",
}


_registered: list[Any] = []  # Keeps the operators alive, because torch only has weak references to them.


def register_operator(
    name: str,
    schema: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    flops: Callable[..., Any] | None = None,
) -> None:
    """Register an operator such as `mxfp4::grouped_mm` and its FLOP formula, unless already registered.

    `kernel` computes the result on any device, and `fake` computes the metadata of the result. The operator
    must not mutate its arguments.
    """
    namespace, short = name.split("::")
    if registered_overload(namespace, short, "default") is None:
        operator = torch.library.custom_op(name, kernel, mutates_args=(), schema=schema)
        operator.register_fake(fake)
        _registered.append(operator)
    packet = getattr(getattr(torch.ops, namespace), short)
    if flops is not None and packet not in flop_registry:
        register_flop_formula(packet, get_raw=True)(flops)


def registered_overload(namespace: str, name: str, overload: str) -> OpOverload | None:
    """Return `torch.ops.<namespace>.<name>.<overload>`, or None if it is not registered.

    The dispatcher is queried first, because reading an attribute of `torch.ops` would create it.
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
    """Return the name with which torch serializes an operator or function: `torch.ops.aten.add.Tensor`."""
    module: str = target.__module__
    if module.startswith("torch._ops"):
        module = module.replace("torch._ops", "torch.ops", 1)
    return f"{module}.{target.__name__}"


def schema_arguments(operator: OpOverload) -> tuple[tuple[str, bool, str | None], ...]:
    """Return, for each argument, its name, whether it is keyword-only, and its `empty_list_kind`."""
    return tuple(
        (argument.name, argument.kwarg_only, empty_list_kind(argument.type))
        for argument in operator._schema.arguments
    )


def empty_list_kind(argument_type: Any) -> str | None:
    """Return the kind, such as `as_ints`, with which torch serializes an empty list for this argument type.

    Return None if the argument is not a list.
    """
    if isinstance(argument_type, torch.OptionalType):
        argument_type = argument_type.getElementType()
    if not isinstance(argument_type, torch.ListType):
        return None
    element = argument_type.getElementType()
    if isinstance(element, torch.OptionalType):
        element = element.getElementType()
    return _LIST_KINDS.get(str(element))


def has_tensor_list_return(operator: OpOverload) -> bool:
    """Return whether the operator's only result is a list of tensors."""
    returns = operator._schema.returns
    if len(returns) != 1 or not isinstance(returns[0].real_type, torch.ListType):
        return False
    return isinstance(returns[0].real_type.getElementType(), torch.TensorType)


def return_count(operator: OpOverload) -> int:
    """Return the number of results in the operator's schema."""
    return len(operator._schema.returns)

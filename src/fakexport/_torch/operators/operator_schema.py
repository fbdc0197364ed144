"""Read operator schemas, which torch exposes only in the private `_schema` of an overload.

Seen on torch 2.11 to 2.13. Source: `torch/_library/custom_ops.py:OPDEFS`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes


@dataclass(frozen=True)
class OperatorSchema:
    """The schema of an operator.

    Args:
        arguments: Name and type of each argument, such as `("x", "Tensor")` or `("sizes", "List[int]")`.
    """

    name: str  # For example `acme::scale`.
    arguments: tuple[tuple[str, str], ...]
    results: tuple[str, ...]  # Type of each return.
    is_python: bool  # Whether its kernels are Python functions.

    @property
    def first_tensor(self) -> str | None:
        """Name of the first tensor argument."""
        return next((name for name, kind in self.arguments if kind == "Tensor"), None)


def operator_schema(name: str) -> OperatorSchema | None:
    """Return the schema of a registered operator's first overload, or None."""
    schemas = torch._C._jit_get_schemas_for_operator(name)
    if not schemas:
        return None
    schema = schemas[0]
    return OperatorSchema(
        name,
        tuple((argument.name, str(argument.type)) for argument in schema.arguments),
        tuple(str(returned.type) for returned in schema.returns),
        is_python_operator(name),
    )


def is_python_operator(name: str) -> bool:
    """Return whether `torch.library.custom_op` created the operator.

    The kernels of such an operator can raise exceptions, but do not crash the process.
    """
    return name in OPDEFS


def defining_module(name: str) -> str | None:
    """Return the module of the function that was passed to `torch.library.custom_op`, or None."""
    found = OPDEFS.get(name)
    module = getattr(found._init_fn, "__module__", None) if found is not None else None
    return module if isinstance(module, str) and module in sys.modules else None


def argument_names(operator: Any) -> tuple[str, ...]:
    """Return the names of the operator's arguments in schema order. Without a schema, return no names."""
    schema = getattr(operator, "_schema", None)
    return tuple(argument.name for argument in schema.arguments) if schema is not None else ()


def argument_values(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the argument values by name, including defaults. Without a schema, return no values."""
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return {}
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return {**defaults, **dict(zip(argument_names(operator), args, strict=False)), **kwargs}


def is_mutating(operator: Any) -> bool:
    """Return whether an operator overload mutates one of its arguments."""
    return bool(operator._schema.is_mutable)


def returns_tensor(operator: Any) -> bool:
    """Return whether an operator returns a tensor or a list of tensors. `_foreach_add_` returns nothing."""
    return any(str(result.type) in ("Tensor", "List[Tensor]") for result in operator._schema.returns)


def promoted_dtype(values: Sequence[Any]) -> torch.dtype:
    """Return the dtype in which an elementwise operator computes with these tensors and numbers."""
    kinds = (torch.Tensor, int, float, torch.SymInt, torch.SymFloat)
    given = [value for value in values if isinstance(value, kinds)]
    return elementwise_dtypes(*given, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)[1]


_UNDECLARED = {
    "_c10d_functional::wait_tensor": ("tensor",),
    "aten::unsafe_split": ("self",),
    "aten::unsafe_split_with_sizes": ("self",),
}
"""Operators that return their argument, although their schema does not declare an alias."""


def aliased_arguments(operator: Any) -> tuple[str | None, ...]:
    """Return, for each result of an operator overload, the argument that the result is an alias of.

    An entry is None if the result has its own memory.

    Example:
        >>> aliased_arguments(torch.ops.aten.add_.Tensor), aliased_arguments(torch.ops.aten.add.Tensor)
        (('self',), (None,))
    """
    if (known := _UNDECLARED.get(operator._schema.name)) is not None:
        return known
    arguments = [a for a in operator._schema.arguments if a.alias_info is not None]
    owners = {name: a.name for a in arguments for name in a.alias_info.before_set}
    # If the result is a list of views (`unbind`), the views have an alias set of their own.
    only = arguments[0].name if len(arguments) == 1 else None
    return tuple(
        None
        if returned.alias_info is None
        else next((owners[name] for name in returned.alias_info.before_set if name in owners), only)
        for returned in operator._schema.returns
    )


def numbers_for_tensors(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the Python numbers in a call's arguments that torch converts to 0-d tensors."""
    given = zip(operator._schema.arguments, args, strict=False)
    named = ((a, kwargs[a.name]) for a in operator._schema.arguments if a.name in kwargs)
    return [
        value
        for argument, value in (*given, *named)
        if isinstance(value, (int, float, complex, torch.SymInt, torch.SymFloat))
        and (str(argument.type) == "Tensor" or argument.name == "other")
    ]

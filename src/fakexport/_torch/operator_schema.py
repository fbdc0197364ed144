"""Argument names of an operator, which torch keeps only in the private `_schema` of an overload.

Seen on torch 2.11 to 2.13.
"""

from __future__ import annotations

from typing import Any

__all__ = ["argument_names"]


def argument_names(operator: Any) -> tuple[str, ...]:
    """Names of the operator's arguments in the order of its schema; empty for what has no schema.

    Args:
        operator: The target of a `call_function` node: an operator overload, a higher-order operator
            or a plain Python function.
    """
    schema = getattr(operator, "_schema", None)
    return tuple(argument.name for argument in schema.arguments) if schema is not None else ()

"""Arguments of an operator by name, which torch keeps only in the private `_schema` of an overload.

Seen on torch 2.11 to 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["argument_names", "argument_values"]


def argument_names(operator: Any) -> tuple[str, ...]:
    """Names of the operator's arguments in the order of its schema; empty for what has no schema.

    Args:
        operator: The target of a `call_function` node: an operator overload, a higher-order operator
            or a plain Python function.
    """
    schema = getattr(operator, "_schema", None)
    return tuple(argument.name for argument in schema.arguments) if schema is not None else ()


def argument_values(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The value of each argument by its name, defaults included; empty for what has no schema.

    Args:
        operator: As for `argument_names`.
        args, kwargs: Of one call of it.
    """
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return {}
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return {**defaults, **dict(zip(argument_names(operator), args, strict=False)), **kwargs}

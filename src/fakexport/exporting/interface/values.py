"""Inputs and outputs of a program as text, and their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ValueSummary:
    """One input or output.

    Args:
        name: The argument's name for an input (`input_ids`), the path in the returned structure for an
            output (`logits`, `hidden_states.0`; `output` if a single value is returned), the weight's
            name for a mutated buffer or parameter.
        kind: torch's name for the kind, in lowercase: `user_input`, `user_output`, `buffer_mutation`.
        node: Name of the graph node; "" for a constant output.
        dtype: Dtype of a tensor, such as `float32`. For other values, the Python type, such as `int`.
        shape: Sizes of a tensor as text, such as `("s77", "128")`. None for other values.
        device: Device of a tensor, such as `cuda:0`. None for other values.
        value: The text of a constant or a symbolic number. None for a tensor.
    """

    name: str
    kind: str
    node: str
    dtype: str
    shape: tuple[str, ...] | None = None
    device: str | None = None
    value: str | None = None


@dataclass(frozen=True)
class SymbolRange:
    """The range of a symbol's values.

    Args:
        lower: The smallest value, or None for minus infinity.
        upper: The greatest value, or None for infinity.
    """

    lower: int | None
    upper: int | None


def leaf_names(structure: Any) -> tuple[str, ...]:
    """Return the paths of the leaves in a pytree spec."""
    return tuple(".".join(path) or "output" for path in _leaf_paths(structure, ()))


def _leaf_paths(structure: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    if structure.is_leaf():
        return [path]
    children = structure.children()
    keys = _keys(structure.context, len(children))
    return [
        leaf for key, child in zip(keys, children, strict=True) for leaf in _leaf_paths(child, (*path, key))
    ]


def _keys(context: Any, count: int) -> list[str]:
    """Return the field names in a container's pytree context, or positions if it has no field names."""
    if isinstance(context, type) and issubclass(context, tuple):
        context = getattr(context, "_fields", ())
    candidates = [context, *context] if isinstance(context, (list, tuple)) else []
    for keys in candidates:
        if (
            isinstance(keys, (list, tuple))
            and len(keys) == count
            and all(isinstance(key, (str, int)) for key in keys)
        ):
            return [str(key) for key in keys]
    return [str(index) for index in range(count)]


def is_lifted(name: str) -> bool:
    """Return whether torch numbered a constant of a program, because it is not an attribute of a module.

    Another program of the same model may have a different tensor under this name.
    """
    return name.rpartition(".")[2].startswith("lifted_tensor_")

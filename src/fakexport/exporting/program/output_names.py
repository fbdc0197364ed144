"""Paths of a program's outputs in the structure that the program returns."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from .walk import input_nodes


def output_names(program: ExportedProgram) -> tuple[str, ...]:
    """Return the path of each returned leaf, such as `logits` or `past_key_values.0.1`.

    A single returned value has the path `output`.
    """
    structure = program.call_spec.out_spec
    return () if structure is None else leaf_names(structure)


def user_outputs(program: ExportedProgram) -> list[tuple[str, Any]]:
    """Return the path and the `torch.export` argument spec of each returned leaf."""
    specs = program.graph_signature.output_specs
    arguments = [spec.arg for spec in specs if spec.kind is OutputKind.USER_OUTPUT]
    return list(zip(output_names(program), arguments, strict=True))


def user_inputs(program: ExportedProgram) -> list[tuple[Any, Node]]:
    """Return the `torch.export` argument spec and the placeholder of each user input."""
    return [(spec.arg, node) for spec, node in input_nodes(program) if spec.kind is InputKind.USER_INPUT]


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

"""Where each output is in the structure that a program returns."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node


def output_names(program: ExportedProgram) -> tuple[str, ...]:
    """Return the path of each returned leaf: `logits`, `past_key_values.0.1`.

    `("output",)` for a single value.
    """
    structure = program.call_spec.out_spec
    return () if structure is None else leaf_names(structure)


def user_outputs(program: ExportedProgram) -> list[tuple[str, Any]]:
    """Return the path of each returned leaf, and what `torch.export` says of it."""
    specs = program.graph_signature.output_specs
    arguments = [spec.arg for spec in specs if spec.kind is OutputKind.USER_OUTPUT]
    return list(zip(output_names(program), arguments, strict=True))


def user_inputs(program: ExportedProgram) -> list[tuple[Any, Node]]:
    """Return what `torch.export` says of each input of a call, and its placeholder, in the flat order."""
    placeholders = program.graph.find_nodes(op="placeholder")
    pairs = zip(program.graph_signature.input_specs, placeholders, strict=True)
    return [(spec.arg, node) for spec, node in pairs if spec.kind is InputKind.USER_INPUT]


def leaf_names(structure: Any) -> tuple[str, ...]:
    """Return the same for a structure, as torch describes it."""
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
    """Return the field names, wherever torch's containers keep them in their context; else positions."""
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

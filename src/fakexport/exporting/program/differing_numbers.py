"""Find modules whose numbers differ between two programs of equal structure, such as two ranks of a model."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.pytree import tree_flatten
from fakexport.exporting.program.node_names import module_path

from .program_copy import graph_modules


def differing_numbers(a: ExportedProgram, b: ExportedProgram) -> tuple[str, ...] | None:
    """Return the modules whose nodes have different numbers in two otherwise equal programs.

    The comparison covers the nodes in order (operators, arguments, and shapes, dtypes and devices of
    results), the signatures, and the shapes of weights and constants, but not their values.

    Args:
        a, b: The programs. They are not changed.
    Returns:
        Paths of modules. Empty for identical programs; None if the programs differ in more than numbers.
    """
    found: dict[str, None] = {}
    for mine, theirs in zip_longest(graph_modules(a.graph_module), graph_modules(b.graph_module)):
        if mine is None or theirs is None or len(mine.graph.nodes) != len(theirs.graph.nodes):
            return None
        for one, other in zip(mine.graph.nodes, theirs.graph.nodes, strict=True):
            (fixed_a, numbers_a), (fixed_b, numbers_b) = _parted(one), _parted(other)
            if fixed_a != fixed_b:
                return None
            if numbers_a != numbers_b:
                found[module_path(one)] = None
    if str(a.graph_signature) != str(b.graph_signature) or _shapes(a) != _shapes(b):
        return None
    return tuple(found)


def _parted(node: Node) -> tuple[tuple[Any, ...], list[Any]]:
    """Return everything about a node except the numbers in its arguments, and then these numbers."""
    leaves, structure = tree_flatten((node.args, dict(node.kwargs)))
    texts = [type(leaf) if _is_number(leaf) else str(leaf) for leaf in leaves]
    fixed = node.op, node.name, str(node.target), str(structure), texts, _told(node.meta.get("val"))
    return fixed, [leaf for leaf in leaves if _is_number(leaf)]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _told(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(map(str, value.shape))} {value.device}"
    if isinstance(value, (list, tuple)):
        return str([_told(item) for item in value])
    return str(value)


def _shapes(program: ExportedProgram) -> list[tuple[str, str]]:
    held = {**program.state_dict, **program.constants}
    return [(name, _told(value)) for name, value in held.items()]

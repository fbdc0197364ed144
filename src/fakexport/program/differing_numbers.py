"""Where two programs of one structure have other numbers, as those of two ranks of a model do."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.pytree import tree_flatten
from fakexport.program.node_names import module_path

from .program_copy import graph_modules


def differing_numbers(a: ExportedProgram, b: ExportedProgram) -> tuple[str, ...] | None:
    """Return the modules whose nodes take other numbers in two programs, which are alike in all else.

    Compared are the nodes in their order: operators, arguments, shapes, dtypes and devices of results; the
    signatures; and the shapes of weights and constants, not their values.

    Args:
        a, b: Not changed.
    Returns:
        Paths of modules, none for one program; None if the programs differ in more than numbers.
    """
    found: dict[str, None] = {}
    for mine, theirs in zip_longest(graph_modules(a.graph_module), graph_modules(b.graph_module)):
        if mine is None or theirs is None or len(mine.graph.nodes) != len(theirs.graph.nodes):
            return None
        for one, other in zip(mine.graph.nodes, theirs.graph.nodes, strict=True):
            if _fixed(one) != _fixed(other):
                return None
            numbers = [_numbers(node) for node in (one, other)]
            if numbers[0] != numbers[1]:
                if len(numbers[0]) != len(numbers[1]):
                    return None
                found[module_path(one)] = None
    if str(a.graph_signature) != str(b.graph_signature) or _shapes(a) != _shapes(b):
        return None
    return tuple(found)


def _fixed(node: Node) -> tuple[Any, ...]:
    """Return what is the same in a node of both programs: everything but numbers among its arguments."""
    leaves, structure = tree_flatten((node.args, dict(node.kwargs)))
    texts = [type(leaf) if _is_number(leaf) else str(leaf) for leaf in leaves]
    return node.op, node.name, str(node.target), str(structure), texts, _told(node.meta.get("val"))


def _numbers(node: Node) -> list[Any]:
    return [leaf for leaf in tree_flatten((node.args, dict(node.kwargs)))[0] if _is_number(leaf)]


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

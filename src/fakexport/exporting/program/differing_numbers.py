"""Find modules whose numbers differ between two programs of equal structure, such as two ranks of a model."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.pytree import tree_flatten
from fakexport.exporting.program.node_names import module_path

from .program_copy import graph_modules


@dataclass(frozen=True)
class ProgramNumbers:
    """The numbers in the arguments of a program's nodes, apart from everything else.

    Args:
        others: Hash of the nodes without these numbers, in order (operators, arguments, and shapes, dtypes
            and devices of results), the signature, and the shapes of weights and constants.
        numbers: The path of the module and the numbers of each node that has numbers.
    """

    others: str
    numbers: tuple[tuple[str, tuple[int | float, ...]], ...]

    @classmethod
    def of(cls, program: ExportedProgram) -> ProgramNumbers:
        """Return the numbers of a program, which is not changed."""
        digest, numbers = sha256(), []
        for module in graph_modules(program.graph_module):
            for node in module.graph.nodes:
                fixed, own = _parted(node)
                digest.update(repr((fixed, len(own))).encode())
                if own:
                    numbers.append((module_path(node), tuple(own)))
            digest.update(b"end of a graph")
        digest.update(repr((str(program.graph_signature), _shapes(program))).encode())
        return cls(digest.hexdigest(), tuple(numbers))


def differing_numbers(a: ProgramNumbers, b: ProgramNumbers) -> tuple[str, ...] | None:
    """Return the modules whose nodes have different numbers in two otherwise equal programs.

    Returns:
        Paths of modules. Empty for identical programs; None if the programs differ in more than numbers.
    """
    if a.others != b.others:
        return None
    pairs = zip(a.numbers, b.numbers, strict=True)
    return tuple(dict.fromkeys(path for (path, mine), (_, theirs) in pairs if mine != theirs))


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

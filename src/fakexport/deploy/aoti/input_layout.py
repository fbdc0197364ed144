"""Memory layout of inputs: compiled code assumes the program's layout without checking it."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, TensorArgument

from fakexport._torch.symbolic_numbers import hint_of

from ..artifact import DeployError


def input_orders(program: ExportedProgram) -> tuple[tuple[int, ...], ...]:
    """Return, for each input tensor, its dimensions from the outermost in memory to the innermost.

    Raises:
        DeployError: elements of an input share memory, or have gaps between them.
    """
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    return tuple(
        _order(spec.arg.name, nodes[spec.arg.name].meta["val"])
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    )


def laid_out(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor, or a dense copy with its dimensions in this order."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)


def _order(name: str, value: torch.Tensor) -> tuple[int, ...]:
    order = tuple(sorted(range(value.dim()), key=lambda d: (-_number(value.stride(d)), d)))
    expected: Any = 1
    for dimension in reversed(order):
        if _number(value.shape[dimension]) != 1 and _number(value.stride(dimension)) != _number(expected):
            raise DeployError(
                f"the input `{name}` of the program is a view of a larger tensor, or was expanded, "
                "and compiled code would assume the example's memory layout: export with contiguous "
                "inputs"
            )
        expected = expected * value.shape[dimension]
    return order


def _number(size: Any) -> int:
    """Return the size in the example; only the order of sizes matters."""
    return int(hint_of(size) or 2) if isinstance(size, torch.SymInt) else int(size)

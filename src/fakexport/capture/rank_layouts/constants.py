"""Constants that the code computes from sizes of a rank, such as `torch.tensor(x.shape[-1])`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from fakexport.history import UnreplayableRead, bits, value_of
from fakexport.program import module_path, source_span

from .refusal import ShardingChangesResult


def check_constants(program: ExportedProgram, whole: ExportedProgram) -> None:
    """Refuse a program with another constant than the unsharded model has. Both have their values.

    Args:
        program: Of one rank; its inputs are those of the other program, in order.
        whole: The program of the unsharded model.
    Raises:
        ShardingChangesResult: A constant differs.
    """
    for (node, mine), (_, theirs) in zip(_constants(program), _constants(whole), strict=True):
        if not _is_same(_value(mine), _value(theirs)):
            user = next(iter(node.users), node)
            raise ShardingChangesResult(
                f"{module_path(user) or 'the model itself'} takes a constant tensor of another value "
                "than the unsharded model: a size of a rank is used as a number",
                source_span(user),
                is_number=True,
            )


def _constants(program: ExportedProgram) -> Iterator[tuple[Node, Any]]:
    nodes = program.graph.find_nodes(op="placeholder")
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        if spec.kind is InputKind.CONSTANT_TENSOR:
            yield node, program.constants[str(spec.target)]


def _value(constant: Any) -> torch.Tensor | None:
    try:
        return value_of(constant)
    except UnreplayableRead:
        return None


def _is_same(one: torch.Tensor | None, two: torch.Tensor | None) -> bool:
    """Return whether two values have the same bits; whoever binds constants without a value binds one."""
    if one is None or two is None:
        return one is two
    return (one.dtype, one.shape) == (two.dtype, two.shape) and torch.equal(bits(one), bits(two))

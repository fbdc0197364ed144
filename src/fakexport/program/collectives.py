"""Nodes that exchange a tensor with the other ranks of a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.functional_collectives import collective_of
from fakexport.program.node_names import star, star_common
from fakexport.program.tensor_spec import Spelling
from fakexport.program.transfers import example_size
from fakexport.program.walk import Visit, walk


@dataclass(frozen=True)
class Collective:
    """Equal exchanges of a tensor between the ranks, each time the program runs.

    Args:
        kind: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all` or `broadcast`.
        module_path: The module that exchanges it; `model.layers.*.mlp` stands for several.
        count: How many there are in one call of the program.
        dtype: Dtype of the tensor.
        shape: Shape of what one rank hands in, sizes as text: `("s77", "s12", "4096")`.
        bytes: Size of that for each exchange; where a size is symbolic, at the sizes of the example inputs.
            None where no example is known (unbacked sizes).
        bytes_expression: Bytes over the program's symbols, `8192*s12*s77`; None where all sizes are static.
    """

    kind: str
    module_path: str
    count: int
    dtype: str
    shape: tuple[str, ...]
    bytes: int | None
    bytes_expression: str | None


def least_received(kind: str, size: Any, ranks: int) -> Any:
    """Return the bytes that a rank receives in a collective at least, whatever the algorithm.

    A ring moves nearly twice as much for an `all_reduce`; a switch that adds up by itself moves no more.

    Args:
        kind: As in `Collective`.
        size: Bytes of what a rank hands in; a number or a `SymInt`.
        ranks: How many take part.

    Example:
        >>> [least_received(kind, 800, 8) for kind in ("all_reduce", "all_gather", "reduce_scatter")]
        [800, 5600, 700]
    """
    if kind == "all_gather":
        return size * (ranks - 1)
    return size if kind in ("all_reduce", "broadcast") else size // ranks * (ranks - 1)


def collectives(program: ExportedProgram) -> tuple[Collective, ...]:
    """Return the exchanges of one call of a program, equal ones of repeated modules together.

    Args:
        program: Not changed. The body of a loop counts once.
    Returns:
        In the order in which they are first executed; none for a program that runs alone.
    """
    groups: dict[Collective, list[str]] = {}
    spelling = Spelling()
    for found in _found(program, spelling):
        groups.setdefault(replace(found, module_path=star(found.module_path)), []).append(found.module_path)
    return tuple(
        replace(like, module_path=star_common(paths), count=len(paths)) for like, paths in groups.items()
    )


def _found(program: ExportedProgram, spelling: Spelling) -> Iterator[Collective]:
    for visit in walk(program):
        kind = collective_of(visit.node)
        given = _given(visit.node)
        if kind is not None and given is not None:
            yield _collective(kind, visit, given, spelling)


def _given(node: Node) -> torch.Tensor | None:
    source = node.args[0] if node.args else None
    value = source.meta.get("val") if isinstance(source, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _collective(kind: str, visit: Visit, given: torch.Tensor, spelling: Spelling) -> Collective:
    spec, size = spelling.tensor(given), given.numel() * given.itemsize
    text = None if isinstance(size, int) else spelling.size(size)
    return Collective(kind, visit.module_path, 1, spec.dtype, spec.shape, example_size(size), text)

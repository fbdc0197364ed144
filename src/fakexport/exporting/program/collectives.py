"""Find nodes that exchange a tensor with the other ranks of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.operators.functional_collectives import collective_of
from fakexport.exporting.program.node_names import star, star_common
from fakexport.exporting.program.tensor_spec import Spelling
from fakexport.exporting.program.transfers import example_size
from fakexport.exporting.program.walk import walk


@dataclass(frozen=True)
class Collective:
    """A group of identical collectives in one call of the program.

    Args:
        kind: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all` or `broadcast`.
        module_path: The module that calls the collective. `model.layers.*.mlp` stands for several modules.
        count: Number of collectives in the group.
        dtype: Dtype of the tensor.
        shape: Shape of the tensor that one rank passes, sizes as text: `("s77", "s12", "4096")`.
        bytes: Bytes of that tensor, with the sizes of the example inputs. None if a size is unbacked, because
            the example inputs do not determine it.
        bytes_expression: Bytes as an expression of the program's symbols, such as `8192*s12*s77`. None if all
            sizes are static.
    """

    kind: str
    module_path: str
    count: int
    dtype: str
    shape: tuple[str, ...]
    bytes: int | None
    bytes_expression: str | None


def least_received(kind: str, size: Any, ranks: int) -> Any:
    """Return the minimum number of bytes that a rank receives in a collective, for any algorithm.

    For an `all_reduce`, a rank receives nearly twice as many bytes with a ring algorithm, but not with a
    network switch that adds the tensors.

    Args:
        kind: As in `Collective`.
        size: Bytes of the tensor that a rank passes, as a number or a `SymInt`.
        ranks: Number of ranks.

    Example:
        >>> [least_received(kind, 800, 8) for kind in ("all_reduce", "all_gather", "reduce_scatter")]
        [800, 5600, 700]
    """
    if kind == "all_gather":
        return size * (ranks - 1)
    return size if kind in ("all_reduce", "broadcast") else size // ranks * (ranks - 1)


def collectives(program: ExportedProgram) -> tuple[Collective, ...]:
    """Return the collectives of one call of a program. Identical collectives of repeated modules are merged.

    Args:
        program: The program. It is not changed. The body of a loop is counted once.
    Returns:
        The collectives in the order of first execution. Empty if the program runs on a single rank.
    """
    groups: dict[Collective, list[str]] = {}
    spelling = Spelling()
    for visit in walk(program):
        kind, given = collective_of(visit.node), _given(visit.node)
        if kind is not None and given is not None:
            like = _collective(kind, star(visit.module_path), given, spelling)
            groups.setdefault(like, []).append(visit.module_path)
    return tuple(
        replace(like, module_path=star_common(paths), count=len(paths)) for like, paths in groups.items()
    )


def _given(node: Node) -> torch.Tensor | None:
    source = node.args[0] if node.args else None
    value = source.meta.get("val") if isinstance(source, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _collective(kind: str, module_path: str, given: torch.Tensor, spelling: Spelling) -> Collective:
    spec, size = spelling.tensor(given), given.numel() * given.itemsize
    text = None if isinstance(size, int) else spelling.size(size)
    return Collective(kind, module_path, 1, spec.dtype, spec.shape, example_size(size), text)

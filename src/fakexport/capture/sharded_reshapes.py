"""A reshape keeps parts of features apart: one that counts the heads of the whole model mixes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.functional_collectives import collective_of
from fakexport.diagnostics import Span
from fakexport.documents import ParallelRecord
from fakexport.error import FakexportError
from fakexport.program import module_path, operator_name, source_span

_RESHAPES = frozenset({"aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"})
_UNFLATTEN = "aten.unflatten.int"
_WAIT = "_c10d_functional.wait_tensor.default"


class ShardedReshape(FakexportError, ValueError):
    """A reshape by which a rank's part of the features means something else than all of them do in the model.

    Args:
        message: One line.
        span: The line of the model.
    """

    def __init__(self, message: str, span: Span | None) -> None:
        super().__init__(message)
        self.span = span


def check_sharded_reshapes(program: ExportedProgram, record: ParallelRecord) -> None:
    """Refuse a reshape of a rank's part that no shape shows to be wrong.

    `view(batch, tokens, 32, -1)` of half of the features has 32 heads of half the size, where the model has
    32 whole ones; `view(batch, -1, 32, 128)` has half as many tokens. What may vary with the part is the
    first of the dimensions into which the features are split, as in `view(batch, tokens, -1, 128)`.

    Args:
        program: Of one rank.
        record: What the rank has of each weight.
    Raises:
        ShardedReshape: There is one.
    """
    parts = {node for node, name in _parameters(program) if name in record.shards}
    for node in program.graph.nodes:
        if node.op != "call_function" or not any(source in parts for source in node.all_input_nodes):
            continue
        if collective_of(node) is not None or operator_name(node) == _WAIT:
            continue  # Every rank has the whole result.
        parts.add(node)
        if (fault := _fault(node)) is not None:
            where = module_path(node) or "the model itself"
            raise ShardedReshape(f"{where} reshapes sharded features to {fault}", source_span(node))


def _parameters(program: ExportedProgram) -> Iterator[tuple[Node, str]]:
    names = program.graph_signature.inputs_to_parameters
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name in names:
            yield node, names[node.name]


def _fault(node: Node) -> str | None:
    """Return the sizes of a reshape that mixes parts of features; None for another node."""
    source, result = node.args[0] if node.args else None, node.meta.get("val")
    before = source.meta.get("val") if isinstance(source, Node) else None
    if not isinstance(before, torch.Tensor) or not isinstance(result, torch.Tensor):
        return None
    inferred = _inferred(node, before)
    if inferred is None:
        return None
    old, new = _sizes(before), _sizes(result)
    for start, end, first, last in _groups(old, new):
        is_mixed = end - start > 1 and last - first > 1
        is_fixed = end == len(old) and end - start == 1 and first < inferred < last
        if is_mixed or is_fixed:
            sizes = ", ".join("-1" if index == inferred else str(size) for index, size in enumerate(new))
            return f"({sizes}): the number of heads has to be the size that is inferred"
    return None


def _inferred(node: Node, before: torch.Tensor) -> int | None:
    """Return the index of the size that a reshape infers; None where it infers none or is not a reshape."""
    name = operator_name(node)
    if name in _RESHAPES:
        asked, first = node.args[1], 0
    elif name == _UNFLATTEN:
        asked, first = node.args[2], int(str(node.args[1])) % before.ndim
    else:
        return None
    sizes: Sequence[Any] = asked if isinstance(asked, (list, tuple)) else ()
    return first + sizes.index(-1) if -1 in sizes else None


def _sizes(value: torch.Tensor) -> list[int]:
    """Return the sizes, symbolic ones at the example; 0 where no example is known."""
    return [
        size if isinstance(size, int) else size.node.hint if size.node.has_hint() else 0
        for size in value.shape
    ]


def _groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield which dimensions become which, the last ones first: the smallest groups with equal products."""
    end, last = len(old), len(new)
    while end > 0 and last > 0:
        start, first = end - 1, last - 1
        a, b = old[start], new[first]
        while a != b:
            if a < b and start > 0:
                start -= 1
                a *= old[start]
            elif b < a and first > 0:
                first -= 1
                b *= new[first]
            else:
                return
        yield start, end, first, last
        end, last = start, first

"""Nodes that move a tensor between devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.diagnostics import Span
from fakexport.program.node_names import is_factory, operator_name
from fakexport.program.tensor_spec import Spelling, tensors_in
from fakexport.program.walk import Visit, walk

# Which tensor input moves, where there are several.
_MOVED_INPUT = {"aten.copy_.default": 1, "aten.copy.default": 1, "aten.to.other": 0}


@dataclass(frozen=True)
class Transfer:
    """One tensor on its way from one device to another, each time the program runs.

    Args:
        node: Name of the graph node.
        operator: `aten.to.device`, or a custom operator's name.
        source: Device that the tensor comes from.
        target: Device that it goes to.
        dtype: Dtype of what arrives; torch converts before it sends.
        shape: Shape of what arrives, sizes as text: `("s77", "4096")`.
        bytes: Size of what arrives; where a size is symbolic, at the sizes of the example inputs. None
            where no example is known (unbacked sizes).
        bytes_expression: Bytes over the program's symbols, `16384*s77`; None where all sizes are static.
        span: The user's line, if the node has one.
        module_path: Path of the module that moves it.
        graph: Name of the subgraph that holds the node; "" is the main graph.
        index: Position of the node in the order of execution, from 0.
    """

    node: str
    operator: str
    source: str
    target: str
    dtype: str
    shape: tuple[str, ...]
    bytes: int | None
    bytes_expression: str | None
    span: Span | None
    module_path: str
    graph: str
    index: int


@one_at_a_time
def transfers(program: ExportedProgram) -> tuple[Transfer, ...]:
    """Return every explicit move of a tensor between devices, in the order of execution.

    Counts operators with exactly one tensor input and the output on another device (`aten.to`,
    `aten._to_copy`, `prims.device_put`, custom operators), and copies into a tensor on another device.
    Subgraphs of control flow are searched too. A kernel that reads a CPU scalar moves nothing here.

    Args:
        program: Not changed.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),), target="H100")
        >>> transfers(program)
        ()
    """
    spelling = Spelling()
    return tuple(_found(program, spelling))


def _found(program: ExportedProgram, spelling: Spelling) -> Iterator[Transfer]:
    for visit in walk(program):
        moved = moved_tensor(visit.node)
        if moved is not None:
            yield _transfer(visit, *moved, spelling)


def moved_tensor(node: Node) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the tensor before and after, if a node moves it from one device to another."""
    output = node.meta.get("val")
    if node.op != "call_function" or not isinstance(output, torch.Tensor):
        return None
    name = operator_name(node)
    if name.startswith(("higher_order.", "operator.")) or is_factory(name):
        return None

    inputs = [value for source in node.all_input_nodes for value in tensors_in(source.meta.get("val"))]
    position = _MOVED_INPUT.get(name, 0 if len(inputs) == 1 else len(inputs))
    if position < len(inputs) and inputs[position].device != output.device:
        return inputs[position], output
    return None


def _transfer(visit: Visit, before: torch.Tensor, after: torch.Tensor, spelling: Spelling) -> Transfer:
    arrived = spelling.tensor(after)
    size = after.numel() * after.itemsize
    return Transfer(
        node=visit.node.name,
        operator=operator_name(visit.node),
        source=str(before.device),
        target=arrived.device,
        dtype=arrived.dtype,
        shape=arrived.shape,
        bytes=example_size(size),
        bytes_expression=None if isinstance(size, int) else spelling.size(size),
        span=visit.span,
        module_path=visit.module_path,
        graph=visit.graph,
        index=visit.index,
    )


def example_size(size: int | torch.SymInt) -> int | None:
    """Return a size at the example inputs, or None where it is known only at run time."""
    if isinstance(size, int):
        return size
    return size.node.hint if size.node.has_hint() else None

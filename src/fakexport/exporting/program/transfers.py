"""Find nodes that move a tensor between devices."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.tracing.symbolic_numbers import hint_of
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.exporting.interface import Transfer
from fakexport.exporting.program.node_names import is_factory, operator_name
from fakexport.exporting.program.tensor_spec import Spelling, tensors_in
from fakexport.exporting.program.walk import Visit, walk

# The moved input of operators with several tensor inputs.
_MOVED_INPUT = {"aten.copy_.default": 1, "aten.copy.default": 1, "aten.to.other": 0}


@one_at_a_time
def transfers(program: ExportedProgram) -> tuple[Transfer, ...]:
    """Return every explicit move of a tensor between devices, in the order of execution.

    A move is an operator with exactly one tensor input and an output on another device (`aten.to`,
    `aten._to_copy`, `prims.device_put`, custom operators), or a copy into a tensor on another device.
    Subgraphs of control flow are included. A kernel that reads a CPU scalar is not a move.

    Args:
        program: The program. It is not changed.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),), target="H100")
        >>> transfers(program)
        ()
    """
    spelling = Spelling()
    moves = ((visit, moved_tensor(visit.node)) for visit in walk(program))
    return tuple(_transfer(visit, *moved, spelling) for visit, moved in moves if moved is not None)


def moved_tensor(node: Node) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the tensor before and after a node moves it between devices. None for other nodes."""
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
    """Return the value of a size for the example inputs, or None if it is known only at run time."""
    return size if isinstance(size, int) else hint_of(size)

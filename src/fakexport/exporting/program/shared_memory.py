"""Find inputs that a program modifies, and outputs that share memory with other tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.multiprocessing.reductions import StorageWeakRef

from fakexport._torch.operators.operator_effects import effects_of
from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.operators.operator_schema import argument_values
from fakexport._torch.tracing.vmap_steps import without_levels
from fakexport.exporting.program.output_names import output_names, user_inputs
from fakexport.exporting.program.walk import Visit, input_nodes


def written_inputs(program: ExportedProgram, visits: Iterable[Visit]) -> Iterator[tuple[str, Visit]]:
    """Yield the name of each user input that a node writes to, and the node. Buffers are not included.

    Args:
        program: The program as captured, because decompositions add writes of their own.
        visits: The nodes of the program, from `walk`.
    """
    owners = {_memory(node): node.name for _, node in user_inputs(program)}
    owners.pop(None, None)
    for visit in visits:
        node, operator = visit.node, visit.node.target
        writes = effects_of(operator).writes if isinstance(operator, OpOverload) else ()
        values = argument_values(operator, node.args, node.kwargs) if writes else {}
        for _, name in writes:
            written = values.get(name)
            if isinstance(written, Node) and (memory := _memory(written)) in owners:
                yield owners[memory], visit


def shared_outputs(program: ExportedProgram, written: Collection[str]) -> Iterator[tuple[str, str, Node]]:
    """Yield each output that is a weight, an earlier output or a modified input, or a view of one of these.

    Views of unmodified inputs are omitted, because a caller knows that these share memory.

    Args:
        program: The program before decompositions, because decompositions replace the fake tensors that show
            which outputs share memory.
        written: Names of the inputs that `written_inputs` yields.

    Yields:
        The path of the output (`logits`, `0`), the tensor that it shares memory with, and the output's node.
    """
    owners: dict[StorageWeakRef, str] = {}
    left_out: set[StorageWeakRef] = set()
    for spec, node in input_nodes(program):
        if (memory := _memory(node)) is None:
            continue
        is_input = spec.kind is InputKind.USER_INPUT
        if is_input and node.name not in written:
            left_out.add(memory)
        else:
            owners.setdefault(memory, f"`{node.name if is_input else spec.target}`")
    for name, output in zip(output_names(program), _user_outputs(program), strict=True):
        if not isinstance(output, Node) or (memory := _memory(output)) is None or memory in left_out:
            continue
        if memory in owners:
            yield name, owners[memory], output
        owners.setdefault(memory, f"the output `{name}`")


def _user_outputs(program: ExportedProgram) -> list[object]:
    (returned,) = program.graph.output_node().args
    assert isinstance(returned, (list, tuple))
    specs = program.graph_signature.output_specs
    return [value for value, spec in zip(returned, specs, strict=True) if spec.kind is OutputKind.USER_OUTPUT]


def _memory(node: Node) -> StorageWeakRef | None:
    """Return the identity of the storage of a node's tensor.

    Returns None for other values, and for tensors without strided memory.
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return StorageWeakRef(without_levels(value).untyped_storage())  # FlexAttention returns a `vmap` tensor.

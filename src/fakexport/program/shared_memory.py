"""Memory that a program shares with its caller: inputs that it changes, outputs that are views."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.multiprocessing.reductions import StorageWeakRef

from fakexport._torch.operator_effects import effects_of
from fakexport._torch.operator_registry import OpOverload
from fakexport._torch.operator_schema import argument_values
from fakexport._torch.vmap_steps import without_levels
from fakexport.diagnostics import Span
from fakexport.program.node_names import module_path, operator_name
from fakexport.program.output_names import output_names
from fakexport.program.source_span import source_span
from fakexport.program.walk import walk


@dataclass(frozen=True)
class WrittenInput:
    """A write into the memory of a user's input.

    Args:
        name: Name of the input's placeholder.
        node: Name of the graph node that writes.
        operator: `aten.add_.Tensor`.
        span: The user's line, if the node has one.
        module_path: Path of the module that writes.
    """

    name: str
    node: str
    operator: str
    span: Span | None
    module_path: str


@dataclass(frozen=True)
class SharedOutput:
    """An output in memory that is not its own.

    Args:
        name: Its place in what the program returns: `logits`, `0`.
        other: What it shares the memory with: a weight, an earlier output, an input; with its name.
        span: The user's line that made the output, if it is known.
        module_path: Path of the module that made it.
    """

    name: str
    other: str
    span: Span | None
    module_path: str


def written_inputs(program: ExportedProgram) -> tuple[WrittenInput, ...]:
    """Return the writes into inputs of the user, in the order of execution; those into buffers are left out.

    Args:
        program: As captured: before decompositions, which make writes into further outputs.
    """
    return tuple(_written(program))


def _written(program: ExportedProgram) -> Iterator[WrittenInput]:
    owners = {_memory(node): node.name for node, kind, _ in _inputs(program) if kind is InputKind.USER_INPUT}
    owners.pop(None, None)
    for visit in walk(program):
        node, operator = visit.node, visit.node.target
        writes = effects_of(operator).writes if isinstance(operator, OpOverload) else ()
        values = argument_values(operator, node.args, node.kwargs) if writes else {}
        for _, name in writes:
            written = values.get(name)
            if isinstance(written, Node) and (memory := _memory(written)) in owners:
                owner = owners[memory]
                yield WrittenInput(owner, node.name, operator_name(node), visit.span, visit.module_path)


def shared_outputs(program: ExportedProgram) -> tuple[SharedOutput, ...]:
    """Return the outputs that are weights, earlier outputs or inputs that are written, or views of them.

    A view of an input that no one writes into is left out: anyone who has both can tell.

    Args:
        program: As captured: before decompositions, after which nodes have other memory.
    """
    return tuple(_shared(program))


def _shared(program: ExportedProgram) -> Iterator[SharedOutput]:
    written = {write.name for write in written_inputs(program)}
    owners: dict[StorageWeakRef, str] = {}
    left_out: set[StorageWeakRef] = set()
    for node, kind, target in _inputs(program):
        if (memory := _memory(node)) is None:
            continue
        if kind is InputKind.USER_INPUT and node.name not in written:
            left_out.add(memory)
        else:
            owners.setdefault(memory, f"`{node.name if kind is InputKind.USER_INPUT else target}`")
    for name, output in zip(output_names(program), _user_outputs(program), strict=True):
        if not isinstance(output, Node) or (memory := _memory(output)) is None or memory in left_out:
            continue
        if memory in owners:
            yield SharedOutput(name, owners[memory], source_span(output), module_path(output))
        owners.setdefault(memory, f"the output `{name}`")


def _inputs(program: ExportedProgram) -> Iterator[tuple[Node, InputKind, str | None]]:
    placeholders = program.graph.find_nodes(op="placeholder")
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        yield node, spec.kind, spec.target


def _user_outputs(program: ExportedProgram) -> list[object]:
    (returned,) = program.graph.output_node().args
    assert isinstance(returned, (list, tuple))
    specs = program.graph_signature.output_specs
    return [value for value, spec in zip(returned, specs, strict=True) if spec.kind is OutputKind.USER_OUTPUT]


def _memory(node: Node) -> StorageWeakRef | None:
    """Return the memory behind a node's tensor.

    None for what is not a tensor, or one without plain memory.
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return StorageWeakRef(without_levels(value).untyped_storage())  # FlexAttention returns one of vmap.

"""Find values that cannot be split between stages, because one of them is written to in place.

Each stage may run in its own process, where a value that it receives is a copy. So a write is visible to
other stages only if the value is sent after the write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node

from fakexport._torch.emulation.fake_tensors import storage_identity
from fakexport._torch.operators.operator_effects import argument_at, effects_of
from fakexport._torch.operators.operator_registry import OpOverload
from fakexport.exporting.program import input_nodes, written_arguments

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclass(frozen=True)
class Conflict:
    """A write that another stage would miss: the node that writes, and the node that reads."""

    writer: Node
    reader: Node


class MemoryClasses:
    """The nodes of a program whose values may share memory with each other, and the writes to this memory."""

    def __init__(self, program: ExportedProgram) -> None:
        self._memory: dict[Node, frozenset[Node]] = {}
        self._members: dict[Node, list[Node]] = {}
        self._writers: dict[Node, list[Node]] = {}
        known: dict[GraphModule, set[Node]] = {}
        objects = {node for spec, node in input_nodes(program) if spec.kind is InputKind.CUSTOM_OBJ}
        self._owners = dict(_owners(program))
        for node in program.graph.nodes:
            self._memory[node] = self._of(node)
            for owner in self._memory[node]:
                self._members.setdefault(owner, []).append(node)
            written = [*written_arguments(node, program.graph_module, known)]
            # A method of a TorchBind object may change the object.
            written += [source for source in node.all_input_nodes if source in objects]
            for source in written:
                self._add_writer(source, node)
        for value, target in _mutations(program):
            self._add_writer(target, value)

    def is_written(self, node: Node) -> bool:
        """Return whether any node writes to memory that the node's value may use."""
        return any(owner in self._writers for owner in self._memory[node])

    def conflicts(self, stages: Mapping[Node, int], returned: frozenset[Node]) -> Iterator[Conflict]:
        """Yield the writes that are not visible to a reader in another stage.

        Args:
            stages: The stage of each node that computes.
            returned: The nodes whose values the program returns.
        """
        for owner, writers in self._writers.items():
            members = self._members.get(owner, [])
            readers = [(user, member) for member in members for user in member.users if user in stages]
            for writer in writers:
                wrote = stages.get(writer, 0)  # An input that replaces a weight is not computed.
                if owner.op == "placeholder":
                    # Each stage has its own copy of a weight and of an input. The first stage returns it.
                    yield from (Conflict(writer, user) for user, _ in readers if stages[user] != wrote)
                    kept = (m for m in members if m in returned and stages.get(m, 0) != wrote)
                    yield from (Conflict(writer, member) for member in kept)
                    continue
                yield from (Conflict(writer, m) for m in members if m in returned and stages[m] < wrote)
                received = {member for user, member in readers if stages[member] < wrote == stages[user]}
                for user, member in readers:
                    if stages[member] < wrote < stages[user] or (wrote == stages[user] and len(received) > 1):
                        yield Conflict(writer, user)

    def _add_writer(self, source: Node, writer: Node) -> None:
        for owner in self._memory[source]:
            self._writers.setdefault(owner, []).append(writer)

    def _of(self, node: Node) -> frozenset[Node]:
        """Return the nodes that created the memory that a node's value may use."""
        if node.op != "call_function":
            return frozenset({self._owners.get(node, node)} if node.op == "placeholder" else ())
        shared = list(node.all_input_nodes)
        if isinstance(node.target, OpOverload):
            effects = effects_of(node.target)
            places = [*effects.writes, *([effects.aliased] if effects.aliased else [])]
            found = [argument_at(place, node.args, node.kwargs) for place in places]
            shared = [value for value in found if isinstance(value, Node)]
            if len(shared) < len(found):  # An argument is a list of tensors.
                shared = list(node.all_input_nodes)
        return frozenset({node}).union(*(self._memory[source] for source in shared))


def _owners(program: ExportedProgram) -> Iterator[tuple[Node, Node]]:
    """Yield each weight and constant with the first one that has the same memory, such as a buffer's view."""
    first: dict[object, Node] = {}
    held = {**program.constants, **program.state_dict}
    for spec, node in input_nodes(program):
        tensor = held.get(spec.target or "")
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
            yield node, first.setdefault(storage_identity(tensor), node)


def _mutations(program: ExportedProgram) -> Iterator[tuple[Node, Node]]:
    """Yield the value and the placeholder of each output that replaces a weight or an input."""
    inputs = input_nodes(program)
    by_target = {spec.target: node for spec, node in inputs if spec.kind is not InputKind.USER_INPUT}
    by_name = {node.name: node for _, node in inputs}
    (returned,) = program.graph.output_node().args
    assert isinstance(returned, (list, tuple))
    for spec, value in zip(program.graph_signature.output_specs, returned, strict=True):
        if spec.kind in _MUTATIONS and isinstance(value, Node):
            is_input = spec.kind is OutputKind.USER_INPUT_MUTATION
            yield value, (by_name if is_input else by_target)[spec.target or ""]

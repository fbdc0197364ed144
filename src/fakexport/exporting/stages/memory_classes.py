"""Find values that cannot be split between stages, because of the memory that they share.

Each stage may run in its own process, where a value that it receives is a copy. So a write is visible to
other stages only if the value is sent after the write. A copy is also dense, unlike a slice or an expanded
tensor, so operators may return a view of it where they return a copy in the whole program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.fx.node import map_arg

from fakexport._torch.costs.operator_memory import is_composite
from fakexport._torch.emulation.fake_tensors import mode_of, storage_identity
from fakexport._torch.operators.operator_effects import argument_at, effects_of
from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.pytree import tree_leaves
from fakexport._torch.tracing.symbolic_numbers import without_new_guards
from fakexport.exporting.program import example_size, input_nodes, target_name, written_arguments

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)
_BY_POSITION = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_.default)
# Higher-order operators that torch does not allow to return their arguments, or views of them.
_NEW_MEMORY = frozenset(
    f"higher_order.{name}"
    for name in ("cond", "while_loop", "scan", "associative_scan", "map_impl", "flex_attention",
                 "auto_functionalized", "auto_functionalized_v2")
)  # fmt: skip


@dataclass(frozen=True)
class Conflict:
    """Two nodes that must be in one stage.

    Args:
        node: The node that writes in place, or reads memory by position.
        other: The node that uses the same memory in another stage.
        is_layout: Whether the reason is that a received value has another memory layout.
    """

    node: Node
    other: Node
    is_layout: bool = False


class MemoryClasses:
    """The nodes of a program whose values may share memory with each other, and the writes to this memory."""

    def __init__(self, program: ExportedProgram) -> None:
        self._memory: dict[Node, frozenset[Node]] = {}
        self._members: dict[Node, list[Node]] = {}
        self._writers: dict[Node, list[Node]] = {}
        written = list(_writes(program))
        self._by_position = [node for node in program.graph.nodes if node.target in _BY_POSITION]
        if not written and not self._by_position:
            return  # Nothing can conflict.
        self._owners = dict(_owners(program))
        for node in program.graph.nodes:
            self._memory[node] = self._of(node)
            for owner in self._memory[node]:
                self._members.setdefault(owner, []).append(node)
        for source, writer in written:
            for owner in self._memory[source]:
                self._writers.setdefault(owner, []).append(writer)

    def is_written(self, node: Node) -> bool:
        """Return whether any node writes to memory that the node's value may use."""
        return any(owner in self._writers for owner in self._memory.get(node, ()))

    def conflicts(self, stages: Mapping[Node, int], returned: frozenset[Node]) -> Iterator[Conflict]:
        """Yield the nodes that would compute something else in stages.

        Args:
            stages: The stage of each node that computes.
            returned: The nodes whose values the program returns.
        """
        for owner, members in self._members.items():
            # The first stage has the inputs of the program, and returns them.
            made = {member: stages.get(member, 0) for member in members}
            uses = [(user, member) for member in members for user in member.users if user in stages]
            for writer in self._writers.get(owner, ()):
                wrote = stages.get(writer, 0)
                if owner.op == "placeholder":
                    # Each stage has its own copy of a weight and of an input.
                    yield from (Conflict(writer, user) for user, _ in uses if stages[user] != wrote)
                    yield from (Conflict(writer, m) for m in made if m in returned and made[m] != wrote)
                    continue
                yield from (Conflict(writer, m) for m in made if m in returned and made[m] < wrote)
                received = {member for user, member in uses if made[member] < wrote == stages[user]}
                for user, member in uses:
                    is_late = made[member] < wrote < stages[user]
                    if is_late or (wrote == stages[user] and len(received) > 1):
                        yield Conflict(writer, user)
            for node in (*self._writers.get(owner, ()), *self._by_position):
                if node in made or owner in self._writers:
                    at = stages.get(node, 0)
                    sent = (m for user, m in uses if m in stages and made[m] < at == stages[user])
                    yield from (Conflict(node, m, is_layout=True) for m in sent if not _is_dense(m))

    def _of(self, node: Node) -> frozenset[Node]:
        """Return the nodes that created the memory that a node's value may use."""
        if node.op != "call_function":
            return frozenset({self._owners.get(node, node)} if node.op == "placeholder" else ())
        return frozenset({node}).union(*(self._memory[source] for source in _shared(node)))


def _shared(node: Node) -> list[Node]:
    """Return the arguments whose memory the result of a node may use."""
    if not isinstance(node.target, OpOverload):
        return [] if target_name(node.target) in _NEW_MEMORY else list(node.all_input_nodes)
    effects = effects_of(node.target)
    places = list(effects.writes) if effects.returns_written else []
    places += [effects.aliased] if effects.aliased else []
    if not places and is_composite(node.target):
        return _shared_in_a_run(node)
    found = [argument_at(place, node.args, node.kwargs) for place in places]
    nodes = [value for value in found if isinstance(value, Node)]
    # An argument may be a list of tensors.
    return nodes if len(nodes) == len(found) else list(node.all_input_nodes)


def _shared_in_a_run(node: Node) -> list[Node]:
    """Run an operator on fake tensors. Its schema does not declare all views: `dropout` may be one."""
    assert isinstance(node.target, OpOverload)
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
    mode = mode_of(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
    if mode is None:
        return list(node.all_input_nodes)
    environment = mode.shape_env
    with mode, torch.no_grad(), nullcontext() if environment is None else without_new_guards(environment):
        try:
            made = _memory_of(node.target(*args, **kwargs))
        except Exception:  # An operator that cannot run again may return anything.
            return list(node.all_input_nodes)
    return [source for source in node.all_input_nodes if made & _memory_of(source.meta.get("val"))]


def _memory_of(value: object) -> set[int]:
    tensors = (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
    return {storage_identity(tensor) for tensor in tensors if tensor.layout is torch.strided}


def _is_dense(node: Node) -> bool:
    """Return whether a copy of a node's tensor has the same memory layout, in the order of its strides."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return True
    dims = [(step, size) for size, step in zip(value.shape, value.stride(), strict=True) if size != 1]
    expected: int | torch.SymInt = 1
    for step, size in sorted(dims, key=lambda dim: example_size(dim[0]) or 0):
        if not guard_or_false(step == expected):
            return False
        expected = expected * size
    return bool(guard_or_false(value.storage_offset() == 0))


def _writes(program: ExportedProgram) -> Iterator[tuple[Node, Node]]:
    """Yield each node whose memory is written to, and the node that writes."""
    inputs = input_nodes(program)
    objects = {node for spec, node in inputs if spec.kind is InputKind.CUSTOM_OBJ}
    known: dict[GraphModule, set[Node]] = {}
    for node in program.graph.nodes:
        yield from ((source, node) for source in written_arguments(node, program.graph_module, known))
        # A method of a TorchBind object may change the object.
        yield from ((source, node) for source in node.all_input_nodes if source in objects)
    by_target = {spec.target: node for spec, node in inputs if spec.kind is not InputKind.USER_INPUT}
    by_name = {node.name: node for _, node in inputs}
    (returned,) = program.graph.output_node().args
    assert isinstance(returned, (list, tuple))
    for spec, value in zip(program.graph_signature.output_specs, returned, strict=True):
        if spec.kind in _MUTATIONS and isinstance(value, Node):
            is_input = spec.kind is OutputKind.USER_INPUT_MUTATION
            yield (by_name if is_input else by_target)[spec.target or ""], value


def _owners(program: ExportedProgram) -> Iterator[tuple[Node, Node]]:
    """Yield each weight and constant with the first one that has the same memory, such as a buffer's view."""
    first: dict[object, Node] = {}
    held = {**program.constants, **program.state_dict}
    for spec, node in input_nodes(program):
        tensor = held.get(spec.target or "")
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
            yield node, first.setdefault(storage_identity(tensor), node)

"""Find the weights and constants that a program modifies when it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node

from fakexport._torch.operators.operator_effects import effects_of
from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.operators.operator_schema import argument_values
from fakexport._torch.pytree import tree_leaves
from fakexport.exporting.program.program_copy import graph_modules
from fakexport.exporting.program.walk import subgraphs_of

_HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
# Operators that update the running statistics if this argument is true. Their schema does not show this.
_UPDATES_STATISTICS = {"aten::batch_norm": "training", "aten::instance_norm": "use_input_stats"}

# The placeholders whose memory a node's value may share.
_Roots = frozenset[Node]


def written_state(program: ExportedProgram) -> frozenset[str]:
    """Return the names of the weights and constants that a run modifies in place.

    Writes are found from operator schemas rather than from the memory of fake tensors, because views do not
    share memory in a loaded program. A tensor is included if it is unknown whether the program writes to it.

    Args:
        program: A captured, loaded or decomposed program.
    """
    held = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.kind in _HELD}
    written = _written_placeholders(program.graph_module, {}) if _has_writes(program) else set()
    names = {target for node in written if (target := held.get(node.name)) is not None}
    outputs = program.graph_signature.output_specs
    return frozenset({*names, *(spec.target for spec in outputs if spec.kind in _MUTATIONS and spec.target)})


def _has_writes(program: ExportedProgram) -> bool:
    """Return whether any operator of the program writes to any tensor in place."""
    graphs = [module.graph for module in graph_modules(program.graph_module)]
    called = {node.target for graph in graphs for node in graph.nodes if node.op == "call_function"}
    operators = [target for target in called if isinstance(target, OpOverload)]
    return any(effects_of(operator).writes or _statistics_flag(operator) for operator in operators)


def _statistics_flag(operator: OpOverload) -> str | None:
    return _UPDATES_STATISTICS.get(operator.name().partition(".")[0])


def _written_placeholders(owner: GraphModule, known: dict[GraphModule, set[Node]]) -> set[Node]:
    """Return the placeholders that a graph's nodes write to. The result is cached per graph."""
    if owner in known:
        return known[owner]
    written = known[owner] = set()
    roots: dict[Node, _Roots] = {}
    for node in owner.graph.nodes:
        roots[node] = _roots_of(node, roots)
        for source in written_arguments(node, owner, known):
            written |= roots[source]
    return written


def _roots_of(node: Node, roots: Mapping[Node, _Roots]) -> _Roots:
    if node.op == "placeholder":
        return frozenset({node})
    if node.op != "call_function" or not _has_tensors(node):
        return frozenset()
    if isinstance(node.target, OpOverload):
        effects = effects_of(node.target)
        if effects.aliased is None and not effects.writes:
            return frozenset()
    return frozenset().union(*(roots[source] for source in node.all_input_nodes))


def _has_tensors(node: Node) -> bool:
    value = node.meta.get("val")
    return value is None or any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value))


def written_arguments(node: Node, owner: GraphModule, known: dict[GraphModule, set[Node]]) -> Iterator[Node]:
    """Yield the arguments that a node writes to, itself or in a subgraph.

    Args:
        node: The node.
        owner: The graph module that contains it.
        known: The written placeholders of each subgraph seen so far. New entries are added.
    """
    if node.op != "call_function":
        return
    if isinstance(node.target, OpOverload):
        values = argument_values(node.target, node.args, node.kwargs)
        flag = _statistics_flag(node.target)
        names = [name for _, name in effects_of(node.target).writes]
        names += ["running_mean", "running_var"] if flag is not None and values[flag] else []
        for name in names:
            yield from (leaf for leaf in tree_leaves(values.get(name)) if isinstance(leaf, Node))
        return
    for _, subgraph in subgraphs_of(node, owner):
        yield from _written_operands(node, _written_placeholders(subgraph, known), subgraph)


def _written_operands(node: Node, written: set[Node], subgraph: GraphModule) -> Iterator[Node]:
    """Yield those inputs of a node that its subgraph writes to. `written` contains the written placeholders.

    If it is unknown which input corresponds to which placeholder, yield all inputs.
    """
    if not written:
        return
    leaves: list[Any] = tree_leaves((node.args, node.kwargs))
    last_graph = max(i for i, leaf in enumerate(leaves) if isinstance(leaf, Node) and leaf.op == "get_attr")
    placeholders = subgraph.graph.find_nodes(op="placeholder")
    operands = leaves[last_graph + 1 :]
    if len(operands) == len(placeholders):
        pairs = zip(operands, placeholders, strict=True)
        operands = [operand for operand, placeholder in pairs if placeholder in written]
    else:
        operands = leaves
    yield from (operand for operand in operands if isinstance(operand, Node))

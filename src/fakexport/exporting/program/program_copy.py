"""Copy the graph of a program, optionally with its indexing calls replaced by `aten.index.Tensor`."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fakexport._torch.speed.lazy_graph_module import lazy_graph_modules

from .node_names import operator_name


def graph_modules(root: GraphModule) -> Iterator[GraphModule]:
    """Return the graph module and the modules of its subgraphs, each once."""
    return (module for module in root.modules() if isinstance(module, GraphModule))


def copied_graph(program: ExportedProgram) -> GraphModule:
    """Return a copy of the graph and its subgraphs. The values in node metadata are shared."""
    with lazy_graph_modules():
        copied = copy.deepcopy(program.graph_module)
    assert isinstance(copied, GraphModule)
    for old, new in zip(graph_modules(program.graph_module), graph_modules(copied), strict=True):
        # Copying renames nodes that have the name of a Python builtin, such as `input`, which is the name of
        # the argument of torch.nn.Linear.
        for node, twin in zip(old.graph.nodes, new.graph.nodes, strict=True):
            twin.name = node.name
    return copied


_INDEX = "torch._dynamo._trace_wrapped_higher_order_op.ModIndex"


def with_plain_indexing(program: ExportedProgram) -> GraphModule:
    """Return a copy of the graph with indexing calls replaced by `aten.index.Tensor`.

    If there are no indexing calls, return the program's own graph.
    """
    graph_module: GraphModule = program.graph_module
    if not any(map(_is_index_call, _nodes(graph_module))):
        return graph_module
    copied = copied_graph(program)
    for node in filter(_is_index_call, _nodes(copied)):
        described = node.args[:2]
        node.target = torch.ops.aten.index.Tensor
        node.args = (node.args[3], list(node.args[4:]))
        for spec in described:
            if isinstance(spec, Node) and not spec.users:
                node.graph.erase_node(spec)
    return copied


def _nodes(root: GraphModule) -> list[Node]:
    return [node for module in graph_modules(root) for node in module.graph.nodes]


def _is_index_call(node: Node) -> bool:
    is_call = node.op == "call_function" and operator_name(node).endswith("flat_apply")
    return is_call and len(node.args) > 4 and node.args[2] == _INDEX

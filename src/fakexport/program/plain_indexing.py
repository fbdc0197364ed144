"""Indexing by tensors under `torch.vmap`, as masks of transformers do: a function in a graph."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from .operator_name import operator_name
from .program_copy import copied_graph, graph_modules

_INDEX = "torch._dynamo._trace_wrapped_higher_order_op.ModIndex"


def with_plain_indexing(program: ExportedProgram) -> GraphModule:
    """Return a graph with `aten.index.Tensor` for each such call; the program's own without any."""
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

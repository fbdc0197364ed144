"""Inline autocast and `no_grad` regions, and record in each node's metadata which modes apply to it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from .node_names import target_name
from .walk import attribute

# For each operator: the function of torch, and the number of arguments before the subgraph.
_OPERATORS = {
    "higher_order.wrap_with_set_grad_enabled": ("set_grad_enabled", 1),
    "higher_order.wrap_with_autocast": ("autocast", 4),
}
_KEYWORDS = ("dtype", "enabled", "cache_enabled")


@dataclass(frozen=True)
class Mode:
    """A torch context manager that is active for a node: `torch.autocast("cpu", enabled=False)`."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def manager(self) -> Any:
        """Return the context manager."""
        return getattr(torch, self.name)(*self.args, **self.kwargs)


def with_open_modes(owner: GraphModule) -> Graph:
    """Return a copy of a graph with its autocast and `no_grad` regions inlined.

    `meta["modes"]` of each node is a tuple of `Mode`, outermost first. Nodes keep their names, and `get_attr`
    nodes refer to attributes of `owner`. Subgraphs of other operators are not changed.
    """
    graph = Graph()
    graph.output(_copied(owner, graph, {}, "", ()))
    for node in graph.find_nodes(op="get_attr"):
        if not node.users:
            graph.erase_node(node)
    return graph


def _copied(
    owner: GraphModule, graph: Graph, values: dict[Node, Any], prefix: str, modes: tuple[Mode, ...]
) -> Any:
    """Copy the nodes that are not yet in `values`, and return the results of the graph."""
    *nodes, output = owner.graph.nodes
    for node in nodes:
        found = _OPERATORS.get(target_name(node.target)) if node.op == "call_function" else None
        if found is not None:
            name, count = found
            settings, region = node.args[:count], node.args[count]
            held = attribute(owner, region.target)
            assert isinstance(held, GraphModule)
            operands = map_arg(node.args[count + 1 :], values.__getitem__)
            given = dict(zip(held.graph.find_nodes(op="placeholder"), operands, strict=True))
            keywords = dict(zip(_KEYWORDS, settings[1:], strict=False))
            mode = Mode(name, settings[:1], keywords)
            values[node] = _copied(held, graph, given, f"{prefix}{region.target}.", (*modes, mode))
        elif node.target is operator.getitem and isinstance(values.get(node.args[0]), (tuple, list)):
            values[node] = values[node.args[0]][node.args[1]]
        elif node not in values:
            copied = values[node] = graph.node_copy(node, values.__getitem__)
            copied.name, copied.meta["modes"] = node.name, modes
            copied.target = f"{prefix}{node.target}" if node.op == "get_attr" else node.target
    return map_arg(output.args[0], values.__getitem__)

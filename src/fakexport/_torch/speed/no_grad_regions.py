"""Move regions of a different gradient mode into higher-order operators without rebuilding the whole graph.

Stock torch splits the whole graph at each change of the gradient mode, creates a module for every part,
and inlines the parts that need no operator, node by node. This pass moves only the regions that become an
operator. The program is identical to stock torch's, because the pass requests the same node names in the same
order. Graphs with control flow or autocast use the stock pass. It saves 11 percent of a trace with one such
region, and can be removed when torch splits only around regions. Seen on torch 2.13.

Source: `torch/_export/passes/replace_set_grad_with_hop_pass.py`, `torch/fx/passes/split_module.py`.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._export.passes import replace_set_grad_with_hop_pass as stock
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _make_graph_module
from torch.fx.graph import _illegal_names, _Namespace
from torch.fx.node import map_arg

from fakexport._torch.patching import in_force

Split = Callable[[GraphModule, Any], tuple[GraphModule, Any]]

_AUTOCAST = (torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast)


class _Part:
    """The nodes from one change of the gradient mode to the next."""

    def __init__(self, number: int) -> None:
        self.name = f"submod_{number}"
        self.nodes: list[Node] = []
        self.inputs: dict[Node, None] = {}
        self.outputs: dict[Node, None] = {}
        self.graph: Graph | None = None  # set if the region becomes an operator

    @property
    def is_replaced(self) -> bool:
        """Whether the gradient mode differs from the one around the export."""
        first = self.nodes[0]
        return _sets_grad(first) and first.args[0] is not torch.is_grad_enabled()


def replacements() -> dict[tuple[Any, str], Any]:
    """Return the argument for `Patches` that replaces stock torch's split; empty before torch 2.13."""
    if torch.__version__ < "2.13":  # The names that a graph reserves differ.
        return {}
    stock_split: Split = in_force(stock, "_sequential_split_and_maybe_inline_subgraphs")

    def split(module: GraphModule, signature: Any) -> tuple[GraphModule, Any]:
        nodes = list(module.graph.nodes)
        if not any(_sets_grad(node) for node in nodes):
            return module, signature
        if not _is_plain(module.graph, nodes):
            return stock_split(module, signature)
        return _split(module, nodes, signature)

    return {(stock, "_sequential_split_and_maybe_inline_subgraphs"): split}


def _sets_grad(node: Node) -> bool:
    return node.target is torch._C._set_grad_enabled


def _is_plain(graph: Graph, nodes: list[Node]) -> bool:
    """Return whether this pass splits the graph exactly as stock torch would."""
    inputs = [node for node in nodes if node.op == "placeholder"]
    names = {node.name for node in nodes}
    return (
        nodes[: len(inputs)] == inputs
        and nodes[-1].op == "output"
        and all(node.op == "call_function" for node in nodes[len(inputs) : -1])
        and len(names) == len(nodes)
        and not any("example_value" in node.meta or node.target in _AUTOCAST for node in nodes)
        and all(name.isidentifier() and name.isascii() for name in names)
        and _illegal_names.keys().isdisjoint(names)
        and isinstance(nodes[-1].args[0], (tuple, list))
        and graph.owning_module is not None
        and not getattr(graph.owning_module, "_replace_hooks", None)
    )


def _split(module: GraphModule, nodes: list[Node], signature: Any) -> tuple[GraphModule, Any]:
    graph, output = module.graph, nodes[-1]
    placeholders = [node for node in nodes if node.op == "placeholder"]
    parts = _parts(nodes[len(placeholders) : -1], output)
    for part in parts:
        if part.is_replaced:
            part.graph = _graph_of(part)
    graph._graph_namespace = _Namespace()
    graph._tracer_cls = graph._tracer_extras = None
    graph._co_fields = {}
    for node in placeholders:
        _name(node)
        node.target = node.name
    calls = _calls(graph, parts)
    _name(output, "output")
    output.meta, output.type = {}, None
    made = _make_graph_module(
        {part.name: _make_graph_module({}, part.graph) for part in parts if part.graph is not None}, graph
    )
    made.meta["partition_names"] = {part.name for part in parts}
    for part in parts:
        if part.graph is None:
            _inline(part)
        else:
            stock._replace_with_hop(calls[part.name])
    return made, _named_outputs(signature, output)


def _parts(nodes: list[Node], output: Node) -> list[_Part]:
    """Return the parts in order, each with its inputs and outputs in stock torch's order."""
    parts: list[_Part] = []
    number = 0
    part_of: dict[Node, _Part] = {}
    for node in nodes:
        number += _sets_grad(node)
        if not parts or _sets_grad(node):
            parts.append(_Part(number))
        part = part_of[node] = parts[-1]
        part.nodes.append(node)
        for used in node.all_input_nodes:
            source = part_of.get(used)
            if source is not part:
                part.inputs.setdefault(used)
                if source is not None:
                    source.outputs.setdefault(used)
    for used in output.all_input_nodes:
        if used in part_of:
            part_of[used].outputs.setdefault(used)
    return parts


def _graph_of(part: _Part) -> Graph:
    """Return a region's nodes as a separate graph, which starts with the change of the gradient mode."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in part.inputs:
        copies[node] = graph.placeholder(node.name, type_expr=node.type)
        copies[node].meta = node.meta.copy()
    for node in part.nodes:
        args: Any = map_arg(node.args, lambda used: copies[used])
        kwargs: Any = map_arg(node.kwargs, lambda used: copies[used])
        copies[node] = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        copies[node].meta = node.meta.copy()
    outputs = tuple(copies[node] for node in part.outputs)
    graph.output(outputs[0] if len(outputs) == 1 else outputs)
    return graph


def _calls(graph: Graph, parts: list[_Part]) -> dict[str, Node]:
    """Replace each region with a call; for the other parts, only reserve the names of their calls."""
    calls: dict[str, Node] = {}
    made: dict[Node, Node] = {}
    for part in parts:
        count = len(part.outputs) if len(part.outputs) > 1 else 0
        if part.graph is None:
            for name in (part.name, *("getitem" for _ in range(count))):
                graph._graph_namespace.create_name(name, None)
            continue
        with graph.inserting_before(part.nodes[0]):
            args = tuple(made.get(node, node) for node in part.inputs)
            call = calls[part.name] = graph.create_node("call_module", part.name, args)
            items = [graph.call_function(operator.getitem, (call, index)) for index in range(count)]
        made.update(zip(part.outputs, items or [call], strict=False))
    for old, new in made.items():
        old.replace_all_uses_with(new)
    for part in parts:
        if part.graph is not None:
            for node in reversed(part.nodes):
                graph.erase_node(node)
    return calls


def _inline(part: _Part) -> None:
    """Keep the nodes of a part, but give them the names that stock torch gives to its copies."""
    for node in part.nodes:
        if _sets_grad(node):
            node.graph.erase_node(node)
        else:
            _name(node)


def _name(node: Node, candidate: str | None = None) -> None:
    names = node.graph._graph_namespace
    name = names.create_name(candidate or node.name, None)
    if name != node.name:  # Setting an attribute of a node is slow.
        node.name = name
    names.associate_name_with_obj(name, node)


def _named_outputs(signature: Any, output: Node) -> Any:
    """Return a copy of the signature with the outputs' new names. Copy and original share their specs."""
    if signature is None:
        return None
    values: Any = output.args[0]
    assert len(values) == len(signature.output_specs)
    for value, spec in zip(values, signature.output_specs, strict=True):
        if isinstance(value, Node):
            spec.arg.name = value.name
    return copy.copy(signature)

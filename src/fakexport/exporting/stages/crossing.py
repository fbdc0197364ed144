"""Choose which values a stage receives from earlier stages, and which it computes again.

A stage can compute a value again if the value depends only on inputs of the program, on buffers and
constants, on parameters that the stage uses anyway, and on values that it receives. The choice is a minimum
cut: receiving a value, an input or a buffer costs its bytes, and computing a value again costs an eighth of
its bytes, because the memory of a GPU is about eight times as fast as its links (H100: 3.35 TB/s and 450
GB/s). A message costs 1 MiB in addition, which such a link carries in 2 us. Bytes are those of the example
inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import prod
from operator import getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fakexport._torch.operators.operator_effects import effects_of
from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.pytree import tree_leaves
from fakexport._torch.tracing.symbolic_numbers import expression_of
from fakexport.exporting.program import example_size, graph_modules, subgraphs_of, written_arguments

from .errors import InseparableStages
from .memory_classes import MemoryClasses

_LINK_PER_MEMORY = 8
_MESSAGE_BYTES = 1 << 20
_UNKNOWN_BYTES = 1 << 40
# Not `_c10d_functional`: all ranks would have to run a collective again.
_NAMESPACES = ("aten", "prim", "prims")
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class Needs:
    """What a stage needs besides its own nodes.

    Args:
        received: Tensors that earlier stages compute.
        again: Nodes of earlier stages that this stage runs again.
        sizes: Sizes that this stage reads from a tensor that it has: the node that computes the size in the
            program, the tensor, and the dimension.
    """

    received: frozenset[Node]
    again: frozenset[Node]
    sizes: Mapping[Node, tuple[Node, int]] = field(default_factory=dict)


def needs_of(
    stage: int, stages: Mapping[Node, int], again: Repeatable, parameters: Collection[Node]
) -> Needs:
    """Return what a stage needs besides its own nodes.

    Args:
        stage: The number of the stage.
        stages: The stage of each node.
        again: Which nodes can run again.
        parameters: The parameters of the program. A stage has only those that its own nodes use.
    Raises:
        InseparableStages: the stage needs a number that it can neither receive nor compute.
    """
    own = [node for node, at in stages.items() if at == stage]
    sources = dict.fromkeys(source for node in own for source in node.all_input_nodes)
    wanted = [source for source in sources if stages.get(source, stage) < stage]
    if not wanted:
        return Needs(frozenset(), frozenset())
    held = [source for source in sources if source.op == "placeholder"]
    elsewhere = frozenset(parameters).difference(held)
    first = _Flow(again, held, elsewhere, received=[]).cut(wanted)
    # The stage receives these in any case, so it can read sizes from them.
    received = [node for node in wanted if node in first.received]
    return _Flow(again, held, elsewhere, received).cut(wanted)


def _by_size(tensors: list[Node]) -> dict[Any, tuple[Node, int]]:
    found: dict[Any, tuple[Node, int]] = {}
    for node in tensors:
        if _is_tensor(node):
            for dim, size in enumerate(node.meta["val"].shape):
                if isinstance(size, torch.SymInt):
                    found.setdefault(expression_of(size), (node, dim))
    return found


class Repeatable:
    """Whether nodes can run again, later and in another process, with the same result and no other effect."""

    def __init__(self, memory: MemoryClasses, root: GraphModule) -> None:
        self._memory, self._root = memory, root
        self._known: dict[Node, bool] = {}
        self._written: dict[GraphModule, set[Node]] = {}

    def can_run(self, node: Node) -> bool:
        if node not in self._known:
            # What a node reads may have changed when it runs again.
            used = (node, *node.all_input_nodes)
            self._known[node] = (
                self._is_pure(node, self._root)
                and not any(map(self._memory.is_written, used))
                and not any(written_arguments(node, self._root, self._written))
            )
        return self._known[node]

    def _is_pure(self, node: Node, owner: GraphModule) -> bool:
        target = node.target
        if isinstance(target, OpOverload):
            effects = effects_of(target)
            is_plain = not effects.writes and not effects.is_random and not effects.reads_values
            return is_plain and not effects.leaves_uninitialised and target.namespace in _NAMESPACES
        subgraphs = [graph for _, graph in subgraphs_of(node, owner)]
        if not subgraphs:
            return target is getitem or isinstance(node.meta.get("val"), _SYMBOLIC)
        return all(
            self._is_pure(inner, module)
            for graph in subgraphs
            for module in graph_modules(graph)
            for inner in module.graph.nodes
            if inner.op == "call_function"
        )


class _Flow:
    """The flow graph of the minimum cut.

    The sink side contains what the stage has. A value on the sink side was received if its inputs are on the
    source side, and is computed again otherwise.
    """

    def __init__(
        self, again: Repeatable, held: list[Node], elsewhere: frozenset[Node], received: list[Node]
    ) -> None:
        from networkx import DiGraph

        self._again, self._elsewhere = again, elsewhere
        self._held, self._received = frozenset(held), frozenset(received)
        self._by_size = _by_size([*received, *held])
        self._sizes: dict[Node, tuple[Node, int]] = {}
        self._graph = DiGraph()
        self._seen: dict[Node, None] = {}

    def cut(self, wanted: list[Node]) -> Needs:
        from networkx import NetworkXUnbounded, minimum_cut

        for node in wanted:
            self._graph.add_edge((node, "out"), "sink")
            self._visit(node)
        try:
            _, (_, sink) = minimum_cut(self._graph, "source", "sink")
        except NetworkXUnbounded:
            raise InseparableStages(
                "a stage needs a number of an earlier stage, but stages receive only tensors",
                (self._stuck(wanted), "reads the number from the data of a tensor"),
            ) from None
        again = {node for node in self._seen if (node, "in") in sink and node not in self._sizes}
        received = {
            node
            for node in self._seen
            if (node, "out") in sink and (node, "in") not in sink and node.op == "call_function"
        }
        sizes = {node: place for node, place in self._sizes.items() if (node, "out") in sink}
        return Needs(frozenset(received), frozenset(again), sizes)

    def _visit(self, first: Node) -> None:
        """Add a node and the nodes that it can be computed from."""
        pending = [first]
        while pending:
            node = pending.pop()
            if node in self._seen or node.op == "get_attr":
                continue
            self._seen[node] = None
            cost = None if node in self._elsewhere else _bytes(node)
            self._edge((node, "in"), (node, "out"), 0 if node in self._held else cost)
            size = node.meta.get("val")
            if isinstance(size, torch.SymInt) and (place := self._by_size.get(expression_of(size))):
                self._sizes[node] = place
                self._edge("source", (node, "in"), 0)
            elif self._can_run(node):
                self._edge("source", (node, "in"), _written_bytes(node) // _LINK_PER_MEMORY)
                for source in node.all_input_nodes:
                    if source.op != "get_attr":
                        self._edge((source, "out"), (node, "in"), None)
                        pending.append(source)
            else:
                self._edge("source", (node, "in"), None)

    def _can_run(self, node: Node) -> bool:
        if node.op != "call_function" or node in self._received:
            return False
        return self._elsewhere.isdisjoint(node.all_input_nodes) and self._again.can_run(node)

    def _edge(self, start: Any, end: Any, capacity: int | None) -> None:
        self._graph.add_edge(start, end, **({} if capacity is None else {"capacity": capacity}))

    def _stuck(self, wanted: list[Node]) -> Node:
        """Return the first node that cannot be received and cannot be computed again."""
        for node in self._seen:
            if _bytes(node) is None and node not in self._sizes and not self._can_run(node):
                return node
        return wanted[0]


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _bytes(node: Node) -> int | None:
    """Return the bytes of a node's tensors at the example inputs; None for a value that cannot be sent."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return _tensor_bytes(value) + (_MESSAGE_BYTES if node.op == "call_function" else 0)
    return None if node.op == "call_function" or not isinstance(value, _SYMBOLIC) else 8


def _written_bytes(node: Node) -> int:
    tensors = [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
    return sum(map(_tensor_bytes, tensors))


def _tensor_bytes(tensor: torch.Tensor) -> int:
    sizes = [size for each in tensor.shape if (size := example_size(each)) is not None]
    return prod(sizes) * tensor.itemsize if len(sizes) == tensor.dim() else _UNKNOWN_BYTES

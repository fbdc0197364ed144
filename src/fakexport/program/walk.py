"""All nodes of a program in the order of execution, those of control-flow subgraphs included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fakexport.diagnostics import Span
from fakexport.program.node_names import module_path, operator_name
from fakexport.program.source_span import source_span


@dataclass(frozen=True, slots=True)
class Visit:
    """One node on the way through a program.

    Args:
        node: The node; shared with the program.
        owner: The graph module that holds it.
        index: Its position in the walk, from 0.
        graph: Dotted name of the subgraph that holds it (`true_graph_0`); "" is the main graph.
        caller: The node that runs the subgraph (`cond`, an autocast region); None in the main graph.
    """

    node: Node
    owner: GraphModule
    index: int
    graph: str = ""
    caller: Visit | None = None

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.node.name

    @property
    def operator(self) -> str:
        """Name of the node's operator."""
        return operator_name(self.node)

    @property
    def module_path(self) -> str:
        """Path of the innermost module; a node without one takes that of its caller."""
        return module_path(self.node) or (self.caller.module_path if self.caller else "")

    @property
    def span(self) -> Span | None:
        """The user's line; a node without one takes that of its caller."""
        return source_span(self.node) or (self.caller.span if self.caller else None)


def walk(program: ExportedProgram) -> Iterator[Visit]:
    """Yield every node once: a node that runs subgraphs comes first, then the nodes of its subgraphs.

    A subgraph that several nodes run is entered at the first of them only, so the number of visits does
    not grow with the number of calls.
    """
    yield from _Walk().through(program.graph_module, graph="", caller=None)


def attribute(owner: object, target: str) -> object | None:
    """Return what a `get_attr` node with this target gets, or None if the owner has no such attribute."""
    for part in target.split("."):
        owner = getattr(owner, part, None)
    return owner


class _Walk:
    def __init__(self) -> None:
        self._next_index = 0
        self._entered: set[GraphModule] = set()

    def through(self, owner: GraphModule, graph: str, caller: Visit | None) -> Iterator[Visit]:
        for node in owner.graph.nodes:
            visit = Visit(node, owner, self._next_index, graph, caller)
            self._next_index += 1
            yield visit
            for name, subgraph in _subgraphs(visit):
                if subgraph not in self._entered:
                    self._entered.add(subgraph)
                    yield from self.through(subgraph, f"{graph}.{name}".lstrip("."), visit)


def _subgraphs(visit: Visit) -> Iterator[tuple[str, GraphModule]]:
    """Yield name and module of each subgraph among the node's arguments, in their order."""
    if visit.node.op != "call_function":
        return
    for source in visit.node.all_input_nodes:
        if source.op == "get_attr":
            held = attribute(visit.owner, str(source.target))
            if isinstance(held, GraphModule):
                yield str(source.target), held

"""Visit all nodes of a program in the order of execution, including control-flow subgraphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch.export import ExportedProgram
from torch.export.graph_signature import InputSpec
from torch.fx import Graph, GraphModule, Node

from fakexport.exporting.program.node_names import module_path, operator_name
from fakexport.exporting.program.source_span import source_span
from fakexport.rules.diagnostics import Span


@dataclass(frozen=True, slots=True)
class Visit:
    """A node with its position in a program.

    Args:
        node: The node itself, as in the program.
        owner: The graph module that contains it.
        index: Position of the node in the walk, starting at 0.
        graph: Dotted name of the node's subgraph, such as `true_graph_0`, or "" for the main graph.
        caller: The node that runs the subgraph (`cond`, an autocast region). None in the main graph.
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
        """Path of the innermost module. For a node without a path, this is the path of its caller."""
        return module_path(self.node) or (self.caller.module_path if self.caller else "")

    @property
    def span(self) -> Span | None:
        """The user's line. For a node without a line, this is the line of its caller."""
        return source_span(self.node) or (self.caller.span if self.caller else None)


def walk(program: ExportedProgram) -> Iterator[Visit]:
    """Yield every node once. A node that runs subgraphs is followed by the nodes of its subgraphs.

    If several nodes run the same subgraph, the subgraph's nodes follow only the first of them.
    """
    yield from _Walk().through(program.graph_module, graph="", caller=None)


def attribute(owner: object, target: str) -> object | None:
    """Return the value of a `get_attr` node with this target, or None if the owner has no such attribute."""
    for part in target.split("."):
        owner = getattr(owner, part, None)
    return owner


def subgraphs_of(node: Node, owner: GraphModule) -> Iterator[tuple[Node, GraphModule]]:
    """Yield each subgraph that a node runs, with the `get_attr` node that refers to it, in order."""
    for source in node.all_input_nodes if node.op == "call_function" else ():
        held = attribute(owner, str(source.target)) if source.op == "get_attr" else None
        if isinstance(held, GraphModule):
            yield source, held


def input_nodes(program: ExportedProgram, graph: Graph | None = None) -> list[tuple[InputSpec, Node]]:
    """Return the spec and the placeholder of each input of a program, in the order of its signature.

    Args:
        program: The program.
        graph: A copy of the program's graph. Default: the program's own graph.
    """
    nodes = {node.name: node for node in (graph or program.graph).find_nodes(op="placeholder")}
    return [(spec, nodes[spec.arg.name]) for spec in program.graph_signature.input_specs]


class _Walk:
    def __init__(self) -> None:
        self._next_index = 0
        self._entered: set[GraphModule] = set()

    def through(self, owner: GraphModule, graph: str, caller: Visit | None) -> Iterator[Visit]:
        for node in owner.graph.nodes:
            visit = Visit(node, owner, self._next_index, graph, caller)
            self._next_index += 1
            yield visit
            for source, subgraph in subgraphs_of(node, owner):
                if subgraph not in self._entered:
                    self._entered.add(subgraph)
                    yield from self.through(subgraph, f"{graph}.{source.target}".lstrip("."), visit)

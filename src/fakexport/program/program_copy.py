"""A second graph of a program."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from torch.export import ExportedProgram
from torch.fx import GraphModule

from fakexport._torch.lazy_graph_module import lazy_graph_modules


def graph_modules(root: GraphModule) -> Iterator[GraphModule]:
    """Return the graph and its subgraphs, each once."""
    return (module for module in root.modules() if isinstance(module, GraphModule))


def copied_graph(program: ExportedProgram) -> GraphModule:
    """Return a copy of the graph and of its subgraphs; the values noted at its nodes are shared."""
    with lazy_graph_modules():
        copied = copy.deepcopy(program.graph_module)
    assert isinstance(copied, GraphModule)
    for old, new in zip(graph_modules(program.graph_module), graph_modules(copied), strict=True):
        # A copy renames what has the name of a Python builtin: `input`, as torch.nn.Linear calls its input.
        for node, twin in zip(old.graph.nodes, new.graph.nodes, strict=True):
            twin.name = node.name
    return copied

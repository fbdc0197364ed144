"""Operators that raised while a model was traced, in code that caught the error."""

from __future__ import annotations

from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.operator_registry import OpOverload
from fakexport._torch.operator_schema import returns_tensor
from fakexport.program import graph_modules


def drop_refused_nodes(program: ExportedProgram) -> None:
    """Remove the operators that raised.

    torch writes a node before it runs the operator, and leaves it there. The program would raise in each call
    where the model goes on.
    """
    for module in graph_modules(program.graph_module):
        refused = [node for node in module.graph.nodes if _has_raised(node)]
        for node in reversed(refused):
            module.graph.erase_node(node)
        if refused:
            module.recompile()


def _has_raised(node: Node) -> bool:
    """Return whether an operator that returns tensors has returned nothing."""
    is_used = bool(node.users) or node.meta.get("val") is not None
    return not is_used and isinstance(node.target, OpOverload) and returns_tensor(node.target)

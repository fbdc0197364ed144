"""What Inductor is given: the graph of a program and arguments in its structure."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import GraphModule

from fakexport._torch.pytree import tree_unflatten


def graph_of(program: ExportedProgram) -> GraphModule:
    """Return the graph of a program with its weights and constants, which keep their names."""
    graph = program.module(check_guards=False)
    assert isinstance(graph, GraphModule)
    for name, held in program.constants.items():
        # Inductor gives a plain attribute another name; a buffer keeps its own.
        if (
            isinstance(held, torch.Tensor)
            and hasattr(graph, name)
            and name not in dict(graph.named_buffers())
        ):
            delattr(graph, name)
            graph.register_buffer(name, held)
    return graph


def example_arguments(program: ExportedProgram) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments in their structure, as empty tensors: the compiler reads sizes off the graph."""
    values = {node.name: node.meta["val"] for node in program.graph.find_nodes(op="placeholder")}
    flat = [
        spec.arg.value
        if isinstance(spec.arg, ConstantArgument)
        else torch.empty(0, device=values[spec.arg.name].device)
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    args, kwargs = tree_unflatten(flat, program.call_spec.in_spec)
    return args, kwargs

"""The devices on which a program has anything."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from fakexport._torch.pytree import tree_leaves
from fakexport.program.program_copy import graph_modules


def devices_of_program(program: ExportedProgram) -> tuple[str, ...]:
    """Return the devices of weights, constants and values, sorted."""
    values = [
        node.meta.get("val") for module in graph_modules(program.graph_module) for node in module.graph.nodes
    ]
    held = [*program.state_dict.values(), *program.constants.values()]
    tensors = (leaf for leaf in tree_leaves([held, values]) if isinstance(leaf, torch.Tensor))
    return tuple(sorted({str(tensor.device) for tensor in tensors}))

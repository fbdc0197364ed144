"""Programs that lost the input of a transform of `torch.func`, which torch exports silently."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fakexport._torch.vmap_steps import is_transformed
from fakexport.diagnostics import Span
from fakexport.error import FakexportError
from fakexport.program import source_span


class TransformLost(FakexportError, RuntimeError):
    """A transform's input became a constant of the program: it would compute the same whatever it is given.

    Args:
        name: The constant.
        span: The user's line of the first operator that takes it.
    """

    def __init__(self, name: str, span: Span | None) -> None:
        super().__init__(
            f"torch.export traced a transform of torch.func (grad, vjp, jacrev, ...) with its input as the "
            f"constant {name}: the program would not depend on it"
        )
        self.span = span


def refuse_lost_transforms(program: ExportedProgram) -> None:
    """Raise `TransformLost` for a program with a constant that is a tensor of a transform's level.

    Export knows the tensors that the model is given, and not those that `torch.func.grad` wraps around them.
    """
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in program.graph_signature.input_specs:
        constant = (
            program.constants.get(spec.target or "") if spec.kind is InputKind.CONSTANT_TENSOR else None
        )
        if isinstance(constant, torch.Tensor) and is_transformed(constant):
            spans = (source_span(user) for user in nodes[spec.arg.name].users)
            raise TransformLost(str(spec.target), next(filter(None, spans), None))

"""Runs the stages of a program one after the other, as processes with one stage each would."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.export import ExportedProgram

from fakexport.deploy import LoadedProgram
from fakexport.exporting.program import facts_of

__all__ = ["chained"]


def chained(
    stages: Mapping[str, ExportedProgram], inputs: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The outputs of the whole program. Each stage gets copies, as if they had been sent."""
    values, outputs = dict(inputs), {}
    for program in stages.values():
        record = facts_of(program).stage
        assert record is not None
        opened = LoadedProgram(program)
        taken = [tensor.name for tensor in opened.signature.inputs]
        for name, tensor in opened({name: values[name].clone() for name in taken}).items():
            (outputs if name in record.outputs else values)[name] = tensor
    return {name: outputs[name] for name in record.outputs}

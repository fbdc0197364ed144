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
    values = dict(inputs)
    for program in stages.values():
        opened = LoadedProgram(program)
        taken = [tensor.name for tensor in opened.signature.inputs]
        values |= opened({name: values[name].clone() for name in taken})
    record = facts_of(program).stage
    assert record is not None
    return {name: values[name] for name in record.outputs}

"""Run the pipeline stages of a bundle one after the other, in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch.export import ExportedProgram

from fakexport.exporting.program import facts_of
from fakexport.files.documents import StageRecord

from .loaded_program import LoadedProgram
from .signature import OutputTensor, Signature


class LoadedStages:
    """The bound stages of a program, which can be called like the whole program.

    Args:
        stages: The programs of all stages, in order.
        is_compiled: As for `LoadedProgram`.
    """

    def __init__(self, stages: Mapping[str, ExportedProgram], *, is_compiled: bool = False) -> None:
        programs = list(stages.values())
        self._stages = [LoadedProgram(program, is_compiled=is_compiled) for program in programs]
        self._outputs = stage_of(programs[0]).outputs

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of a call. The first stage takes all inputs."""
        outputs = tuple(OutputTensor(name, is_tensor=True) for name in self._outputs)
        return replace(self._stages[0].signature, outputs=outputs)

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the stages and return the output tensors of the program by name.

        Raises:
            InputMismatchError: as for `LoadedProgram`.
        """
        values = dict(inputs)
        outputs: dict[str, torch.Tensor] = {}  # An output may have the name of an input.
        for index, stage in enumerate(self._stages):
            taken = [tensor.name for tensor in stage.signature.inputs]
            made = stage({name: values[name] for name in taken} if index else inputs)
            for name, tensor in made.items():
                (outputs if name in self._outputs else values)[name] = tensor
        return {name: outputs[name] for name in self._outputs}


def stage_of(program: ExportedProgram) -> StageRecord:
    """Return which stage a program is. It must be one of the programs of `split`."""
    record = facts_of(program).stage
    assert record is not None
    return record

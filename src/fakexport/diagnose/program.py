"""Everything that is wrong with a program, though it was captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.export import ExportedProgram

from fakexport.capture import DynamicDims, PythonEffect, Recovered
from fakexport.devices import Topology
from fakexport.diagnose.behaviour import diagnose_behaviour
from fakexport.diagnose.constants import diagnose_constants
from fakexport.diagnose.custom_operators import compare_custom_operators
from fakexport.diagnose.declared_dims import diagnose_declared_dims, diagnose_numbers
from fakexport.diagnose.memory import diagnose_memory
from fakexport.diagnostics import Diagnostic
from fakexport.program import ProgramSummary

__all__ = ["ProgramFindings", "diagnose_program"]


@dataclass(frozen=True)
class ProgramFindings:
    """What was found about a program.

    Args:
        diagnostics: In the order of the codes, but for the memory.
        notes: Checks that could not be made, one sentence each.
    """

    diagnostics: tuple[Diagnostic, ...]
    notes: tuple[str, ...]


def diagnose_program(
    program: ExportedProgram,
    effects: Sequence[PythonEffect],
    recovered: Recovered,
    summary: ProgramSummary,
    topology: Topology,
    dynamic: DynamicDims,
) -> ProgramFindings:
    """The findings about a program.

    Args:
        program: As captured; of a loaded one, the conditions on sizes are not known.
        effects: What `forward` did in Python while it was traced.
        recovered: What became of its constants.
        summary: Its facts.
        topology: The target.
        dynamic: The dimensions that were declared.
    Reports:
        FE207, FE302, FE304, FE305, FE402, FE403, FE503, FE601, FE602, FE603, FE901 to FE907.
    """
    memory = diagnose_memory(summary, topology)
    operators = compare_custom_operators(program)
    diagnostics = (
        *diagnose_numbers(program),
        *diagnose_declared_dims(program, summary, dynamic),
        *operators.diagnostics,
        *((memory,) if memory else ()),
        *diagnose_constants(recovered),
        *diagnose_behaviour(program, effects),
    )
    return ProgramFindings(diagnostics, operators.notes)

"""One question for modules and programs: what is in it?"""

from __future__ import annotations

from typing import overload

from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.error import InvalidType
from fakexport.program.module_summary import ModuleSummary, inspect_module
from fakexport.program.summary import ProgramSummary, summarise


@overload
def summary_of(module_or_program: nn.Module) -> ModuleSummary: ...
@overload
def summary_of(module_or_program: ExportedProgram) -> ProgramSummary: ...


@one_at_a_time
def summary_of(module_or_program: nn.Module | ExportedProgram) -> ModuleSummary | ProgramSummary:
    """Describe a module or a program: parameters, bytes per device, and its parts or its operators.

    Args:
        module_or_program: Real or fake; no value is read.
    Returns:
        For a module the tree of its modules, repeated blocks folded; for a program its facts.
    Raises:
        TypeError: neither a module nor an ExportedProgram.

    Example:
        >>> summary(nn.Linear(4, 2)).total_parameters
        10
    """
    if isinstance(module_or_program, nn.Module):
        return inspect_module(module_or_program)
    if isinstance(module_or_program, ExportedProgram):
        return summarise(module_or_program)
    raise InvalidType(f"expected a module or an ExportedProgram, got {type(module_or_program).__name__}")

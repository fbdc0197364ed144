"""Find the problems of a program that was captured successfully."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from fakexport.exporting.capture import Captured, Recovered
from fakexport.exporting.program import ProgramSummary, Visit, facts_of, operator_name, refused_dtypes, walk
from fakexport.models import DynamicDims
from fakexport.report.diagnose.behaviour import diagnose_behaviour
from fakexport.report.diagnose.custom_operators import compare_custom_operators
from fakexport.report.diagnose.divided_sizes import division_notes
from fakexport.report.diagnose.dynamic_dim_checks import (
    diagnose_declared_dims,
    diagnose_numbers,
    order_notes,
    unproven_sizes,
)
from fakexport.report.diagnose.forward_repairs import IN_FLOAT32
from fakexport.report.diagnose.labels import finding
from fakexport.rules.diagnostics import Diagnostic

_MOST_NAMES = 5


@dataclass(frozen=True)
class ProgramFindings:
    """Findings about a program.

    Args:
        diagnostics: The diagnostics, ordered by code.
        notes: Sentences about checks that were not possible, sizes that were not verified, and constants
            whose values the trace read.
    """

    diagnostics: tuple[Diagnostic, ...]
    notes: tuple[str, ...]


def diagnose_program(captured: Captured, summary: ProgramSummary, dynamic: DynamicDims) -> ProgramFindings:
    """Return the findings about a captured program.

    Args:
        captured: The result of a capture. A loaded program cannot be used, because it has no shape guards.
        summary: The summary of the program.
        dynamic: The declared dimensions.
    Reports:
        FE207, FE209, FE302, FE304, FE305, FE402, FE403, FE601, FE602, FE603, FE901 to FE911, FE913, FE914.
    """
    program, recovered = captured.program, captured.recovered
    assert program is not None
    assert recovered is not None
    visits, varying = tuple(walk(program)), dynamic.varying()
    operators = compare_custom_operators(visits)
    diagnostics = (
        *diagnose_numbers(program),
        *diagnose_dtypes(program, visits),
        *diagnose_declared_dims(program, summary, varying),
        *operators.diagnostics,
        *diagnose_constants(recovered),
        *diagnose_behaviour(program, visits, captured.effects),
    )
    return ProgramFindings(
        diagnostics,
        (
            *operators.notes,
            *unproven_sizes(varying),
            *order_notes(program, varying),
            *division_notes(program, summary, dynamic),
            *_read(captured),
        ),
    )


def diagnose_loaded(program: ExportedProgram) -> tuple[Diagnostic, ...]:
    """Return the findings that need only the program. This also works for a program from an archive.

    Reports:
        FE209, FE901, FE902, FE904, FE905, FE910.
    """
    visits = tuple(walk(program))
    return (*diagnose_dtypes(program, visits), *diagnose_behaviour(program, visits))


def _read(captured: Captured) -> Iterator[str]:
    if names := captured.read_constants:
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        kind = "constant" if len(names) == 1 else f"{len(names):,} constants"
        values, them = ("value", "it") if len(names) == 1 else ("values", "them")
        yield f"the trace read the {values} of the {kind} {shown}: the program is specialized on {them}"


def diagnose_constants(recovered: Recovered) -> Iterator[Diagnostic]:
    """Return one diagnostic per constant without a value, in the order of the constants.

    Reports:
        FE601, FE602, FE603, at the line that reads the constant, or without a line if the constant is unused.
    """
    for constant in recovered.unbound:
        name, owner = constant.name, constant.name.rpartition(".")[0]
        yield finding(constant.code, constant.span, module_path=owner, name=name, detail=constant.detail)


_LOWER = ("bfloat16", "float16")


def diagnose_dtypes(program: ExportedProgram, visits: Iterable[Visit]) -> Iterator[Diagnostic]:
    """Report operators that fail in eager mode because their device does not support the operands' dtypes.

    Reports:
        FE209. Calls inside an autocast region are skipped, because autocast casts the operands. If the model
            was built in half precision and an operand is float32, the fix suggests `--dtype float32` first.
    """
    is_lowered = facts_of(program).dtype in _LOWER
    for visit in visits:
        refusal = refused_dtypes(visit)
        if refusal is not None:
            is_mixed = is_lowered and torch.float32 in refusal.operands.values()
            yield finding(
                "dtypes",
                visit.span,
                node=visit.node.name,
                module_path=visit.module_path,
                name=operator_name(visit.node),
                operands=refusal.text,
                before=f"{IN_FLOAT32}, or " if is_mixed else "",
                conversion=refusal.fix,
            )

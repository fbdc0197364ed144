"""Find everything that is wrong with a program although it was captured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from fakexport.capture import Captured, DynamicDims, Recovered, UnboundConstant
from fakexport.devices import Topology
from fakexport.diagnose.behaviour import diagnose_behaviour
from fakexport.diagnose.custom_operators import compare_custom_operators
from fakexport.diagnose.declared_dims import (
    diagnose_declared_dims,
    diagnose_numbers,
    order_notes,
    unproven_sizes,
)
from fakexport.diagnose.forward_repairs import IN_FLOAT32
from fakexport.diagnose.labels import labels_at
from fakexport.diagnose.peak_memory import diagnose_memory
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.program import (
    ProgramSummary,
    RefusedDtypes,
    Visit,
    facts_of,
    operator_name,
    refused_dtypes,
    walk,
)
from fakexport.rules import rule

_MOST_NAMES = 5

_FIXES_OF_CONSTANTS = {
    "FE601": "compute it in `forward`, or make it a persistent buffer, so that the checkpoint contains it",
    "FE602": "draw it with `generator=torch.Generator().manual_seed(...)`, or make it a persistent buffer",
    "FE603": "compute it with operators that run on the CPU, or make it a persistent buffer",
}


@dataclass(frozen=True)
class ProgramFindings:
    """What was found about a program.

    Args:
        diagnostics: In the order of the codes, but for the memory.
        notes: Checks that were not possible, sizes that are not proven, and constants that the trace read.
    """

    diagnostics: tuple[Diagnostic, ...]
    notes: tuple[str, ...]


def diagnose_program(
    captured: Captured, summary: ProgramSummary, topology: Topology, dynamic: DynamicDims
) -> ProgramFindings:
    """Return the findings about a program.

    Args:
        captured: With a program as captured: a loaded one has no conditions on sizes.
        summary: Its facts.
        topology: The target.
        dynamic: The dimensions that were declared.
    Reports:
        FE207, FE209, FE302, FE304, FE305, FE402, FE403, FE503, FE506, FE601, FE602, FE603, FE901 to FE911.
    """
    program, recovered = captured.program, captured.recovered
    assert program is not None
    assert recovered is not None
    memory = diagnose_memory(program, summary, topology)
    operators = compare_custom_operators(program)
    diagnostics = (
        *diagnose_numbers(program),
        *diagnose_dtypes(program),
        *diagnose_declared_dims(program, summary, dynamic),
        *operators.diagnostics,
        *((memory,) if memory else ()),
        *diagnose_constants(recovered),
        *diagnose_behaviour(program, captured.effects, captured.kept_masks),
    )
    return ProgramFindings(
        diagnostics,
        (*operators.notes, *unproven_sizes(dynamic), *order_notes(program, dynamic), *_read(captured)),
    )


def diagnose_loaded(program: ExportedProgram) -> tuple[Diagnostic, ...]:
    """Return what a program shows by itself, also after loading: without how it was captured, and for what.

    Reports:
        FE209, FE901, FE902, FE904, FE905.
    """
    return (*diagnose_dtypes(program), *diagnose_behaviour(program))


def _read(captured: Captured) -> Iterator[str]:
    if names := captured.read_constants:
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        kind = "constant" if len(names) == 1 else f"{len(names):,} constants"
        values = "value" if len(names) == 1 else "values"
        yield f"the trace read the {values} of the {kind} {shown}: the program is specialized on them"


def diagnose_constants(recovered: Recovered) -> Iterator[Diagnostic]:
    """Return one diagnostic per constant that has no value in the program, in the order of the constants.

    Reports:
        FE601, FE602, FE603. The place is the line that reads the constant; a constant that nothing reads
        has none.
    """
    return (_of_constant(constant) for constant in recovered.unbound)


def _of_constant(constant: UnboundConstant) -> Diagnostic:
    return rule(constant.code).diagnostic(
        labels=labels_at(constant.span, f"reads `{constant.name}`, which has no value"),
        notes=(f"{constant.name}: {constant.detail}",),
        fix=Fix(_FIXES_OF_CONSTANTS[constant.code]),
        module_path=constant.name.rpartition(".")[0] or None,
    )


_LOWER = ("bfloat16", "float16")


def diagnose_dtypes(program: ExportedProgram) -> Iterator[Diagnostic]:
    """Operators whose operands have dtypes that eager torch refuses on their device.

    Reports:
        FE209, but not inside an autocast region, which casts the operands.
    """
    for visit in walk(program):
        refusal = refused_dtypes(visit)
        if refusal is not None:
            yield _diagnostic(visit, refusal, is_lowered=facts_of(program).dtype in _LOWER)


def _diagnostic(visit: Visit, refusal: RefusedDtypes, *, is_lowered: bool) -> Diagnostic:
    """Return FE209. Where a lower dtype was asked for, float32 is what the model's code computes in."""
    name = operator_name(visit.node)
    before = f"{IN_FLOAT32}, or " if is_lowered and torch.float32 in refusal.operands.values() else ""
    return rule("FE209").diagnostic(
        labels=labels_at(visit.span, f"`{name}` gets {refusal.text}"),
        notes=(f"{visit.module_path or 'the model'}: eager mode refuses `{name}` with {refusal.text}",),
        fix=Fix(f"{before}convert before the call: {refusal.fix}"),
        node=visit.node.name,
        module_path=visit.module_path or None,
    )

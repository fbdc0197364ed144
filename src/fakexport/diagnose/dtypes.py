"""Operators that refuse the dtypes of their operands when they run: FE209."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.export import ExportedProgram

from fakexport.diagnose.forward_repairs import IN_FLOAT32
from fakexport.diagnose.labels import labels_at
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.program import RefusedDtypes, Visit, facts_of, operator_name, refused_dtypes, walk
from fakexport.rules import rule

_LOWER = ("bfloat16", "float16")


def diagnose_dtypes(program: ExportedProgram) -> Iterator[Diagnostic]:
    """Operators whose operands have dtypes that eager torch refuses on their device.

    Args:
        program: As captured, before decompositions.
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

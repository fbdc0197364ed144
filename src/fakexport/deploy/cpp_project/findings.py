"""What a C++ program cannot run: operators implemented in Python, FE804."""

from __future__ import annotations

from collections.abc import Iterator

from torch.export import ExportedProgram

from fakexport.diagnose import labels_at
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.program import Visit, library_operators, python_operators, target_name, walk
from fakexport.rules import rule

from ..way_around import way_around


def findings_of_program(program: ExportedProgram) -> Iterator[Diagnostic]:
    """Yield a finding for each operator implemented in Python, at its first call.

    Args:
        program: Not changed.
    """
    made = python_operators(library_operators(program))
    calls: dict[str, list[Visit]] = {}
    for visit in walk(program) if made else ():
        if visit.node.op == "call_function" and (name := target_name(visit.node.target)) in made:
            calls.setdefault(name, []).append(visit)
    for name, visits in calls.items():
        first, module = visits[0], made[name]
        maker = "" if module is None else f", in {module}"
        yield rule("FE804").diagnostic(
            labels=labels_at(first.span, f"{name} is called here"),
            notes=(f"{name} at node {first.node.name} is implemented in Python{maker}",),
            fix=Fix(
                way_around(name)
                or ("implement it in C++, or compile with --to aoti and run the package from Python")
            ),
            node=first.node.name,
            module_path=first.module_path or None,
            count=len(visits),
        )

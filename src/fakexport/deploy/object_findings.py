"""C++ objects in a program, for the runtimes that do not support them."""

from __future__ import annotations

from collections.abc import Iterator

from torch.export import ExportedProgram
from torch.export.graph_signature import CustomObjArgument

from fakexport._torch.script_objects import class_of
from fakexport.diagnose import labels_at
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.program import module_path, source_span
from fakexport.rules import rule


def findings_of_objects(program: ExportedProgram, code: str, runtime: str) -> Iterator[Diagnostic]:
    """Yield a finding for each object that the program holds, at its first use."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in program.graph_signature.input_specs:
        if not isinstance(spec.arg, CustomObjArgument):
            continue
        uses = list(nodes[spec.arg.name].users)
        what = f"{spec.target} is an object of the C++ class {class_of(spec.arg.class_fqn)}"
        yield rule(code).diagnostic(
            labels=labels_at(source_span(uses[0]), "a method of the object is called here") if uses else (),
            notes=(f"{what}, and {runtime} does not support objects",),
            fix=Fix(
                "implement its methods with operators on tensors, or deploy the program with AOTInductor"
            ),
            node=spec.arg.name,
            module_path=module_path(uses[0]) or None if uses else None,
            count=max(len(uses), 1),
        )

"""What a compiler does not support: findings at nodes, and the checks that a format drops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import CustomObjArgument
from torch.fx import Node

from fakexport._torch.script_objects import class_of
from fakexport.conditions import conditions_of
from fakexport.diagnose import labels_at
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.program import SourcePaths, graph_modules, module_path, operator_name, source_span
from fakexport.rules import rule

_ASSERTIONS = frozenset(
    {"aten._assert_async.msg", "aten._assert_async.default", "aten._assert_scalar.default"}
)


def finding_at(code: str, node: Node, label: str, **facts: Any) -> Diagnostic:
    """Return a finding at a node and its line of source; `facts` are arguments of `Rule.diagnostic`."""
    return rule(code).diagnostic(
        labels=labels_at(source_span(node), label),
        **{"node": node.name, "module_path": module_path(node) or None, **facts},
    )


def assertion_notes(program: ExportedProgram, form: str) -> Iterator[str]:
    """Yield a sentence where the compiled file checks less than the program.

    It has neither `torch._check` and `--assume` nor guards on what `forward` asked of its inputs.
    """
    called = [node for module in graph_modules(program.graph_module) for node in module.graph.nodes]
    if checks := [node for node in called if operator_name(node) in _ASSERTIONS]:
        span = next((span for span in map(source_span, checks) if span is not None), None)
        place = "" if span is None else f", as at {SourcePaths(Path.cwd()).shortened(span.path)}:{span.line}"
        yield f"{form} has no assertions: the program's assertions are dropped ({len(checks)}){place}"
    if asked := [condition for condition in conditions_of(program) if condition.asked_at]:
        yield (
            f"{form} has no guards: `fakexport run` checks that {asked[0].reason}"
            + (f" ({len(asked) - 1} more)" if len(asked) > 1 else "")
            + "; other runtimes do not"
        )


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

"""Findings about features that a compiler does not support, and notes about checks that it drops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import CustomObjArgument
from torch.fx import Node

from fakexport._torch.operators.operator_registry import TORCH_NAMESPACES
from fakexport._torch.tracing.script_objects import class_of
from fakexport.exporting.guards import conditions_of
from fakexport.exporting.program import SourcePaths, graph_modules, module_path, operator_name, source_span
from fakexport.report.diagnose import labels_at
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix

# Namespaces of torch and ExecuTorch, and of Python functions that programs call, such as `math.floor`.
_NOT_OF_LIBRARIES = TORCH_NAMESPACES | {"dim_order_ops", "higher_order", "math", "operator", "torch"}
_ASSERTIONS = frozenset(
    {"aten._assert_async.msg", "aten._assert_async.default", "aten._assert_scalar.default"}
)


def finding_at(code: str, node: Node, label: str, **facts: Any) -> Diagnostic:
    """Return a finding at a node and its source line. `facts` are passed on to `Rule.diagnostic`."""
    return rule(code).diagnostic(
        labels=labels_at(source_span(node), label),
        **{"node": node.name, "module_path": module_path(node) or None, **facts},
    )


def operator_finding(
    code: str, nodes: list[Node], name: str, reason: str, notes: tuple[str, ...], fix: str, custom_fix: str
) -> Diagnostic:
    """Return a finding for the nodes of one operator. Its fix is `custom_fix` if a library defines the
    operator.
    """
    is_custom = name.partition(".")[0] not in _NOT_OF_LIBRARIES
    return finding_at(
        code,
        nodes[0],
        f"{name} {reason}",
        notes=notes,
        fix=Fix(custom_fix if is_custom else fix),
        count=len(nodes),
        fault="operator library" if is_custom else "target",
    )


def assertion_notes(program: ExportedProgram, form: str) -> Iterator[str]:
    """Yield a sentence for each kind of check that the compiled form drops.

    Checks come from `torch._check`, from `--assume`, and from guards on values that `forward` read from
    inputs.
    """
    called = [node for module in graph_modules(program.graph_module) for node in module.graph.nodes]
    if checks := [node for node in called if operator_name(node) in _ASSERTIONS]:
        span = next((span for span in map(source_span, checks) if span is not None), None)
        place = (
            ""
            if span is None
            else f", for example at {SourcePaths(Path.cwd()).shortened(span.path)}:{span.line}"
        )
        yield f"{form} has no assertions: the program's assertions are dropped ({len(checks)}){place}"
    if asked := [condition for condition in conditions_of(program) if condition.asked_at]:
        yield (
            f"{form} has no guards: `fakexport run` checks that {asked[0].reason}"
            + (f" (and {len(asked) - 1} more)" if len(asked) > 1 else "")
            + ", but other runtimes do not"
        )


def findings_of_objects(program: ExportedProgram, code: str, runtime: str) -> Iterator[Diagnostic]:
    """Yield a finding for each C++ object in the program. It points to the object's first use."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in program.graph_signature.input_specs:
        if not isinstance(spec.arg, CustomObjArgument):
            continue
        uses = list(nodes[spec.arg.name].users)
        what = f"{spec.target} is an object of the C++ class {class_of(spec.arg.class_fqn)}"
        yield rule(code).diagnostic(
            labels=labels_at(source_span(uses[0]), "a method of the object is called here") if uses else (),
            notes=(f"{what}, but {runtime} does not support objects",),
            fix=Fix("implement its methods with tensor operators, or deploy the program with AOTInductor"),
            node=spec.arg.name,
            module_path=module_path(uses[0]) or None if uses else None,
            count=max(len(uses), 1),
        )

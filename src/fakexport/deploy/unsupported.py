"""Findings about features that a compiler does not support, and notes about checks that it drops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import CustomObjArgument
from torch.fx import Node

from fakexport._torch.operators.operator_schema import argument_names
from fakexport._torch.operators.packaged_operators import TORCH_NAMESPACES, class_of
from fakexport.exporting.guards import conditions_of
from fakexport.exporting.program import (
    SourcePaths,
    graph_modules,
    module_path,
    operator_name,
    plain_name,
    source_span,
)
from fakexport.report import Fallback
from fakexport.report.diagnose import known_repair, labels_at
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix

# Namespaces of torch and ExecuTorch, and of Python functions that programs call, such as `math.floor`.
_NOT_OF_LIBRARIES = TORCH_NAMESPACES | {"dim_order_ops", "higher_order", "math", "operator", "torch"}
_ASSERTIONS = frozenset(
    {"aten._assert_async.msg", "aten._assert_async.default", "aten._assert_scalar.default"}
)


def finding_at(code: str, node: Node, label: str, **facts: Any) -> Diagnostic:
    """Return a finding at a node and its source line. `facts` are passed on to `Rule.diagnostic`.

    If `repairs.toml` has a fix for the notes, it replaces the general fix in `facts`.
    """
    known = known_repair("unsupported", " ".join(facts.get("notes", ())), rule(code).form or "")
    fix = {"fix": Fix(known)} if known else {}
    return rule(code).diagnostic(
        labels=labels_at(source_span(node), label),
        **{"node": node.name, "module_path": module_path(node) or None, **facts, **fix},
    )


def operator_finding(
    code: str, nodes: list[Node], name: str, reason: str, notes: tuple[str, ...], fix: str, custom_fix: str
) -> Diagnostic:
    """Return a finding for the nodes of an operator. `custom_fix` is the fix for a library's operator."""
    is_custom = name.partition(".")[0] not in _NOT_OF_LIBRARIES
    return finding_at(
        code,
        nodes[0],
        f"{name} {reason}",
        notes=(*notes, f"its arguments: {arguments_text(nodes[0])}"),
        fix=Fix(custom_fix if is_custom else fix),
        count=len(nodes),
        fault="operator library" if is_custom else "target",
    )


def arguments_text(node: Node) -> str:
    """Return the arguments of a call: `float32[2, 5], dim=-1`. Names come from the operator's schema."""
    target: Any = node.target
    names = argument_names(getattr(target, "_op", target)) if hasattr(target, "_schema") else ()
    given = [(names[index] if index < len(names) else "", value) for index, value in enumerate(node.args)]
    texts = []
    for name, value in (*given, *node.kwargs.items()):
        text = _argument_text(value)
        is_tensor = isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)
        texts.append(text if is_tensor or not name else f"{name}={text}")
    return ", ".join(texts)


def _argument_text(value: Any) -> str:
    match value:
        case Node():
            held = value.meta.get("val")
            if isinstance(held, torch.Tensor):
                return f"{plain_name(held.dtype)}[{', '.join(map(str, held.shape))}]"
            return str(held)
        case list() | tuple():
            return f"[{', '.join(map(_argument_text, value))}]"
        case torch.dtype() | torch.layout() | torch.memory_format():
            return plain_name(value)
        case _:
            return str(value)


def fallbacks_of(called: Iterable[tuple[str, Node, str]], runtime: str = "") -> tuple[Fallback, ...]:
    """Return one fallback for each operator and reason, with the fix that `repairs.toml` has for the runtime.

    Each item is an operator's name, a node, a reason.
    """
    groups: dict[tuple[str, str], list[Node]] = {}
    for name, node, reason in called:
        groups.setdefault((name, reason), []).append(node)
    fixes = {each: known_repair("unsupported", ": ".join(each), runtime) for each in groups}
    return tuple(
        Fallback(
            name, reason, arguments_text(nodes[0]), len(nodes), source_span(nodes[0]), fixes[name, reason]
        )
        for (name, reason), nodes in groups.items()
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

"""Findings about a program on its new devices, as diagnostics and sentences."""

from __future__ import annotations

from collections import Counter

from torch.export import ExportedProgram
from torch.fx import Node

from fakexport.exporting.program.node_names import operator_name
from fakexport.exporting.program.refused_dtypes import RefusedDtypes, refused_dtypes
from fakexport.exporting.program.retargeting.rerun import Finding, Rerun
from fakexport.exporting.program.source_span import source_span
from fakexport.exporting.program.walk import Visit, walk
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix, Label, fold


def failures(rerun: Rerun) -> tuple[Diagnostic, ...]:
    """Return diagnostics (FE502, FE504) for nodes that fail on the new devices, merged by module."""
    found = [_clash(each) for each in rerun.findings if each.kind == "clash"]
    return fold([*found, *(_refusal(each) for each in rerun.findings if each.kind == "refusal")])


def kernel_failures(program: ExportedProgram, made: ExportedProgram) -> tuple[Diagnostic, ...]:
    """Return diagnostics (FE504) for nodes with dtypes that the old devices support but the new ones reject.

    Running the nodes on fake tensors does not show these failures.
    """
    found = [(visit, refused) for visit in walk(made) if (refused := refused_dtypes(visit)) is not None]
    if not found:
        return ()
    before = {(visit.graph, visit.name) for visit in walk(program) if refused_dtypes(visit) is not None}
    new = [_no_kernel(*each) for each in found if (each[0].graph, each[0].name) not in before]
    return fold(new)


def layout_notes(rerun: Rerun) -> tuple[str, ...]:
    """Return notes about nodes with a different kernel on the new devices. A new export may differ there."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    changed = {change.node for change in rerun.changes}
    for change in rerun.changes:
        if changed.isdisjoint(change.node.all_input_nodes):  # Later changes are only consequences.
            counts[operator_name(change.node), change.field, change.before, change.now] += 1
    return tuple(
        f"{operator} runs a different kernel on the new devices: {field} {before} -> {now}"
        + (f" ({count} times)" if count > 1 else "")
        + "; an export for these devices may copy tensors at different nodes"
        for (operator, field, before, now), count in counts.items()
    )


def unproven_text(rerun: Rerun) -> tuple[str, ...]:
    """Return one sentence for each kind of node that could not be run on fake tensors."""
    unproven = (found for found in rerun.findings if found.kind == "unproven")
    counts = Counter((operator_name(found.node), found.reason) for found in unproven)
    return tuple(
        f"{operator} cannot be run on fake tensors, so the check is incomplete for {count} "
        f"node{'s' * (count > 1)} ({reason})"
        for (operator, reason), count in counts.items()
    )


def _clash(found: Finding) -> Diagnostic:
    fix = "map the devices of these tensors to one device, or move one of the tensors in the model"
    return _finding("FE502", found.node, found.path, found.reason, found.reason, fix)


def _refusal(found: Finding) -> Diagnostic:
    operator = operator_name(found.node)
    note = f"{operator} fails: {found.reason}"
    fix = "export the model for the new device: its code may take a different path on that device"
    return _finding("FE504", found.node, found.path, f"{operator} fails here", note, fix)


def _no_kernel(visit: Visit, refused: RefusedDtypes) -> Diagnostic:
    label = f"`{visit.operator}` does not support {refused.text} here"
    note = f"{visit.operator} does not support {refused.text}"
    fix = f"add this conversion before the call, then export again: {refused.fix}"
    return _finding("FE504", visit.node, visit.module_path or None, label, note, fix)


def _finding(code: str, node: Node, path: str | None, label: str, note: str, fix: str) -> Diagnostic:
    span = source_span(node)
    labels = () if span is None else (Label(span, label),)
    return rule(code).diagnostic(labels=labels, notes=(note,), fix=Fix(fix), node=node.name, module_path=path)

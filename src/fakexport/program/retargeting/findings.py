"""What is found when a program is put on other devices, as diagnostics and sentences."""

from __future__ import annotations

from collections import Counter

from torch.export import ExportedProgram
from torch.fx import Node

from fakexport.diagnostics import Diagnostic, Fix, Label, fold
from fakexport.program.node_names import operator_name
from fakexport.program.refused_dtypes import RefusedDtypes, refused_dtypes
from fakexport.program.retargeting.rerun import Clash, Refusal, Rerun
from fakexport.program.source_span import source_span
from fakexport.program.walk import Visit, walk
from fakexport.rules import rule


def failures(rerun: Rerun) -> tuple[Diagnostic, ...]:
    """Return the nodes that fail on the new devices, repeats of equal modules folded: FE502, FE504."""
    return fold([*map(_clash, rerun.clashes), *map(_refusal, rerun.refusals)])


def kernel_failures(program: ExportedProgram, made: ExportedProgram) -> tuple[Diagnostic, ...]:
    """Return the nodes whose dtypes have a kernel on the old devices only, which fakes do not show: FE504."""
    found = [(visit, refused) for visit in walk(made) if (refused := refused_dtypes(visit)) is not None]
    if not found:
        return ()
    before = {(visit.graph, visit.name) for visit in walk(program) if refused_dtypes(visit) is not None}
    new = [_no_kernel(*each) for each in found if (each[0].graph, each[0].name) not in before]
    return fold(new)


def layout_notes(rerun: Rerun) -> tuple[str, ...]:
    """Return where another kernel is chosen, after which an export for these devices may differ."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    changed = {change.node for change in rerun.changes}
    for change in rerun.changes:
        if changed.isdisjoint(change.node.all_input_nodes):  # The others follow from it.
            counts[operator_name(change.node), change.field, change.before, change.now] += 1
    return tuple(
        f"{operator}: a different kernel on the new devices, {field} {before} -> {now}"
        + (f" ({count} times)" if count > 1 else "")
        + "; an export for these devices may copy in other places"
        for (operator, field, before, now), count in counts.items()
    )


def unproven_text(rerun: Rerun) -> tuple[str, ...]:
    """Return one sentence for each kind of node that could not be run."""
    counts = Counter((operator_name(fact.node), fact.reason) for fact in rerun.unproven)
    return tuple(
        f"{operator} cannot be run on fake tensors, so the check is incomplete for {count} "
        f"node{'s' * (count > 1)} ({reason})"
        for (operator, reason), count in counts.items()
    )


def _clash(found: Clash) -> Diagnostic:
    text = f"{found.clash.operator} gets {found.clash.text}"
    fix = "add the other device to the map as well, or move one of the tensors in the model"
    return _finding("FE502", found.node, found.path, text, text, fix)


def _refusal(found: Refusal) -> Diagnostic:
    operator = operator_name(found.node)
    note = f"{operator} refuses: {found.reason}"
    fix = "export the model for this device: its code may take another path there"
    return _finding("FE504", found.node, found.path, f"{operator} refuses here", note, fix)


def _no_kernel(visit: Visit, refused: RefusedDtypes) -> Diagnostic:
    label = f"`{visit.operator}` refuses {refused.text} here"
    note = f"{visit.operator} refuses: {refused.text}"
    fix = f"convert before the call, and export again: {refused.fix}"
    return _finding("FE504", visit.node, visit.module_path or None, label, note, fix)


def _finding(code: str, node: Node, path: str | None, label: str, note: str, fix: str) -> Diagnostic:
    span = source_span(node)
    labels = () if span is None else (Label(span, label),)
    return rule(code).diagnostic(labels=labels, notes=(note,), fix=Fix(fix), node=node.name, module_path=path)

"""Find nodes of an exported program that real hardware would reject because of their tensors' devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch.export import ExportedProgram

from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.pytree import tree_leaves
from fakexport.exporting.program.retargeting.operator_run import OperatorRuns, strict_rules
from fakexport.exporting.program.retargeting.retarget import fake_mode_of
from fakexport.exporting.program.walk import Visit, walk


def device_clashes(program: ExportedProgram) -> Iterator[tuple[Visit, str]]:
    """Yield each node that fake mode accepts, but the program's devices do not, with the reason.

    Only nodes with tensors on different devices are run again.
    """
    mode, mixed = fake_mode_of(program), [visit for visit in walk(program) if _is_mixed(visit)]
    if mode is None or not mixed:
        return
    values = {source: source.meta["val"] for visit in mixed for source in visit.node.all_input_nodes}
    values |= {visit.node: visit.node.meta.get("val") for visit in mixed}
    runs = OperatorRuns(values, values, set(), nullcontext)
    with strict_rules(mode):
        found = [(visit, runs.run(visit.node, ()).clash) for visit in mixed]
    yield from ((visit, clash) for visit, clash in found if clash is not None)


def _is_mixed(visit: Visit) -> bool:
    """Return whether an operator gets tensors on different devices."""
    node = visit.node
    if not isinstance(node.target, OpOverload) or len(node.all_input_nodes) < 2:
        return False
    if any("val" not in source.meta for source in node.all_input_nodes):
        return False
    values = tree_leaves([source.meta["val"] for source in node.all_input_nodes])
    return len({value.device for value in values if isinstance(value, torch.Tensor)}) > 1

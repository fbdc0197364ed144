"""Modules as a tree, with equal blocks as one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fakexport.report.cost_text import flops_text, named_modules
from fakexport.report.page.document import Branch
from fakexport.report.planned_costs import PlannedModule
from fakexport.report.quantity import bytes_text, device_names, elements_text

if TYPE_CHECKING:
    from fakexport.program import ModuleSummary

_OPEN_LEVELS = 2


def module_branch(module: ModuleSummary, depth: int = 0) -> Branch:
    """Return a module with those below it. The numbers of a row of equal modules are those of one."""
    what = f"{module.count:,} × {module.class_name}" if module.count > 1 else module.class_name
    facts = [what, f"{elements_text(module.total_parameters)} parameters", bytes_text(module.total_bytes)]
    facts += [", ".join(module.dtypes), device_names(module.devices)]
    facts += [f"tied to {', '.join(module.tied_to)}"] if module.tied_to else []
    return Branch(
        module.name or "(root)",
        tuple(fact for fact in facts if fact),
        tuple(module_branch(child, depth + 1) for child in module.children),
        is_open=depth < _OPEN_LEVELS and module.count == 1,
    )


def cost_branches(modules: Sequence[PlannedModule]) -> tuple[Branch, ...]:
    """Return the modules of a plan, each below the one that it is in. All of a row of equal ones count."""
    rows = [(module.depth, _cost_branch(module, name)) for module, name in named_modules(modules)]
    return _nested(rows, 0, len(rows), 0)


def _nested(rows: Sequence[tuple[int, Branch]], start: int, end: int, level: int) -> tuple[Branch, ...]:
    """Return the branches of a part of the rows, each with the deeper ones that follow it."""
    found = []
    while start < end:
        depth, branch = rows[start]
        after = next((at for at in range(start + 1, end) if rows[at][0] <= depth), end)
        below = _nested(rows, start + 1, after, level + 1)
        found.append(Branch(branch.name, branch.facts, below, is_open=level < _OPEN_LEVELS))
        start = after
    return tuple(found)


def _cost_branch(module: PlannedModule, name: str) -> Branch:
    facts = [f"{module.count:,} modules"] if module.count > 1 else []
    facts += [flops_text(module.flops), f"reads at least {bytes_text(module.read_bytes)}"]
    return Branch(name, (*facts, device_names(module.devices)))

"""Add example inputs to a program that has none, because without them torch does not check its guards.

`ExportedProgram.module()` installs guards only if the program has example inputs, because it reads the
structure of these inputs (`torch/export/_unlift.py`, verified with torch 2.11 to 2.13). A loaded program has
no example inputs.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument

from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.pytree import tree_unflatten
from fakexport._torch.tracing.symbolic_numbers import expression_of, hint_of
from fakexport.emulation.devices import exists_here

from .output_names import user_inputs
from .program_facts import facts_of, keep_facts
from .weightless import unbound_names


def give_stand_in_inputs(program: ExportedProgram) -> None:
    """Add example inputs to a program with weights if it has none, so that `module()` checks calls."""
    if unbound_names(program) or program.example_inputs is not None:
        return
    program.example_inputs = stand_in_inputs(program)
    keep_facts(program, replace(facts_of(program), has_stand_in_inputs=True))


def checked_module(program: ExportedProgram) -> Any:
    """Return `program.module()`. It checks the inputs of calls even if the program has no example inputs.

    Raises:
        WeightsNotBoundError: the program has no weights.
    """
    if program.example_inputs is None:
        program = copy.copy(program)
        program.example_inputs = stand_in_inputs(program)
    return program.module()


def has_stand_in_inputs(program: ExportedProgram) -> bool:
    """Return whether the program's example inputs are zeros that fakexport added."""
    return facts_of(program).has_stand_in_inputs


def stand_in_inputs(
    program: ExportedProgram, device: str | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return zeros in the structure and sizes of the original inputs, without using memory.

    An unknown size is the smallest that its symbols allow, but at least 2 per symbol.

    Args:
        program: The program. It is not changed.
        device: Device of all inputs. Default: for each input, its original device, or the CPU if this machine
            lacks it.
    """
    leaves = [
        given.value if isinstance(given, ConstantArgument) else _zero(node.meta["val"], program, device)
        for given, node in user_inputs(program)
    ]
    args, kwargs = tree_unflatten(leaves, program.call_spec.in_spec)
    return args, kwargs


def _zero(value: Any, program: ExportedProgram, device: str | None) -> Any:
    if isinstance(value, torch.Tensor):
        here = value.device if exists_here(value.device) else "cpu"
        with real_execution():
            one = torch.zeros((), dtype=value.dtype, device=device or here)
            return one.expand([_size(size, program) for size in value.shape])
    if isinstance(value, torch.SymInt):
        return _size(value, program)
    return hint_of(value) if isinstance(value, (torch.SymFloat, torch.SymBool)) else value


def _size(size: int | torch.SymInt, program: ExportedProgram) -> int:
    if isinstance(size, int):
        return size
    if (hint := hint_of(size)) is not None:
        return int(hint)
    expression, ranges = expression_of(size), program.range_constraints
    least = {s: max(2, ranges[s].lower) if s in ranges else 2 for s in expression.free_symbols}
    return int(expression.subs(least))

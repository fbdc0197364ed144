"""Example inputs for a program that has none, without which torch checks no condition on its inputs.

`ExportedProgram.module()` installs the guards of a program only where it has example inputs, of which it
reads the structure (`torch/export/_unlift.py`, seen on torch 2.11 to 2.13). A loaded program has none.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from fakexport._torch.pytree import tree_unflatten
from fakexport._torch.real_execution import real_execution
from fakexport._torch.symbolic_numbers import hint_of
from fakexport.devices import exists_here

from .program_facts import facts_of, keep_facts
from .weightless import unbound_names

_SMALLEST = 2


def give_stand_in_inputs(program: ExportedProgram) -> None:
    """Return a program with weights example inputs where it has none, so that `module()` checks its calls."""
    if unbound_names(program) or program.example_inputs is not None:
        return
    program.example_inputs = stand_in_inputs(program)
    keep_facts(program, replace(facts_of(program), has_stand_in_inputs=True))


def checked_module(program: ExportedProgram) -> Any:
    """Return `program.module()`, which checks its calls also where the program has no example inputs.

    Raises:
        UnboundProgram: the program has no weights.
    """
    if program.example_inputs is None:
        program = copy.copy(program)
        program.example_inputs = stand_in_inputs(program)
    return program.module()


def has_stand_in_inputs(program: ExportedProgram) -> bool:
    """Return whether its example inputs are not what it was exported with."""
    return facts_of(program).has_stand_in_inputs


def stand_in_inputs(
    program: ExportedProgram, device: str | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return zeros in the structure of the inputs, of the sizes that they had, which take no memory.

    Args:
        program: Not changed.
        device: Device of all of them. Default: that of each input, or the CPU if this machine lacks it.
    """
    values = {node.name: node.meta["val"] for node in program.graph.find_nodes(op="placeholder")}
    leaves = [
        spec.arg.value if isinstance(spec.arg, ConstantArgument) else _zero(values[spec.arg.name], device)
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    args, kwargs = tree_unflatten(leaves, program.call_spec.in_spec)
    return args, kwargs


def _zero(value: Any, device: str | None) -> Any:
    if isinstance(value, torch.Tensor):
        here = value.device if exists_here(value.device) else "cpu"
        with real_execution():
            one = torch.zeros((), dtype=value.dtype, device=device or here)
            return one.expand([_size(size) for size in value.shape])
    if isinstance(value, torch.SymInt):
        return _size(value)
    return hint_of(value) if isinstance(value, (torch.SymFloat, torch.SymBool)) else value


def _size(size: int | torch.SymInt) -> int:
    if isinstance(size, int):
        return size
    hint = hint_of(size)
    return _SMALLEST if hint is None else int(hint)

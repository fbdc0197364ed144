"""A program made from another: the one way to change one and to keep what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.export import ExportedProgram, ExportGraphSignature
from torch.fx import GraphModule

from fakexport._torch.program_assembly import guards_code, reassemble, set_guards
from fakexport.conditions import with_device_guards

from .program_copy import copied_graph
from .program_facts import ProgramFacts, facts_of, keep_facts


def derived_program(
    program: ExportedProgram,
    *,
    state_dict: Mapping[str, Any],
    constants: Mapping[str, Any],
    example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
    graph_module: GraphModule | None = None,
    signature: ExportGraphSignature | None = None,
    facts: ProgramFacts | None = None,
) -> ExportedProgram:
    """Return a new program with the conditions, ranges and facts of another; validated.

    Args:
        program: Not changed.
        state_dict, constants: Tensors by name, all of them.
        example_inputs: Default: none.
        graph_module: A changed copy of the graph, which the new program owns. Default: a copy.
        signature: If inputs or outputs differ.
        facts: If they differ.
    """
    made = reassemble(
        program,
        graph_module=copied_graph(program) if graph_module is None else graph_module,
        state_dict=state_dict,
        constants=constants,
        example_inputs=example_inputs,
        signature=signature,
    )
    set_guards(made, with_device_guards(made, guards_code(made)))
    known = facts_of(program) if facts is None else facts
    return handed_on(program, made, known if example_inputs else replace(known, has_stand_in_inputs=False))


def handed_on(
    program: ExportedProgram, made: ExportedProgram, facts: ProgramFacts | None = None
) -> ExportedProgram:
    """Return the program that a pass of torch made from another one, with what is known of that one."""
    keep_facts(made, facts_of(program) if facts is None else facts)
    return made

"""Create modified programs that keep the facts of the original. Use this module for every modification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.export import ExportedProgram, ExportGraphSignature
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule

from fakexport._torch.tracing.program_assembly import guards_code, reassemble, set_guards
from fakexport.exporting.guards import with_device_guards

from .program_copy import copied_graph
from .program_facts import ProgramFacts, facts_of, keep_facts
from .tensor_identity import tensor_identity
from .walk import input_nodes


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
    """Return a new, validated program with the guards, ranges and facts of an existing program.

    Args:
        program: The existing program. It is not changed.
        state_dict, constants: All tensors by name.
        example_inputs: Example inputs of the new program. Default: none.
        graph_module: A changed copy of the graph, which the new program takes over. Default: an unchanged
            copy.
        signature: The new signature, if inputs or outputs differ.
        facts: The new facts, if they differ.
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
    return copied_metadata(
        program, made, known if example_inputs else replace(known, has_stand_in_inputs=False)
    )


def copied_metadata(
    program: ExportedProgram, made: ExportedProgram, facts: ProgramFacts | None = None
) -> ExportedProgram:
    """Copy the facts of `program` to `made`, which a torch pass created from it. Return `made`."""
    keep_facts(made, facts_of(program) if facts is None else facts)
    return made


_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER)


def with_weight_names(program: ExportedProgram, names: Mapping[str, str]) -> ExportedProgram:
    """Return the program with some of its parameters and buffers renamed."""
    signature = program.graph_signature
    inputs = [
        replace(spec, target=names.get(spec.target, spec.target))
        if spec.kind in _WEIGHTS and spec.target is not None
        else spec
        for spec in signature.input_specs
    ]
    outputs = [
        replace(spec, target=names.get(spec.target, spec.target))
        if spec.kind is OutputKind.BUFFER_MUTATION and spec.target is not None
        else spec
        for spec in signature.output_specs
    ]
    return derived_program(
        program,
        state_dict={names.get(name, name): value for name, value in program.state_dict.items()},
        constants={names.get(name, name): value for name, value in program.constants.items()},
        example_inputs=program.example_inputs,
        signature=ExportGraphSignature(inputs, outputs),
    )


def with_used_weights(program: ExportedProgram) -> ExportedProgram:
    """Return the program without unused parameters, buffers and constants.

    All names of a tied weight are kept if one of them is used.
    """
    graph_module = copied_graph(program)
    signature = program.graph_signature
    inputs = input_nodes(program, graph_module.graph)
    state, constants = dict(program.state_dict), dict(program.constants)
    tensors = {**constants, **state}
    read = {
        tensor_identity(tensors[spec.target])
        for spec, node in inputs
        if spec.kind in _WEIGHTS and spec.target in tensors and node.users
    }
    kept = []
    for spec, node in inputs:
        is_weight = spec.kind in _WEIGHTS and spec.target in tensors
        if is_weight and tensor_identity(tensors[spec.target]) not in read:
            graph_module.graph.erase_node(node)
            state.pop(spec.target, None)
            constants.pop(spec.target, None)
        else:
            kept.append(spec)
    return derived_program(
        program,
        graph_module=graph_module,
        state_dict=state,
        constants=constants,
        example_inputs=program.example_inputs,
        signature=ExportGraphSignature(kept, list(signature.output_specs)),
    )

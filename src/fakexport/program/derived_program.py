"""A program made from another: the one way to change one and to keep what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.export import ExportedProgram, ExportGraphSignature
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule

from fakexport._torch.program_assembly import guards_code, reassemble, set_guards
from fakexport.conditions import with_device_guards

from .program_copy import copied_graph
from .program_facts import ProgramFacts, facts_of, keep_facts
from .tensor_identity import tensor_identity


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


_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER)


def with_weight_names(program: ExportedProgram, names: Mapping[str, str]) -> ExportedProgram:
    """Return the program with new names for some of its parameters and buffers."""
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
    """Return the program without the parameters, buffers and constants that no node of it reads.

    All names of a tied weight stay where one of them is read.
    """
    graph_module = copied_graph(program)
    signature = program.graph_signature
    nodes = {node.name: node for node in graph_module.graph.find_nodes(op="placeholder")}
    state, constants = dict(program.state_dict), dict(program.constants)
    tensors = {**constants, **state}
    read = {
        tensor_identity(tensors[spec.target])
        for spec in signature.input_specs
        if spec.kind in _WEIGHTS and spec.target in tensors and nodes[spec.arg.name].users
    }
    kept = []
    for spec in signature.input_specs:
        node = nodes[spec.arg.name]
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

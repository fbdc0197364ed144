"""A program without the weights that it does not use."""

from __future__ import annotations

from torch.export import ExportedProgram, ExportGraphSignature
from torch.export.graph_signature import InputKind

from .derived_program import derived_program
from .program_copy import copied_graph
from .tensor_identity import tensor_identity

_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER)


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

"""Copy programs as if they had been saved and loaded."""

from __future__ import annotations

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fakexport.exporting.program import derived_program, facts_of

from .codec.program import program_from_json, program_to_json


def with_own_symbols(program: ExportedProgram) -> ExportedProgram:
    """Return an equal program that knows nothing of its trace, with the same weights and constants.

    torch passes such as `run_decompositions` derive guards from the symbols of the trace, which name the
    inputs of the traced model. A program with other inputs, such as a pipeline stage, needs its own symbols.
    """
    if any(spec.kind is InputKind.CUSTOM_OBJ for spec in program.graph_signature.input_specs):
        return program  # A document does not contain the state of an object.
    made = program_from_json(program_to_json(program), trust=True)
    return derived_program(
        made,
        graph_module=made.graph_module,
        state_dict=program.state_dict,
        constants=program.constants,
        example_inputs=program.example_inputs,
        facts=facts_of(program),
    )

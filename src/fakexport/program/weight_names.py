"""A program whose weights have other names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch.export import ExportedProgram, ExportGraphSignature
from torch.export.graph_signature import InputKind, OutputKind

from .derived_program import derived_program

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

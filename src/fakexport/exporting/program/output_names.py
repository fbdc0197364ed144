"""Paths of a program's outputs in the structure that the program returns."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from fakexport.exporting.interface import leaf_names

from .walk import input_nodes


def output_names(program: ExportedProgram) -> tuple[str, ...]:
    """Return the path of each returned leaf, such as `logits` or `past_key_values.0.1`.

    A single returned value has the path `output`.
    """
    structure = program.call_spec.out_spec
    return () if structure is None else leaf_names(structure)


def user_outputs(program: ExportedProgram) -> list[tuple[str, Any]]:
    """Return the path and the `torch.export` argument spec of each returned leaf."""
    specs = program.graph_signature.output_specs
    arguments = [spec.arg for spec in specs if spec.kind is OutputKind.USER_OUTPUT]
    return list(zip(output_names(program), arguments, strict=True))


def user_inputs(program: ExportedProgram) -> list[tuple[Any, Node]]:
    """Return the `torch.export` argument spec and the placeholder of each user input."""
    return [(spec.arg, node) for spec, node in input_nodes(program) if spec.kind is InputKind.USER_INPUT]

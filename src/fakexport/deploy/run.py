"""Running a bound program on named inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from fakexport._torch.pytree import tree_leaves, tree_unflatten

from .signature import Signature

__all__ = ["call_arguments", "named_outputs", "run"]


def run(program: ExportedProgram, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a bound program gives for named inputs, without gradients.

    Args:
        program: With real weights, on devices that are here.
        inputs: A tensor for each input of the program, by name: `{"input_ids": ...}`. A tensor on another
            device than the program wants is moved.
    Returns:
        The tensors of the output by name, such as `logits`.
    Raises:
        UnsuitableInputs: inputs are missing or unknown, have another dtype or number of dimensions, or sizes
            that the program was not exported for.
        UnboundProgram: the program has no weights.
    """
    module = program.module()  # Refuses first, before anything is moved to a device.
    args, kwargs = call_arguments(program, inputs)
    with torch.no_grad():
        result = module(*args, **kwargs)
    return named_outputs(Signature.of(program), tree_leaves(result))


def named_outputs(signature: Signature, leaves: Sequence[object]) -> dict[str, torch.Tensor]:
    """The tensors among the returned leaves, by name."""
    return {
        output.name: leaf
        for output, leaf in zip(signature.outputs, leaves, strict=True)
        if isinstance(leaf, torch.Tensor)
    }


def call_arguments(
    program: ExportedProgram, inputs: Mapping[str, torch.Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call of a program, from tensors by name, on the devices that it wants.

    Raises:
        UnsuitableInputs: as `run` says.
    """
    signature = Signature.of(program)
    signature.check(inputs)
    tensors = {wanted.name: inputs[wanted.name].to(wanted.device) for wanted in signature.inputs}
    values = [
        spec.arg.value if isinstance(spec.arg, ConstantArgument) else tensors[spec.arg.name]
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    args, kwargs = tree_unflatten(values, program.call_spec.in_spec)
    return args, kwargs

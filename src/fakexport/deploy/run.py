"""Running a bound program on named inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

from fakexport._torch.pytree import tree_leaves, tree_unflatten
from fakexport.program.output_names import output_names

__all__ = ["call_arguments", "run"]


def run(program: ExportedProgram, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a bound program gives for named inputs, without gradients.

    Args:
        program: With real weights, on devices that are here.
        inputs: A tensor for each input of the program, by name: `{"input_ids": ...}`. A tensor on another
            device than the program wants is moved.
    Returns:
        The tensors of the output by name, such as `logits`.
    Raises:
        ValueError: inputs are missing or unknown, or have another dtype or number of dimensions.
        UnboundProgram: the program has no weights.
        Exception: what the program raises for sizes that it was not exported for.
    """
    module = program.module()  # Refuses first, before anything is moved to a device.
    args, kwargs = call_arguments(program, inputs)
    with torch.no_grad():
        result = module(*args, **kwargs)
    outputs = [spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    labels = output_names(program)
    leaves = tree_leaves(result)
    assert len(leaves) == len(outputs) == len(labels)
    return {label: leaf for label, leaf in zip(labels, leaves, strict=True) if isinstance(leaf, torch.Tensor)}


def call_arguments(
    program: ExportedProgram, inputs: Mapping[str, torch.Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call of a program, from tensors by name.

    Raises:
        ValueError: as `run` says.
    """
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    values: list[object] = []
    names: list[str] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT:
            continue
        if isinstance(spec.arg, ConstantArgument):
            values.append(spec.arg.value)
            continue
        if not isinstance(spec.arg, TensorArgument):
            raise ValueError(f"the input {spec.arg.name} is no tensor; only tensors can be given")
        names.append(spec.arg.name)
        values.append(_input(spec.arg.name, nodes[spec.arg.name].meta["val"], inputs))
    if unknown := sorted(inputs.keys() - set(names)):
        raise ValueError(f"the program has no input {unknown[0]!r}; it has {', '.join(names)}")
    args, kwargs = tree_unflatten(values, program.call_spec.in_spec)
    return args, kwargs


def _input(name: str, wanted: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    given = inputs.get(name)
    if given is None:
        raise ValueError(f"the input {name!r} is missing; got {', '.join(sorted(inputs)) or 'none'}")
    if given.dtype != wanted.dtype or given.dim() != wanted.dim():
        raise ValueError(f"the input {name!r} is {_kind(given)}, and the program takes {_kind(wanted)}")
    return given.to(wanted.device)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"

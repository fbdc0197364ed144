"""Prepare the input of Inductor: a program's graph, its arguments, and their memory layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, TensorArgument
from torch.fx import GraphModule

from fakexport._torch.operators.inductor import compile_graph, generated_calls, temporary_files_in
from fakexport._torch.pytree import tree_unflatten
from fakexport._torch.tracing.symbolic_numbers import hint_of
from fakexport.exporting.program import user_inputs
from fakexport.files.processes import lasting_folder

from ..artifact import DeployError
from .faults import failure_of


def graph_of(program: ExportedProgram) -> GraphModule:
    """Return a program's graph. Weights and constants keep their names."""
    graph = program.module(check_guards=False)
    assert isinstance(graph, GraphModule)
    for name, held in program.constants.items():
        # Inductor renames plain attributes but not buffers.
        if (
            isinstance(held, torch.Tensor)
            and hasattr(graph, name)
            and name not in dict(graph.named_buffers())
        ):
            delattr(graph, name)
            graph.register_buffer(name, held)
    return graph


def compiled_files(
    program: ExportedProgram,
    folder: Path,
    *,
    has_weights: bool,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Path, ...]:
    """Compile a prepared program and return the files of the package. `options` are Inductor's."""
    args, kwargs = example_arguments(program)
    try:
        with temporary_files_in(folder.parent, caches=lasting_folder()):
            return compile_graph(
                graph_of(program), args, kwargs, folder, has_weights=has_weights, options=options
            )
    except Exception as error:
        raise failure_of(error) from error


def called_operators(
    program: ExportedProgram, folder: Path, *, options: Mapping[str, Any] = MappingProxyType({})
) -> tuple[str, ...]:
    """Generate the code of a prepared program without compiling it. Return the operators that it calls."""
    args, kwargs = example_arguments(program)
    try:
        with temporary_files_in(folder, caches=lasting_folder()):
            return generated_calls(graph_of(program), args, kwargs, options=options)
    except Exception as error:
        raise failure_of(error) from error


def example_arguments(program: ExportedProgram) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return empty tensors in the structure of the arguments. Inductor reads the sizes from the graph."""
    flat = [
        each.value if isinstance(each, ConstantArgument) else torch.empty(0, device=node.meta["val"].device)
        for each, node in user_inputs(program)
    ]
    args, kwargs = tree_unflatten(flat, program.call_spec.in_spec)
    return args, kwargs


def input_orders(program: ExportedProgram) -> tuple[tuple[int, ...], ...]:
    """Return the memory order of each input tensor: its dimensions from the outermost to the innermost.

    Raises:
        DeployError: Elements of an input share memory, or have gaps between them.
    """
    found = user_inputs(program)
    return tuple(
        _order(node.name, node.meta["val"]) for each, node in found if isinstance(each, TensorArgument)
    )


def laid_out(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor in this memory order, without gaps. It is copied only if necessary."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)


def _order(name: str, value: torch.Tensor) -> tuple[int, ...]:
    order = tuple(sorted(range(value.dim()), key=lambda d: (-_number(value.stride(d)), d)))
    expected: Any = 1
    for dimension in reversed(order):
        if _number(value.shape[dimension]) != 1 and _number(value.stride(dimension)) != _number(expected):
            raise DeployError(
                f"the input `{name}` of the program is a view of a larger tensor or is expanded, and "
                "compiled code would assume the memory layout of the example: export with contiguous "
                "inputs"
            )
        expected = expected * value.shape[dimension]
    return order


def _number(size: Any) -> int:
    """Return the value of a size or stride for the example inputs, or 2 if it is unknown."""
    return int(hint_of(size) or 2) if isinstance(size, torch.SymInt) else int(size)

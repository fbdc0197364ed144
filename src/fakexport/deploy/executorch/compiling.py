"""Compile a bound program to a .pte file."""

from __future__ import annotations

import importlib.metadata
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind
from torch.fx import Node

from fakexport._torch.kernels.grouped_products import TORCHS, TRANSFORMERS
from fakexport._torch.kernels.mxfp4_products import PACKED
from fakexport._torch.tracing.program_assembly import functional_program
from fakexport._torch.tracing.symbolic_numbers import keep_ranges, pending_symbols_dropped
from fakexport.exporting.program import (
    WeightsNotBoundError,
    copied_metadata,
    devices_of_program,
    unbound_names,
    user_inputs,
)
from fakexport.files import new_file
from fakexport.rules.diagnostics import Diagnostic

from ..artifact import CompiledFile, CompileFailure, DeployError, Report, silent
from ..composed_program import Composition, Compositions, all_true, composed, grouped_product, packed_product
from ..signature import InputTensor, Signature
from ..unsupported import assertion_notes, findings_of_objects
from .description import METHOD, Backend, Description, write_checked
from .findings import (
    calls_outside_of_backend,
    failed_instruction,
    findings_of_graph,
    lowering_failure,
    short_plans,
    unbounded_inputs,
)
from .native_log import native_log
from .trial import FailedCall, call_failure, edge_manager, planned_sizes, runs_in_torch, trial_arguments

_KEEPS_BUFFERS = (
    "the program mutates buffers: they keep their values between calls while the program is loaded"
)
_SIMPLE = (bool, int, float, str, type(None))


def compile_executorch(
    program: ExportedProgram,
    path: str | os.PathLike[str],
    *,
    backend: Backend = "portable",
    report: Report | None = None,
) -> CompiledFile:
    """Lower a program for ExecuTorch, and write a file with the program and its weights atomically.

    Before writing, ExecuTorch's runtime calls the program once in this process, because some kernels reject
    arguments only at run time.

    Args:
        program: A bound program on the CPU, with an upper bound for each dynamic size. Not changed.
        path: The .pte file to write.
        backend: `portable`: ExecuTorch's own kernels. `xnnpack`: XNNPACK for operators that it supports, and
            ExecuTorch's kernels for the others.
        report: Called with a line of text for each step.

    Raises:
        CompileFailure: ExecuTorch cannot run the program (FE801).
        WeightsNotBoundError: The program has no weights.
        DeployError: The program is for other devices, or has an input that a .pte file cannot store.
        FileWriteError: The file cannot be written; an existing file is kept.
    """
    begun, tell = time.monotonic(), report or silent
    made = lowered(program, backend, tell)
    tell("calling the program once in the ExecuTorch runtime")
    notes = (*made.notes, *notes_of_call(made))
    with new_file(path) as file:
        write_checked(file, made.content)
    return CompiledFile.of(Path(path), [Path(path)], begun, notes=notes)


@dataclass(frozen=True)
class Lowered:
    """A program as ExecuTorch will run it: with replaced operators, and with the calls outside of backends.

    `manager` is ExecuTorch's `ExecutorchProgramManager`. `content` is the file without a checksum.
    """

    program: ExportedProgram
    manager: Any
    content: bytes
    outside: tuple[Node, ...]
    notes: tuple[str, ...]


def lowered(program: ExportedProgram, backend: Backend, tell: Report = silent) -> Lowered:
    """Lower a bound program on the CPU. Nothing is written or called. Raises as `compile_executorch` does."""
    _refuse(program)
    signature = Signature.of(program)
    _fail((*findings_of_objects(program, "FE801", "ExecuTorch"), *unbounded_inputs(program)))
    with pending_symbols_dropped(program):
        program = composed(program, WITHOUT_KERNEL)
        tell(f"lowering for ExecuTorch, {backend}")
        functional = _functional(program)
        versions = {name: importlib.metadata.version(name) for name in ("fakexport", "torch", "executorch")}
        description = Description(signature, _arguments(program), _written(functional), backend, versions)
        edge = _edge(functional, backend, description)
        outside = calls_outside_of_backend(edge.exported_program().graph_module)
        with _lowering(functional), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Mutation on a buffer in the model is detected", UserWarning)
            manager = edge.to_executorch()
        content = bytes(manager.buffer)
        tensors = _tensors(description)
        _fail(tuple(short_plans(tensors, planned_sizes(content, list(tensors)))))
        notes = tuple(assertion_notes(program, "ExecuTorch"))
        if any(spec.kind is OutputKind.BUFFER_MUTATION for spec in functional.graph_signature.output_specs):
            notes = (_KEEPS_BUFFERS, *notes)
    return Lowered(program, manager, content, outside, notes)


def _refuse(program: ExportedProgram) -> None:
    if elsewhere := [device for device in devices_of_program(program) if device != "cpu"]:
        moves = " ".join(f"--to {device}=cpu" for device in elsewhere)
        raise DeployError(
            f"the program is for {', '.join(elsewhere)}, but ExecuTorch compiles programs for the cpu: "
            f"`fakexport retarget PROGRAM.pt2 {moves} -o CPU.pt2`"
        )
    if names := unbound_names(program):
        raise WeightsNotBoundError(names)


@contextmanager
def _lowering(program: ExportedProgram) -> Iterator[None]:
    """Convert any error from torch's or ExecuTorch's passes to a `CompileFailure`."""
    try:
        yield
    except Exception as error:
        raise CompileFailure((lowering_failure(program, error),)) from error


def _functional(program: ExportedProgram) -> ExportedProgram:
    with _lowering(program):
        functional = functional_program(program)
    keep_ranges(functional)  # ExecuTorch plans memory for the maximum in these ranges.
    return copied_metadata(program, functional)


def _edge(program: ExportedProgram, backend: Backend, description: Description) -> Any:
    """Lower a program to ExecuTorch's `EdgeProgramManager`, and check its operators."""
    with native_log():  # When the runtime is loaded, it inspects the processor and logs missing features.
        from executorch.runtime import Runtime

        kernels = Runtime.get().operator_registry.operator_names
    with _lowering(program), native_log():
        manager = edge_manager(program, backend, {METHOD: description.to_json()})
    edge = manager.exported_program()
    _fail(findings_of_graph(edge.graph_module, kernels))
    _keep_values_of_buffers(edge)
    return manager


def _keep_values_of_buffers(edge: ExportedProgram) -> None:
    """Make ExecuTorch store initial values of mutated buffers, as its `InitializedMutableBufferPass` does."""
    signature = edge.graph_signature
    written = set(signature.buffers_to_mutate.values())
    for node in edge.graph.find_nodes(op="placeholder"):
        if signature.inputs_to_buffers.get(node.name) in written:
            node.meta["et_init_buffer"] = True


def notes_of_call(made: Lowered) -> tuple[str, ...]:
    """Call a lowered program once, with zeros if it has no example inputs, which may be invalid.

    Return a note if torch rejects them too. If only ExecuTorch does, raise a `CompileFailure`.
    """
    with pending_symbols_dropped(made.program):
        arguments = trial_arguments(made.program)
        failed = call_failure(made.content, arguments)
        if failed is None:
            return ()
        if runs_in_torch(made.program, arguments):
            _fail((_call_finding(made, failed),))
    return (f"the program has no example inputs to test with, and a call with zeros failed: {failed.reason}",)


def _call_finding(made: Lowered, failed: FailedCall) -> Diagnostic:
    found = None
    if failed.instruction is not None:
        graph_module = made.manager.exported_program().graph_module
        found = failed_instruction(graph_module, failed.instruction, failed.reason)
    return found or lowering_failure(made.program, DeployError(failed.reason))


def _fail(found: tuple[Diagnostic, ...]) -> None:
    if found:
        raise CompileFailure(found)


def _arguments(program: ExportedProgram) -> tuple[dict[str, Any], ...]:
    """Return the arguments of ExecuTorch's method: the input tensors, and constants from the export."""
    taken: list[dict[str, Any]] = []
    for each, _ in user_inputs(program):
        if not isinstance(each, ConstantArgument):
            taken.append({"input": each.name})
        elif isinstance(each.value, _SIMPLE):
            taken.append({"value": each.value})
        else:
            raise DeployError(f"the input {each.name} is {each.value!r}, which a .pte file cannot store")
    return tuple(taken)


def _tensors(description: Description) -> dict[int, InputTensor]:
    """Map the index of each tensor argument of the method to the tensor's description."""
    known = {tensor.name: tensor for tensor in description.signature.inputs}
    named = enumerate(argument.get("input") for argument in description.arguments)
    return {index: known[name] for index, name in named if name is not None}


def _written(program: ExportedProgram) -> tuple[str, ...]:
    specs = program.graph_signature.output_specs
    return tuple(str(spec.target) for spec in specs if spec.kind is OutputKind.USER_INPUT_MUTATION)


def _empty(node: Node) -> Composition | None:
    """Replace `empty_like` with `zeros_like`, which has no uninitialized memory."""
    (source, *others) = node.args
    assert isinstance(source, Node)
    return None if others else Composition((source,), partial(cast(Any, torch.zeros_like), **node.kwargs))


def _sort(node: Node) -> Composition | None:
    """Replace an ascending sort of a 1-D tensor with `topk`. The order of equal elements may differ."""
    (source, *others) = node.args
    assert isinstance(source, Node)
    is_plain = others in ([], [-1], [0], [-1, False], [0, False]) and not node.kwargs
    return Composition((source,), _sorted) if is_plain and source.meta["val"].dim() == 1 else None


def _sorted(values: torch.Tensor) -> Any:
    return tuple(torch.topk(values, values.shape[0], dim=-1, largest=False, sorted=True))


def _histogram(node: Node) -> Composition | None:
    """Replace `histc` if it counts integers from 0 to `bins - 1`, as MoE layers count tokens."""
    source, bins, lowest, highest = (*node.args, None, None, None)[:4]
    if node.kwargs or not isinstance(source, Node) or not isinstance(bins, int):
        return None
    cast = source.args[0] if source.target is torch.ops.aten.to.dtype else None
    is_whole = isinstance(cast, Node) and not cast.meta["val"].dtype.is_floating_point
    if not is_whole or (lowest, highest) != (0, bins - 1):
        return None

    def counted(numbers: torch.Tensor) -> torch.Tensor:
        own = torch.arange(bins, dtype=numbers.dtype, device=numbers.device)
        return (numbers[:, None] == own).sum(dim=0).to(numbers.dtype)

    return Composition((source,), counted)


WITHOUT_KERNEL: Compositions = MappingProxyType(
    {
        "aten._is_all_true.default": all_true,
        "aten.empty_like.default": _empty,
        "aten.histc.default": _histogram,
        "aten.sort.default": _sort,
        TORCHS: grouped_product,
        TRANSFORMERS: grouped_product,
        PACKED: packed_product,
    }
)

"""Summarize a program: operators, weights, inputs, outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, OutputKind, OutputSpec

from fakexport._torch.emulation.wrapper_subclasses import inner_tensors
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.error import InvalidType
from fakexport.exporting.interface import SymbolRange, ValueSummary
from fakexport.exporting.program.module_summary import ModuleSummary, inspect_module
from fakexport.exporting.program.node_names import operator_name
from fakexport.exporting.program.output_names import output_names
from fakexport.exporting.program.program_facts import facts_of
from fakexport.exporting.program.tensor_identity import tensor_identity
from fakexport.exporting.program.tensor_spec import Spelling, plain_name, symbol_ranges, tensors_in
from fakexport.exporting.program.walk import Visit, walk
from fakexport.exporting.program.written_state import written_state

_HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True)
class TensorTotals:
    """The totals for tensors of one kind. Tied tensors are counted once.

    Args:
        count: Number of tensors.
        elements: Number of elements in all of these tensors. If the model's config specifies quantization,
            this is the number of parameters before quantization packed them. Scales are not counted.
        bytes_per_device: Bytes on each device, by name.
    """

    count: int
    elements: int
    bytes_per_device: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """Bytes on all devices together."""
        return sum(self.bytes_per_device.values())


@dataclass(frozen=True)
class ProgramSummary:
    """A summary of one program.

    Args:
        node_count: Number of all nodes: placeholders, calls and outputs, including nodes in control-flow
            subgraphs.
        call_count: Number of nodes that call an operator.
        operators: Number of calls by operator name, sorted by name.
        parameters: Parameters in the signature, trainable or not.
        buffers: Buffers, persistent or not.
        constants: Tensors lifted from the graph (tensor literals, plain attributes).
        state: Parameters, buffers and constants that the program writes to, such as its own cache.
        inputs: The caller's inputs, in order, including constants.
        outputs: Mutated buffers and inputs, followed by the results.
        range_constraints: The range of each symbol, sorted by name.
        devices: Names of all devices in the program, sorted.
    """

    node_count: int
    call_count: int
    operators: Mapping[str, int]
    parameters: TensorTotals
    buffers: TensorTotals
    constants: TensorTotals
    state: TensorTotals
    inputs: tuple[ValueSummary, ...]
    outputs: tuple[ValueSummary, ...]
    range_constraints: Mapping[str, SymbolRange]
    devices: tuple[str, ...]

    def held_bytes(self) -> Counter[str]:
        """Return the bytes of parameters, buffers and constants on each device."""
        total: Counter[str] = Counter()
        for totals in (self.parameters, self.buffers, self.constants):
            total.update(totals.bytes_per_device)
        return total


def summarise(program: ExportedProgram) -> ProgramSummary:
    """Summarize a program, without running it and without reading data.

    Sizes, dtypes and devices are read from the graph, so they are also correct for a program with fake or
    placeholder weights. Tied weights are detected in `program.state_dict` and `program.constants`. This takes
    about 0.1 s for 10,000 nodes.
    """
    visits = list(walk(program))
    operators = Counter(operator_name(visit.node) for visit in visits if visit.node.op == "call_function")
    values = {visit.node.name: visit.node.meta.get("val") for visit in visits if not visit.graph}
    spelling = Spelling()
    inputs = program.graph_signature.input_specs
    held = {kind: [spec for spec in inputs if spec.kind is kind] for kind in _HELD}
    written = written_state(program)
    state = [spec for specs in held.values() for spec in specs if spec.target in written]

    parameters = _totals(program, held[InputKind.PARAMETER], values)
    if (unpacked := facts_of(program).unpacked_parameters) is not None:
        parameters = replace(parameters, elements=unpacked)
    return ProgramSummary(
        node_count=len(visits),
        call_count=operators.total(),
        operators=dict(sorted(operators.items())),
        parameters=parameters,
        buffers=_totals(program, held[InputKind.BUFFER], values),
        constants=_totals(program, held[InputKind.CONSTANT_TENSOR], values),
        state=_totals(program, state, values),
        inputs=tuple(
            _value_summary(spec, spec.arg.name, values, spelling)
            for spec in inputs
            if spec.kind is InputKind.USER_INPUT
        ),
        outputs=tuple(_outputs(program, values, spelling)),
        range_constraints=symbol_ranges(program, spelling),
        devices=_devices(visits),
    )


def _totals(program: ExportedProgram, specs: Iterable[InputSpec], values: Mapping[str, Any]) -> TensorTotals:
    tensors: dict[Hashable, torch.Tensor] = {}
    for spec in specs:
        value = values.get(spec.arg.name)
        if isinstance(value, torch.Tensor):
            held = program.state_dict.get(spec.target or "", program.constants.get(spec.target or ""))
            tensors[tensor_identity(held) if isinstance(held, torch.Tensor) else spec.arg.name] = value
    bytes_per_device: Counter[str] = Counter()
    plain = [inner for tensor in tensors.values() for _, inner in inner_tensors(tensor)]
    for tensor in plain:
        bytes_per_device[str(tensor.device)] += tensor.numel() * tensor.itemsize
    return TensorTotals(
        count=len(plain),
        elements=sum(tensor.numel() for tensor in tensors.values()),
        bytes_per_device=dict(sorted(bytes_per_device.items())),
    )


def _outputs(
    program: ExportedProgram, values: Mapping[str, Any], spelling: Spelling
) -> Iterator[ValueSummary]:
    names = iter(output_names(program))
    for spec in program.graph_signature.output_specs:
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT):
            name = next(names, spec.arg.name)
        else:
            name = spec.target or spec.arg.name
        yield _value_summary(spec, name, values, spelling)


def _value_summary(
    spec: InputSpec | OutputSpec, name: str, values: Mapping[str, Any], spelling: Spelling
) -> ValueSummary:
    node, kind = spec.arg.name, spec.kind.name.lower()
    value = spec.arg.value if isinstance(spec.arg, ConstantArgument) else values.get(node)
    if isinstance(value, torch.Tensor):
        tensor = spelling.tensor(value)
        return ValueSummary(name, kind, node, tensor.dtype, tensor.shape, tensor.device)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        python_type = type(value).__name__.removeprefix("Sym").lower()
        return ValueSummary(name, kind, node, python_type, value=spelling.size(value))
    if isinstance(value, (bool, int, float, str, torch.dtype, torch.device)) or value is None:
        return ValueSummary(name, kind, node, type(value).__name__, value=plain_name(value))
    return ValueSummary(name, kind, node, type(value).__name__)


def _devices(visits: Iterable[Visit]) -> tuple[str, ...]:
    devices: set[torch.device] = set()
    for visit in visits:
        devices.update(tensor.device for tensor in tensors_in(visit.node.meta.get("val")))
    return tuple(sorted(map(str, devices)))


@overload
def summary_of(module_or_program: nn.Module) -> ModuleSummary: ...
@overload
def summary_of(module_or_program: ExportedProgram) -> ProgramSummary: ...


@one_at_a_time
def summary_of(module_or_program: nn.Module | ExportedProgram) -> ModuleSummary | ProgramSummary:
    """Describe a module or a program: parameters, bytes per device, and its submodules or operators.

    Args:
        module_or_program: A module or program, real or fake. No values are read.
    Returns:
        For a module, the tree of its modules with repeated blocks merged. For a program, its
            `ProgramSummary`.
    Raises:
        TypeError: the argument is neither a module nor an ExportedProgram.

    Example:
        >>> summary(nn.Linear(4, 2)).total_parameters
        10
    """
    if isinstance(module_or_program, nn.Module):
        return inspect_module(module_or_program)
    if isinstance(module_or_program, ExportedProgram):
        return summarise(module_or_program)
    raise InvalidType(f"expected a module or an ExportedProgram, got {type(module_or_program).__name__}")

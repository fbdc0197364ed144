"""Compute the values of constants in a program whose tensors are fake."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fakexport._torch.emulation.fake_tensors import FakeTensor, real_to_fake
from fakexport._torch.emulation.lifted_constants import note_lifted_value
from fakexport._torch.operators.real_execution import real_execution
from fakexport.emulation.history import (
    DataReadError,
    Provenance,
    constant_value,
    is_of_zeros,
    remember_filled,
    set_constant_value,
    withhold_value,
)
from fakexport.exporting.program import UnboundConstant, input_nodes, plain_name, reading_span, written_state

LARGEST_CONSTANT_BYTES = 2**30
"""Size limit in bytes. The values of larger constants are not computed."""

LARGEST_STATE_BYTES = 2**20
"""Size limit in bytes for a zero-initialized buffer that the program writes to, such as a cache. A larger
buffer stays fake.
"""

_FIRST_SENTENCE_END = re.compile(
    r"\.\s"
)  # For a missing kernel, torch's message continues with a list of 40 backends.


@dataclass(frozen=True)
class Recovered:
    """The constants of a program: those that have a value, and those that have none.

    Args:
        names: The constants that have a value, in the order of `program.constants`.
        bytes: Total size of these values. Memory that several constants share is counted once.
        unbound: The constants that have no value, in the same order.
    """

    names: tuple[str, ...] = ()
    bytes: int = 0
    unbound: tuple[UnboundConstant, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every constant has a value."""
        return not self.unbound


def recover_constants(program: ExportedProgram) -> Recovered:
    """Set the values of a fake program's constants if the model's code determines them.

    Constants are tensors that no checkpoint contains: non-persistent buffers, plain tensor attributes,
    literals. A constant on the CPU becomes a real tensor. A constant on a virtual device becomes a new fake
    tensor whose value `constant_value` returns. If the code does not determine the value, the constant stays
    fake, and `constant_value` raises an error. Values are never guessed. A large buffer of zeros that the
    program writes to also stays fake, so that it uses no memory; its value is known. Tied names still share
    one tensor. Parameters, persistent buffers, real constants, other objects and the tensors of the captured
    module are not changed.

    Args:
        program: The program of a fake module. Its `constants` are changed in place.
    Returns:
        The constants that have a value, and the other constants with the reasons why they have none.
    Reports:
        FE601, FE602, FE603, through `diagnose.diagnose_constants`.
    """
    provenance = _provenance(program)
    inputs = {
        spec.target: node
        for spec, node in input_nodes(program)
        if spec.kind in (InputKind.CONSTANT_TENSOR, InputKind.BUFFER)
    }
    recovered: dict[str, int] = {}
    unbound: dict[str, UnboundConstant] = {}
    for names in _names_by_tensor(program):
        constant = program.constants[names[0]]
        nodes = [inputs[name] for name in names if name in inputs]
        is_state = _is_large_zeros(constant) and not written_state(program).isdisjoint(names)
        outcome = _zero(constant) if is_state else value_or_reason(constant, provenance)
        if isinstance(outcome, torch.Tensor):
            recovered |= dict.fromkeys(names, 0) | {names[0]: _held_bytes(constant)}
        else:
            span = next(filter(None, map(reading_span, nodes)), None)
            unbound |= {name: replace(outcome, name=name, span=span) for name in names}
        if isinstance(constant, FakeTensor):
            carrier = _filled(constant, outcome) if is_state else _carrier(constant, outcome)
            program.constants.update(dict.fromkeys(names, carrier))
            for node in nodes:
                note_lifted_value(node, carrier)
    return Recovered(
        names=tuple(name for name in program.constants if name in recovered),
        bytes=sum(recovered.values()),
        unbound=tuple(unbound[name] for name in program.constants if name in unbound),
    )


def _provenance(program: ExportedProgram) -> Provenance:
    names = set(program.graph_signature.parameters)
    state = program.state_dict
    parameters = {n: t for n, t in state.items() if n in names or isinstance(t, nn.Parameter)}
    buffers = {n: t for n, t in state.items() if n not in parameters and isinstance(t, torch.Tensor)}
    return Provenance(parameters, buffers)


def _names_by_tensor(program: ExportedProgram) -> list[list[str]]:
    names: dict[int, list[str]] = {}
    for name, constant in program.constants.items():
        if isinstance(constant, torch.Tensor):
            names.setdefault(id(constant), []).append(name)
    return list(names.values())


def value_or_reason(constant: torch.Tensor, provenance: Provenance) -> torch.Tensor | UnboundConstant:
    """Return the value of a constant as a new real tensor, or the reason why it has no value."""
    if not isinstance(constant, FakeTensor):
        return _unknown("it is on the meta device") if constant.is_meta else constant
    if (size := _held_bytes(constant)) > LARGEST_CONSTANT_BYTES:
        return _unknown(
            f"it has {size:,} bytes; the limit for computing constants is {LARGEST_CONSTANT_BYTES:,}"
        )
    if (reason := _reason(constant, provenance)) is not None:
        return replace(reason, recipe=provenance.recipe_of(constant))
    try:
        value = constant_value(constant)
    except DataReadError as error:
        return _unknown(_FIRST_SENTENCE_END.split(error.reason, maxsplit=1)[0])
    if (value.shape, value.dtype, value.layout) != (constant.shape, constant.dtype, constant.layout):
        return _unknown(f"replay returned {_kind(value)}, expected {_kind(constant)}")
    return _own_copy(value, constant)


def _reason(constant: torch.Tensor, provenance: Provenance) -> UnboundConstant | None:
    """Return why the model's code does not determine the value of a constant, or None if it does."""
    found = provenance.dependence_of(constant)
    if found is None:
        return None
    source, operator = found.source, found.operator
    match found.kind:
        case "memory":
            detail = f"it shares the memory of {source}, whose values come from a checkpoint"
            return UnboundConstant("", "parameter", detail, weight=source)
        case "parameter":
            detail = f"it is computed from the parameter {source}, which {operator} reads"
            return UnboundConstant("", "parameter", detail, weight=source, operator=operator)
        case "random":
            detail = f"it depends on {source}, which draws random numbers without a seed"
            return UnboundConstant("", "random", detail, operator=operator)
        case "uninitialised":
            return _unknown(f"it reads uninitialized memory of {source}")
        case "unknown":
            return _unknown(f"it depends on {source}")


def _unknown(detail: str) -> UnboundConstant:
    return UnboundConstant("", "unknown", detail)


def _carrier(constant: FakeTensor, outcome: torch.Tensor | UnboundConstant) -> torch.Tensor:
    """Return the tensor that represents a constant in the program, without changing the module's tensor."""
    if not isinstance(outcome, UnboundConstant):
        if constant.device.type == "cpu":
            return outcome
        fake = real_to_fake(constant.fake_mode, outcome, constant.device)
        set_constant_value(fake, outcome)
        return fake
    with constant.fake_mode, torch.no_grad():
        view = constant.detach()  # Shares memory, so that a tie with a weight is still detected.
    withhold_value(view, outcome.detail)
    return view


def _is_large_zeros(constant: torch.Tensor) -> bool:
    is_large = isinstance(constant, FakeTensor) and _held_bytes(constant) > LARGEST_STATE_BYTES
    return is_large and constant.is_contiguous() and is_of_zeros(constant)


def _zero(like: torch.Tensor) -> torch.Tensor:
    with real_execution():
        return torch.zeros((), dtype=like.dtype)


def _filled(constant: FakeTensor, element: torch.Tensor | UnboundConstant) -> torch.Tensor:
    with constant.fake_mode:
        fake = torch.empty_like(constant)
    assert isinstance(element, torch.Tensor)
    remember_filled(fake, element)
    return fake


def _own_copy(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a copy of the value with the memory layout of `like`. Bytes between the elements are zero."""
    if value.layout is not torch.strided or value.is_quantized:
        return value
    with real_execution():
        memory = torch.zeros(_held_bytes(like) // like.itemsize, dtype=value.dtype)
        once = [slice(0, 1) if stride == 0 else slice(None) for stride in like.stride()]
        elements = value[tuple(once)]  # All elements of an expanded dimension are at the same address.
        memory.as_strided(elements.shape, like.stride()).copy_(elements)
        # Not a view: if gradients are enabled, autograd forbids in-place writes to a view that was created
        # while they were disabled.
        return memory.new_empty(0).set_(memory.untyped_storage(), 0, like.shape, like.stride())


def _held_bytes(tensor: torch.Tensor) -> int:
    """Return the number of bytes from the first to the last element. Expanded dimensions add no bytes."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return tensor.numel() * tensor.itemsize
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def _kind(tensor: torch.Tensor) -> str:
    return f"{plain_name(tensor.dtype)}{list(tensor.shape)}"

"""Putting the true values of its constants into a program of fake tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from fakexport._torch.fake_tensors import FakeTensor, real_to_fake
from fakexport._torch.lifted_constants import note_lifted_value
from fakexport._torch.real_execution import real_execution
from fakexport.capture.recovered import Recovered, UnboundConstant
from fakexport.diagnostics import Span
from fakexport.history import (
    Provenance,
    UnreplayableRead,
    is_of_zeros,
    remember_filled,
    remember_value,
    value_of,
    withhold_value,
)
from fakexport.program import source_span, written_state

LARGEST_CONSTANT_BYTES = 2**30
"""A constant that takes more memory than this is not computed."""

LARGEST_STATE_BYTES = 2**20
"""A larger buffer of zeros that the program writes, such as a cache, takes no memory until it is bound."""

_FIRST_SENTENCE_END = re.compile(r"\.\s")  # Of a missing kernel, torch goes on with a list of 40 backends.


def recover_constants(program: ExportedProgram) -> Recovered:
    """Put the true values of the constants into a fake program, wherever the model's code determines them.

    Constants are what no checkpoint carries: non-persistent buffers, plain tensor attributes, literals. One
    on the CPU becomes a real tensor. One on a virtual device becomes a new fake tensor, whose value
    `fake.value_of` returns. One that the code does not determine stays fake, and `value_of` raises for it:
    nothing is guessed. A large buffer of zeros that the program writes into stays fake as well, with its
    value, and takes no memory. Names of one tensor go on sharing one. Parameters and persistent buffers stay
    as they are, and so do real constants, objects that are not tensors, and the tensors of the captured
    module.

    Args:
        program: A program of a module that was built fake; its `constants` are changed in place.
    Returns:
        What has a value now, and what has none and why.
    Reports:
        FE601, FE602, FE603, through `diagnose.diagnose_constants`.
    """
    provenance = _provenance(program)
    inputs = dict(_inputs(program))
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
            span = next((found for node in nodes if (found := _reading_span(node))), None)
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
    """Return the names of the tensor constants, those of one tensor together."""
    names: dict[int, list[str]] = {}
    for name, constant in program.constants.items():
        if isinstance(constant, torch.Tensor):
            names.setdefault(id(constant), []).append(name)
    return list(names.values())


def _inputs(program: ExportedProgram) -> Iterator[tuple[str, Node]]:
    """Yield the placeholder of each constant that the graph takes, by name of the constant."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in program.graph_signature.input_specs:
        if spec.kind in (InputKind.CONSTANT_TENSOR, InputKind.BUFFER) and spec.target is not None:
            yield spec.target, nodes[spec.arg.name]


def _reading_span(placeholder: Node) -> Span | None:
    """Return the user's line of the first node that takes the constant and has one."""
    return next((span for user in placeholder.users if (span := source_span(user))), None)


def value_or_reason(constant: torch.Tensor, provenance: Provenance) -> torch.Tensor | UnboundConstant:
    """Return the value of a constant, real and with memory of its own; or why there is none."""
    if not isinstance(constant, FakeTensor):
        return _unknown("it is on the meta device") if constant.is_meta else constant
    if (size := _held_bytes(constant)) > LARGEST_CONSTANT_BYTES:
        return _unknown(f"it takes {size:,} bytes; up to {LARGEST_CONSTANT_BYTES:,} are computed")
    if (reason := _reason(constant, provenance)) is not None:
        return replace(reason, recipe=provenance.recipe_of(constant))
    try:
        value = value_of(constant)
    except UnreplayableRead as error:
        return _unknown(_FIRST_SENTENCE_END.split(error.reason, maxsplit=1)[0])
    if (value.shape, value.dtype, value.layout) != (constant.shape, constant.dtype, constant.layout):
        return _unknown(f"its recording produces {_kind(value)} for a tensor of {_kind(constant)}")
    return _own_copy(value, constant)


def _reason(constant: torch.Tensor, provenance: Provenance) -> UnboundConstant | None:
    """Return why the code does not determine a value, or None if it does."""
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
            detail = f"it depends on what {source} draws, without a seed"
            return UnboundConstant("", "random", detail, operator=operator)
        case "mixed":
            detail = (
                f"it depends on what {source} draws after a draw on another device: the devices share a "
                "generator only if the model is built on the CPU"
            )
            return UnboundConstant("", "random", detail, operator=operator)
        case "uninitialised":
            return _unknown(f"it depends on memory of {source} that was never written")
        case "unknown":
            return _unknown(f"it depends on {source}")


def _unknown(detail: str) -> UnboundConstant:
    return UnboundConstant("", "unknown", detail)


def _carrier(constant: FakeTensor, outcome: torch.Tensor | UnboundConstant) -> torch.Tensor:
    """Return the tensor that stands for the constant in the program. The captured module keeps its own."""
    if not isinstance(outcome, UnboundConstant):
        if constant.device.type == "cpu":
            return outcome
        fake = real_to_fake(constant.fake_mode, outcome, constant.device)
        remember_value(fake, outcome)
        return fake
    with constant.fake_mode, torch.no_grad():
        view = constant.detach()  # Shares memory, so that a tie with a weight can still be seen.
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
    """Return the value in memory of its own, laid out as `like` is; bytes between the elements are zero."""
    if value.layout is not torch.strided or value.is_quantized:
        return value
    with real_execution():
        memory = torch.zeros(_held_bytes(like) // like.itemsize, dtype=value.dtype)
        once = [slice(0, 1) if stride == 0 else slice(None) for stride in like.stride()]
        elements = value[tuple(once)]  # An expanded dimension has one place to write to.
        memory.as_strided(elements.shape, like.stride()).copy_(elements)
        # Not a view: autograd forbids in-place writes, with gradients, to a view made without them.
        return memory.new_empty(0).set_(memory.untyped_storage(), 0, like.shape, like.stride())


def _held_bytes(tensor: torch.Tensor) -> int:
    """Return bytes from the first to the last element: an expanded dimension takes none."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return tensor.numel() * tensor.itemsize
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"

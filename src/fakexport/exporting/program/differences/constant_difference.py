"""Compare the constants of two programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fakexport._torch.tracing.script_objects import class_name, pickled_object, state_text
from fakexport.emulation.history import bits
from fakexport.exporting.interface import ConstantDifference
from fakexport.exporting.program.canonical import CanonicalNode, CanonicalProgram
from fakexport.exporting.program.constant_content import data_of

# Kinds of inputs that are compared here rather than with the signature.
CONSTANT_KINDS = ("CONSTANT_TENSOR", "CUSTOM_OBJ")


@dataclass(frozen=True)
class ObjectState:
    """The state of an object of a C++ class: as pickled bytes (None if it cannot be read), and as text."""

    class_name: str
    content: bytes | None
    text: str


ConstantValue = torch.Tensor | ObjectState | None


def constant_values(constants: Mapping[str, Any]) -> dict[str, ConstantValue]:
    """Return the values of a program's constants by name, as plain tensors on the CPU or states of objects.

    The value of a fake tensor is computed from its history, so a constant that is real on the CPU can be
    compared with a fake one on a virtual device. None means that the value is unknown.
    """
    return {name: _value(constant) for name, constant in constants.items()}


def _value(constant: Any) -> ConstantValue:
    if not isinstance(constant, torch.ScriptObject):
        data = data_of(constant)
        return None if data is None else data.detach().cpu()
    name = class_name(constant)
    try:
        return ObjectState(name, pickled_object(constant), state_text(constant))
    except ValueError:
        return ObjectState(name, None, "")


def constant_differences(
    a: CanonicalProgram,
    b: CanonicalProgram,
    values_a: Mapping[str, ConstantValue],
    values_b: Mapping[str, ConstantValue],
    contents_a: Mapping[str, str],
    contents_b: Mapping[str, str],
) -> Iterator[ConstantDifference]:
    """Yield the differences between constants (tensors, objects, non-persistent buffers), by name."""
    nodes_a, nodes_b = _constants(a), _constants(b)
    for name in sorted(nodes_a.keys() | nodes_b.keys() | contents_a.keys() | contents_b.keys()):
        node_a, node_b = nodes_a.get(name), nodes_b.get(name)
        if (node_a is None) != (node_b is None):
            yield ConstantDifference(name, "presence", _text(node_a), _text(node_b))
            continue
        of_a, of_b = (node.tensors if node else () for node in (node_a, node_b))
        changes = [change for old, new in zip(of_a, of_b, strict=False) for change in old.changes_to(new)]
        yield from (ConstantDifference(name, *change) for change in changes)
        old, new = contents_a.get(name), contents_b.get(name)
        if not changes and old is not None and new is not None and old != new:
            values = list(_value_changes(name, values_a.get(name), values_b.get(name)))
            yield from values or [ConstantDifference(name, "value", old, new)]


def _constants(program: CanonicalProgram) -> dict[str, CanonicalNode]:
    return {
        port.name: program.nodes[port.index]
        for port in program.inputs
        if port.kind in CONSTANT_KINDS and port.index is not None
    }


def _text(node: CanonicalNode | None) -> str:
    return node.value if node else ""


def _value_changes(name: str, a: ConstantValue, b: ConstantValue) -> Iterator[ConstantDifference]:
    if isinstance(a, ObjectState) and isinstance(b, ObjectState):
        yield from _state_change(name, a, b)
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return
    if a.shape != b.shape or a.dtype != b.dtype:
        return
    differs = (bits(a) != bits(b)).any(-1)
    if differs.any():
        place = tuple(differs.nonzero()[0].tolist())
        where = f" at {list(place)}" if place else ""
        old, new = _element(a, place), _element(b, place)
        if old == new:  # NaNs with different bits.
            old, new = (f"{old} ({bits(each[place]).numpy().tobytes().hex()})" for each in (a, b))
        yield ConstantDifference(name, "value", f"{old}{where}", f"{new}{where}")


def _state_change(name: str, a: ObjectState, b: ObjectState) -> Iterator[ConstantDifference]:
    """Yield the differences between two objects of C++ classes. Objects with unknown state count as equal."""
    if a.class_name != b.class_name:
        yield ConstantDifference(name, "class", a.class_name, b.class_name)
    elif None not in (a.content, b.content) and a.content != b.content:
        yield ConstantDifference(name, "state", a.text, b.text)


def _element(value: torch.Tensor, place: tuple[int, ...]) -> str:
    element = value[place]
    return str((element.double() if element.is_floating_point() else element).item())

"""What differs in the constants that two programs carry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fakexport._torch.script_objects import class_name, pickled_object, state_text
from fakexport.fake import is_fake
from fakexport.history import UnreplayableRead, value_of
from fakexport.program.canonical import CanonicalNode, CanonicalProgram
from fakexport.program.differences.program_difference import ConstantDifference

# Kinds of inputs that are compared here, and not as a part of the signature.
CONSTANT_KINDS = ("CONSTANT_TENSOR", "CUSTOM_OBJ")


@dataclass(frozen=True)
class ObjectState:
    """An object of a C++ class.

    Args:
        class_name: Its class.
        content: Its state, pickled; None if it has none that can be read.
        text: Its state as text.
    """

    class_name: str
    content: bytes | None
    text: str


ConstantValue = torch.Tensor | ObjectState | None


def constant_values(constants: Mapping[str, Any]) -> dict[str, ConstantValue]:
    """Return the values of a program's constants by name: plain tensors on the CPU, and states of objects.

    A fake has a value if its history determines it: one model's constant is real on the CPU and fake on a
    virtual device. None: the value is unknown.
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
) -> Iterator[ConstantDifference]:
    """Yield by name what differs in lifted tensors and objects, and in buffers that no checkpoint holds.

    Args:
        a: The first program.
        b: The second program.
        values_a: Its `constant_values`; compared with the other's where both have values.
        values_b: Likewise of the second.
    """
    nodes_a, nodes_b = _constants(a), _constants(b)
    for name in sorted(nodes_a.keys() | nodes_b.keys() | (values_a.keys() & values_b.keys())):
        node_a, node_b = nodes_a.get(name), nodes_b.get(name)
        if (node_a is None) != (node_b is None):
            yield ConstantDifference(name, "presence", _text(node_a), _text(node_b))
            continue
        if node_a and node_b:
            for old, new in zip(node_a.tensors, node_b.tensors, strict=False):
                yield from (ConstantDifference(name, *change) for change in old.changes_to(new))
        yield from _value_change(name, values_a.get(name), values_b.get(name))


def _constants(program: CanonicalProgram) -> dict[str, CanonicalNode]:
    return {
        port.name: program.nodes[port.index]
        for port in program.inputs
        if port.kind in CONSTANT_KINDS and port.index is not None
    }


def _text(node: CanonicalNode | None) -> str:
    return node.value if node else ""


def _value_change(name: str, a: ConstantValue, b: ConstantValue) -> Iterator[ConstantDifference]:
    if isinstance(a, ObjectState) and isinstance(b, ObjectState):
        yield from _state_change(name, a, b)
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return
    if a.shape != b.shape or a.dtype != b.dtype:
        return
    a, b = _comparable(a), _comparable(b)
    differs = ~torch.isclose(a, b, rtol=0, atol=0, equal_nan=True)
    if differs.any():
        place = tuple(differs.nonzero()[0].tolist())
        where = f" at {list(place)}" if place else ""
        yield ConstantDifference(name, "value", f"{a[place].item()}{where}", f"{b[place].item()}{where}")


def _state_change(name: str, a: ObjectState, b: ObjectState) -> Iterator[ConstantDifference]:
    """Compare objects of C++ classes, except those whose state is unknown."""
    if a.class_name != b.class_name:
        yield ConstantDifference(name, "class", a.class_name, b.class_name)
    elif None not in (a.content, b.content) and a.content != b.content:
        yield ConstantDifference(name, "state", a.text, b.text)


def _comparable(value: torch.Tensor) -> torch.Tensor:
    """Narrow floats have no comparison of their own."""
    return value.double() if value.is_floating_point() else value


def data_of(value: Any) -> torch.Tensor | None:
    """Return the data of a constant, real or known from its history, or None.

    Other subclasses than fakes, other layouts and the meta device are left out.
    """
    if is_fake(value):
        try:
            value = value_of(value)
        except UnreplayableRead:
            return None
    is_plain = type(value) in (torch.Tensor, nn.Parameter) and value.layout is torch.strided
    return value if is_plain and not value.is_meta else None

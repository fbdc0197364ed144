"""What differs in the inputs and outputs of two programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fakexport.program.canonical import CanonicalProgram, Port
from fakexport.program.differences.constant_difference import CONSTANT_KINDS
from fakexport.program.differences.program_difference import SignatureDifference, structure_differences
from fakexport.program.node_names import star, star_common

_Ports = dict[tuple[str, str], Port]


def signature_differences(a: CanonicalProgram, b: CanonicalProgram) -> tuple[SignatureDifference, ...]:
    """Return what differs, inputs before outputs, equal differences of repeated modules folded."""
    containers = structure_differences(a.structures, b.structures)
    found: list[SignatureDifference] = []
    for side, of_a, of_b in (("input", a.inputs, b.inputs), ("output", a.outputs, b.outputs)):
        found += _side(side, a, b, _by_name(of_a), _by_name(of_b))
        found += (each for each in containers if each.side == side)
    return tuple(_folded(found))


def _by_name(ports: Iterable[Port]) -> _Ports:
    return {(port.kind, port.name): port for port in ports if port.kind not in CONSTANT_KINDS}


def _side(
    side: str, a: CanonicalProgram, b: CanonicalProgram, ports_a: _Ports, ports_b: _Ports
) -> Iterator[SignatureDifference]:
    for key in dict.fromkeys([*ports_a, *ports_b]):
        for field, text_a, text_b in _changes(a, b, ports_a.get(key), ports_b.get(key)):
            yield SignatureDifference(side, key[0].lower(), key[1], field, text_a, text_b)

    order_a = [key for key in ports_a if key in ports_b]
    order_b = [key for key in ports_b if key in ports_a]
    for key_a, key_b in zip(order_a, order_b, strict=True):
        if key_a != key_b:
            yield SignatureDifference(side, key_a[0].lower(), key_a[1], "order", key_a[1], key_b[1])
            return


def _changes(
    a: CanonicalProgram, b: CanonicalProgram, port_a: Port | None, port_b: Port | None
) -> Iterator[tuple[str, str, str]]:
    if port_a is None or port_b is None:
        yield "presence", _text(a, port_a), _text(b, port_b)
        return
    if port_a.is_persistent != port_b.is_persistent:
        yield "persistent", str(port_a.is_persistent), str(port_b.is_persistent)
    tensors_a = a.nodes[port_a.index].tensors if port_a.index is not None else ()
    tensors_b = b.nodes[port_b.index].tensors if port_b.index is not None else ()
    if len(tensors_a) == len(tensors_b) == 1:
        yield from tensors_a[0].changes_to(tensors_b[0])
    elif _text(a, port_a) != _text(b, port_b):
        yield "value", _text(a, port_a), _text(b, port_b)


def _text(program: CanonicalProgram, port: Port | None) -> str:
    """Return `float32[4, 4]` for a tensor, `3` for a constant, "" for nothing."""
    if port is None:
        return ""
    if port.index is None or port.constant is not None:
        return port.constant or ""
    node = program.nodes[port.index]
    if len(node.tensors) != 1:
        return node.value
    return f"{node.tensors[0].dtype}[{', '.join(node.tensors[0].shape)}]"


def _folded(differences: Iterable[SignatureDifference]) -> Iterator[SignatureDifference]:
    groups: dict[SignatureDifference, list[str]] = {}
    for difference in differences:
        groups.setdefault(replace(difference, name=star(difference.name)), []).append(difference.name)
    for difference, names in groups.items():
        yield replace(difference, name=star_common(names), count=len(names))

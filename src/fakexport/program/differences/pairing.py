"""Which node of one program corresponds to which node of another."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from fakexport.program.canonical import CanonicalNode, CanonicalProgram
from fakexport.program.differences.alignment import align


def pair(a: CanonicalProgram, b: CanonicalProgram) -> dict[int, int]:
    """Return indices of the first program's nodes with the corresponding indices of the second's.

    Inputs and weights correspond by name. Calls correspond within modules of the same path: first those
    that are equal up to devices and take their inputs from equal operators, then, between these, calls of
    one operator in one function of the source.
    """
    pairs = _pair_inputs(a, b)
    groups_a, groups_b = _by_module(a), _by_module(b)
    if groups_a.keys() & groups_b.keys() <= {""}:  # one of them does not know its modules
        groups_a, groups_b = {"": [*_calls(a)]}, {"": [*_calls(b)]}
    for path, nodes_a in groups_a.items():
        nodes_b = groups_b.get(path, [])
        for i, j in _pair_calls(a, b, nodes_a, nodes_b):
            pairs[nodes_a[i].place.index] = nodes_b[j].place.index
    return pairs


def _pair_inputs(a: CanonicalProgram, b: CanonicalProgram) -> dict[int, int]:
    places = {(port.kind, port.name): port.index for port in b.inputs}
    found = ((port.index, places.get((port.kind, port.name))) for port in a.inputs)
    return {i: j for i, j in found if i is not None and j is not None}


def _calls(program: CanonicalProgram) -> Iterator[CanonicalNode]:
    inputs = {port.index for port in program.inputs}
    return (node for node in program.nodes if node.place.index not in inputs)


def _by_module(program: CanonicalProgram) -> dict[str, list[CanonicalNode]]:
    groups: dict[str, list[CanonicalNode]] = {}
    for node in _calls(program):
        groups.setdefault(node.place.module_path, []).append(node)
    return groups


def _pair_calls(
    a: CanonicalProgram, b: CanonicalProgram, nodes_a: list[CanonicalNode], nodes_b: list[CanonicalNode]
) -> Iterator[tuple[int, int]]:
    """Return positions in the two lists; what strict keys leave unpaired is paired by loose ones."""
    equal = align([_strict_key(a, node) for node in nodes_a], [_strict_key(b, node) for node in nodes_b])
    start_a = start_b = 0
    for end_a, end_b in [*equal, (len(nodes_a), len(nodes_b))]:
        rest_a, rest_b = nodes_a[start_a:end_a], nodes_b[start_b:end_b]
        if rest_a and rest_b:
            similar = align([_loose_key(node) for node in rest_a], [_loose_key(node) for node in rest_b])
            yield from ((start_a + i, start_b + j) for i, j in similar)
        start_a, start_b = end_a + 1, end_b + 1
    yield from equal


def _strict_key(program: CanonicalProgram, node: CanonicalNode) -> Hashable:
    """Return everything about a node but its devices, and a glance at where its inputs come from."""
    sources = [program.nodes[index] for index in node.references]
    origins = (source.template if source.operator == "placeholder" else source.operator for source in sources)
    return (node.operator, node.template, node.result, *origins)


def _loose_key(node: CanonicalNode) -> Hashable:
    span = node.place.span
    return (node.operator, span.function if span else None)

"""Compare two programs of the same model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from torch.export import ExportedProgram

from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.exporting.interface import (
    DeviceChange,
    NodeChange,
    NodeGroup,
    ProgramDifference,
    PropertyDifference,
    SignatureDifference,
    Transfer,
    operator_differences,
    range_differences,
    structure_differences,
)
from fakexport.exporting.program.canonical import CanonicalNode, CanonicalProgram, Port
from fakexport.exporting.program.differences.alignment import align
from fakexport.exporting.program.differences.constant_difference import (
    CONSTANT_KINDS,
    ConstantValue,
    constant_differences,
    constant_values,
)
from fakexport.exporting.program.identity import ProgramIdentity, identity_of
from fakexport.exporting.program.node_names import star, star_common
from fakexport.exporting.program.transfers import transfers


@one_at_a_time
def diff(a: ExportedProgram, b: ExportedProgram) -> ProgramDifference:
    """Return the differences between two programs of the same model.

    The programs may be exported for different targets or with different versions of a library, or one may be
    a rewritten version of the other. Nodes are matched by module path and then by operator. Therefore, if one
    program has an additional node, later nodes still match. Equal differences in repeated modules are merged.
    This takes about 2 s for two programs of 10,000 nodes.

    Args:
        a: The first program. It is not changed.
        b: The second program. It is not changed.

    Example:
        >>> on_cpu = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> on_gpu = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),), target="H100")
        >>> diff(on_cpu, on_gpu).is_identical_but_for_devices
        True
    """
    return diff_compared(compared(a), compared(b))


@dataclass(frozen=True)
class ComparedProgram:
    """The data of a program that `diff` needs, in a form that can be passed between processes."""

    identity: ProgramIdentity
    transfers: tuple[Transfer, ...]
    constants: Mapping[str, ConstantValue]


def compared(program: ExportedProgram) -> ComparedProgram:
    """Return the data of a program that `diff` needs."""
    return ComparedProgram(identity_of(program), transfers(program), constant_values(program.constants))


def diff_compared(a: ComparedProgram, b: ComparedProgram) -> ProgramDifference:
    """Return the same differences as `diff`, computed from the data of both programs."""
    first, second = a.identity.canonical, b.identity.canonical
    both = _Both(first, second, pair(first, second))
    removed, added = _transfer_differences(a.transfers, b.transfers, both.pairs)
    lines, lines_b = a.identity.lines, b.identity.lines
    return ProgramDifference(
        is_identical=lines == lines_b,
        is_identical_but_for_devices=[line.text for line in lines] == [line.text for line in lines_b],
        node_count_a=len(first.nodes),
        node_count_b=len(second.nodes),
        operators=operator_differences(_counts(first), _counts(second)),
        nodes_removed=_grouped(node for node in first.nodes if node.place.index not in both.pairs),
        nodes_added=_grouped(node for node in second.nodes if node.place.index not in both.reverse),
        nodes_rewired=_grouped(both.rewired()),
        is_reordered=both.is_reordered,
        changes=tuple(_change_groups(both)),
        devices=_device_changes(both),
        transfers_removed=removed,
        transfers_added=added,
        constants=tuple(
            constant_differences(
                first, second, a.constants, b.constants, a.identity.contents, b.identity.contents
            )
        ),
        signature=_signature_differences(first, second),
        ranges=range_differences(first.ranges, second.ranges),
        properties=tuple(_property_differences(a.identity, b.identity)),
    )


class _Both:
    """The two programs, with the pairs of corresponding nodes."""

    def __init__(self, a: CanonicalProgram, b: CanonicalProgram, pairs: Mapping[int, int]) -> None:
        self.a, self.b, self.pairs = a, b, pairs
        self.reverse = {j: i for i, j in pairs.items()}

    @property
    def is_reordered(self) -> bool:
        return any(i > j for i, j in pairwise(j for _, j in sorted(self.pairs.items())))

    def in_order(self) -> Iterator[tuple[CanonicalNode, CanonicalNode]]:
        for j in sorted(self.reverse):
            yield self.a.nodes[self.reverse[j]], self.b.nodes[j]

    def rewired(self) -> Iterator[CanonicalNode]:
        """Yield nodes of the second program that take an input from a different node than in the first.

        Inserted nodes in between, such as moves or casts, are skipped.
        """
        for node_a, node_b in self.in_order():
            if node_a.template == node_b.template and any(
                self._is_moved(i, j) for i, j in zip(node_a.references, node_b.references, strict=True)
            ):
                yield node_b

    def _is_moved(self, source_a: int, source_b: int) -> bool:
        i, j = _through(self.a, source_a, self.pairs), _through(self.b, source_b, self.reverse)
        return i in self.pairs and j in self.reverse and self.pairs[i] != j


def _through(program: CanonicalProgram, index: int, paired: Mapping[int, int]) -> int:
    """Return the node from which a value comes, skipping unpaired nodes with one input, such as casts."""
    while index not in paired and len(program.nodes[index].references) == 1:
        (index,) = program.nodes[index].references
    return index


def _devices_of(node: CanonicalNode) -> tuple[str, ...]:
    return (*node.literal_devices, *node.result_devices)


def _counts(program: CanonicalProgram) -> Counter[str]:
    return Counter(node.operator for node in program.nodes if node.is_call)


def _transfer_differences(
    a: Iterable[Transfer], b: Iterable[Transfer], pairs: Mapping[int, int]
) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...]]:
    of_a = {pairs.get(transfer.index, -1 - transfer.index): transfer for transfer in a}
    of_b = {transfer.index: transfer for transfer in b}
    removed = tuple(transfer for index, transfer in of_a.items() if index not in of_b)
    return removed, tuple(transfer for index, transfer in of_b.items() if index not in of_a)


def _changes(a: CanonicalNode, b: CanonicalNode) -> Iterator[tuple[str, str, str]]:
    if a.template != b.template:
        yield "arguments", a.literals, b.literals
    fields = [
        change for old, new in zip(a.tensors, b.tensors, strict=False) for change in old.changes_to(new)
    ]
    if a.result != b.result and not fields:
        fields.append(("value", a.value, b.value))
    yield from dict.fromkeys(fields)


def _change_groups(both: _Both) -> Iterator[NodeChange]:
    groups: dict[tuple[str, str, str, Hashable], list[CanonicalNode]] = {}
    for node_a, node_b in both.in_order():
        for change in _changes(node_a, node_b) if node_b.is_call else ():
            groups.setdefault((*change, _repeat_key(node_b)), []).append(node_b)
    for (field, text_a, text_b, _), nodes in groups.items():
        yield NodeChange(_group(nodes), field, text_a, text_b)


def _device_changes(both: _Both) -> tuple[DeviceChange, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    for node_a, node_b in both.in_order():
        changes = zip(_devices_of(node_a), _devices_of(node_b), strict=False)
        counts.update({change for change in changes if change[0] != change[1]})
    return tuple(DeviceChange(*devices, count) for devices, count in counts.most_common())


def _property_differences(a: ProgramIdentity, b: ProgramIdentity) -> Iterator[PropertyDifference]:
    of_a, of_b = ({(p.kind, p.line.text): str(p) for p in each.properties} for each in (a, b))
    for (kind, text), shown in of_a.items():
        if (kind, text) not in of_b:
            yield PropertyDifference(kind, shown, "")
    for (kind, text), shown in of_b.items():
        if (kind, text) not in of_a:
            yield PropertyDifference(kind, "", shown)


def _grouped(nodes: Iterable[CanonicalNode]) -> tuple[NodeGroup, ...]:
    groups: dict[Hashable, list[CanonicalNode]] = {}
    for node in nodes:
        if node.is_call:
            groups.setdefault(_repeat_key(node), []).append(node)
    return tuple(_group(group) for group in groups.values())


def _repeat_key(node: CanonicalNode) -> Hashable:
    return node.operator, star(node.place.module_path), node.place.span


def _group(nodes: list[CanonicalNode]) -> NodeGroup:
    first = nodes[0]
    return NodeGroup(
        operator=first.operator,
        module_path=star_common(node.place.module_path for node in nodes),
        span=first.place.span,
        count=len(nodes),
        node=first.place.name,
    )


def pair(a: CanonicalProgram, b: CanonicalProgram) -> dict[int, int]:
    """Match the nodes of two programs. Map the index of each matched node in `a` to its index in `b`.

    Inputs and weights are matched by name. Calls are matched within modules with the same path. The first
    step matches calls that are equal except for devices and take their inputs from equal operators. Between
    two such matches, the second step matches calls of the same operator in the same source function.
    """
    pairs = _pair_inputs(a, b)
    groups_a, groups_b = _by_module(a), _by_module(b)
    if groups_a.keys() & groups_b.keys() <= {""}:  # One of the programs does not record module paths.
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
    """Yield pairs of positions in two lists of calls. Strict keys are matched first, and then loose keys."""
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
    """Return everything about a node except devices, with a summary of where its inputs come from."""
    sources = [program.nodes[index] for index in node.references]
    origins = (source.template if source.operator == "placeholder" else source.operator for source in sources)
    return (node.operator, node.template, node.result, *origins)


def _loose_key(node: CanonicalNode) -> Hashable:
    span = node.place.span
    return (node.operator, span.function if span else None)


_Ports = dict[tuple[str, str], Port]


def _signature_differences(a: CanonicalProgram, b: CanonicalProgram) -> tuple[SignatureDifference, ...]:
    """Return differences of the signatures, inputs before outputs, with repeated modules merged."""
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
        for field, text_a, text_b in _port_changes(a, b, ports_a.get(key), ports_b.get(key)):
            yield SignatureDifference(side, key[0].lower(), key[1], field, text_a, text_b)

    order_a = [key for key in ports_a if key in ports_b]
    order_b = [key for key in ports_b if key in ports_a]
    for key_a, key_b in zip(order_a, order_b, strict=True):
        if key_a != key_b:
            yield SignatureDifference(side, key_a[0].lower(), key_a[1], "order", key_a[1], key_b[1])
            return


def _port_changes(
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
    """Return a port as text: `float32[4, 4]` for a tensor, `3` for a constant, "" if there is no port."""
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

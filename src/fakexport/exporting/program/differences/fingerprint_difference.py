"""Compare two fingerprints, such as a stored and a current one. The result is a `ProgramDifference`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from fakexport.exporting.interface import (
    ConstantDifference,
    DeviceChange,
    NodeChange,
    NodeGroup,
    ProgramDifference,
    PropertyDifference,
    SignatureDifference,
    operator_differences,
    range_differences,
    structure_differences,
)
from fakexport.exporting.program.fingerprint import Fingerprint, NodeLine
from fakexport.exporting.program.tensor_spec import TensorSpec

_TENSOR = re.compile(r"(\w+)\[([^\]]*)\]\{([^}]*)\} ([\w:]+)")


_Row = tuple[tuple[str, ...], tuple[str, str], int]
"""A line of a fingerprint: its key, the detail that may change, and its count."""


@dataclass(frozen=True)
class _Change:
    """A change in `count` lines with the same key: their detail differs, or only one side has them."""

    key: tuple[str, ...]
    a: tuple[str, str] | None
    b: tuple[str, str] | None
    count: int


def diff_fingerprints(a: Fingerprint, b: Fingerprint) -> ProgramDifference:
    """Return the differences between two fingerprints, as `diff` does for two programs.

    The result has fewer details than the result of `diff`: module indices are replaced by stars, removed
    nodes have no source line, and transfers and values of constants are not listed.
    """
    nodes = list(_changes(_node_rows(a), _node_rows(b)))
    ports = list(_changes(_port_rows(a), _port_rows(b)))
    inputs = [change for change in ports if change.key[0] == "input"]  # An output is the value of a node.
    places = _Places(b)
    constants = list(_changes(_constant_rows(a), _constant_rows(b)))
    devices = Counter(dict(_device_changes([*nodes, *inputs, *constants])))
    found = ProgramDifference(
        is_identical=a.digest == b.digest,
        is_identical_but_for_devices=a.digest == b.digest,
        node_count_a=a.node_count,
        node_count_b=b.node_count,
        operators=operator_differences(a.operators, b.operators),
        nodes_removed=tuple(places.of(change) for change in nodes if change.b is None),
        nodes_added=tuple(places.of(change) for change in nodes if change.a is None),
        changes=tuple(_node_changes(nodes, places)),
        devices=tuple(DeviceChange(*pair, count) for pair, count in devices.most_common()),
        constants=tuple(_constants(constants)),
        signature=(*_signature(ports), *structure_differences(a.structures, b.structures)),
        ranges=range_differences(a.ranges, b.ranges),
        properties=tuple(_properties(a, b)),
    )
    if found.nodes_removed or found.nodes_added or found.changes:
        return found
    if rewired := tuple(_rewired(a, b, places)):
        return replace(found, nodes_rewired=rewired)
    others = (found.constants, found.signature, found.ranges, found.properties)
    is_placed_only = bool(devices) and not any(others)
    return replace(found, is_identical_but_for_devices=found.is_identical or is_placed_only)


def _node_rows(program: Fingerprint) -> Iterator[_Row]:
    for line in program.nodes:
        yield (line.operator, line.module_path), (line.arguments, line.value), line.count


def _port_rows(program: Fingerprint) -> Iterator[_Row]:
    for line in program.ports:
        yield (line.side, line.kind, line.name), (line.value, line.persistence), line.count


def _constant_rows(program: Fingerprint) -> Iterator[_Row]:
    for line in program.constants:
        yield (line.name,), (line.value, line.content), line.count


def _changes(a: Iterable[_Row], b: Iterable[_Row]) -> Iterator[_Change]:
    """Yield a change for each key with different lines, in the order of the second fingerprint."""
    old, new = _counted(a), _counted(b)
    for key in dict.fromkeys((*new, *old)):
        left, right = old.get(key, Counter()), new.get(key, Counter())
        gone, come = list((left - right).items()), list((right - left).items())
        while gone and come:
            count = min(gone[0][1], come[0][1])
            yield _Change(key, gone[0][0], come[0][0], count)
            gone, come = _less(gone, count), _less(come, count)
        yield from (_Change(key, detail, None, count) for detail, count in gone)
        yield from (_Change(key, None, detail, count) for detail, count in come)


def _counted(rows: Iterable[_Row]) -> dict[tuple[str, ...], Counter[tuple[str, str]]]:
    found: dict[tuple[str, ...], Counter[tuple[str, str]]] = {}
    for key, detail, count in rows:
        found.setdefault(key, Counter())[detail] += count
    return found


def _less(waiting: list[tuple[tuple[str, str], int]], count: int) -> list[tuple[tuple[str, str], int]]:
    (detail, had), *rest = waiting
    return [(detail, had - count), *rest] if had > count else rest


class _Places:
    """The source lines of the second program's nodes."""

    def __init__(self, program: Fingerprint) -> None:
        self._known = {
            (line.operator, line.module_path, line.arguments, line.value): group
            for line, group in program.places.items()
        }

    def of(self, change: _Change) -> NodeGroup:
        operator, path = change.key
        known = None if change.b is None else self._known.get((operator, path, *change.b))
        if known is None:
            return NodeGroup(operator, path, None, change.count, "")
        return replace(known, count=change.count)


def _node_changes(nodes: Iterable[_Change], places: _Places) -> Iterator[NodeChange]:
    for change in nodes:
        if change.a is None or change.b is None:
            continue
        group = places.of(change)
        if change.a[0] != change.b[0]:
            yield NodeChange(group, "arguments", change.a[0], change.b[0])
        fields = list(_tensor_changes(change.a[1], change.b[1]))
        if not fields and _placeless(change.a[1]) != _placeless(change.b[1]):
            fields = [("value", change.a[1], change.b[1])]
        yield from (NodeChange(group, *field) for field in fields)


def _tensors(value: str) -> list[TensorSpec]:
    return [
        TensorSpec(dtype, tuple(shape.split(", ")), tuple(stride.split(", ")), device)
        for dtype, shape, stride, device in _TENSOR.findall(value)
    ]


def _tensor_changes(a: str, b: str) -> Iterator[tuple[str, str, str]]:
    of_a, of_b = _tensors(a), _tensors(b)
    if len(of_a) == len(of_b):
        changes = [change for old, new in zip(of_a, of_b, strict=True) for change in old.changes_to(new)]
        yield from dict.fromkeys(changes)


def _placeless(value: str) -> str:
    return _TENSOR.sub(r"\1[\2]{\3}", value)


def _device_changes(changes: Iterable[_Change]) -> Iterator[tuple[tuple[str, str], int]]:
    counts: Counter[tuple[str, str]] = Counter()
    for change in changes:
        if change.a is not None and change.b is not None:
            for old, new in zip(_tensors(_value(change, 0)), _tensors(_value(change, 1)), strict=False):
                if old.device != new.device:
                    counts[old.device, new.device] += change.count
    yield from counts.items()


def _value(change: _Change, side: int) -> str:
    """Return the part of a change's detail that describes tensors. `side` is 0 for a and 1 for b."""
    detail = (change.a, change.b)[side] or ("", "")
    return detail[1] if len(change.key) == len(("operator", "module_path")) else detail[0]


def _signature(ports: Iterable[_Change]) -> Iterator[SignatureDifference]:
    for change in ports:
        side, kind, name = change.key
        if change.a is None or change.b is None:
            texts = [_short(detail) for detail in (change.a, change.b)]
            yield SignatureDifference(side, kind, name, "presence", texts[0], texts[1], change.count)
            continue
        if change.a[1] != change.b[1]:
            yield SignatureDifference(side, kind, name, "persistent", change.a[1], change.b[1], change.count)
        fields = list(_tensor_changes(change.a[0], change.b[0]))
        if not fields and _placeless(change.a[0]) != _placeless(change.b[0]):
            fields = [("value", change.a[0], change.b[0])]
        yield from (SignatureDifference(side, kind, name, *field, change.count) for field in fields)


def _short(detail: tuple[str, str] | None) -> str:
    """Return a value in a short form, such as `float32[4, 4]`. Return "None" for a port without a value."""
    return "" if detail is None else _TENSOR.sub(r"\1[\2]", detail[0]) or "None"


def _constants(changes: Iterable[_Change]) -> Iterator[ConstantDifference]:
    for change in changes:
        (name,) = change.key
        if change.a is None or change.b is None:
            yield ConstantDifference(name, "presence", _short(change.a), _short(change.b))
            continue
        fields = list(_tensor_changes(change.a[0], change.b[0]))
        yield from (ConstantDifference(name, *field) for field in fields)
        if not fields and change.a[1] != change.b[1]:
            yield ConstantDifference(name, "value", change.a[1], change.b[1])


def _properties(a: Fingerprint, b: Fingerprint) -> Iterator[PropertyDifference]:
    """Yield the properties that differ. Devices are ignored: the lines of nodes and ports show them."""
    placeless_a, placeless_b = ([_placeless(text) for text in each.properties] for each in (a, b))
    for text in (text for text in placeless_a if text not in placeless_b):
        yield PropertyDifference(*_parted(text), "")
    for text in (text for text in placeless_b if text not in placeless_a):
        kind, shown = _parted(text)
        yield PropertyDifference(kind, "", shown)


def _parted(text: str) -> tuple[str, str]:
    """Split the line of a property into its kind and its text. The text still contains the count."""
    count, _, rest = text.rpartition(" x ") if re.match(r"\d+ x ", text) else ("", "", text)
    kind, _, shown = rest.partition(" ")
    return kind, f"{count} x {shown}" if count else shown


def _rewired(a: Fingerprint, b: Fingerprint, places: _Places) -> Iterator[NodeGroup]:
    old: dict[tuple[str, ...], list[str]] = {}
    for line in a.nodes:
        old.setdefault(_identity(line), []).append(line.wiring)
    for line in b.nodes:
        if line.wiring not in old.get(_identity(line), []):
            detail = (line.arguments, line.value)
            yield places.of(_Change((line.operator, line.module_path), None, detail, line.count))


def _identity(line: NodeLine) -> tuple[str, ...]:
    return line.operator, line.module_path, line.arguments, _placeless(line.value)
